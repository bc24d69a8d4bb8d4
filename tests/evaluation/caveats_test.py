"""What was left out is counted, with its share, and said."""

import dataclasses
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.tiny_runs import (
  make_config,
  make_texts,
  save_models,
  share_passes,
  write_jsonl,
)

from longctx_jax.evaluation import foreign as foreign_lib
from longctx_jax.evaluation import run as run_lib
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.results import summarise
from longctx_jax.report import comparison, page
from longctx_jax.scoring import run as score

# Six short ones and six that are longer than LIMIT.
TEXTS = [text[:100] for text in make_texts(6)] + make_texts(6)
LIMIT = 120


pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def made(tmp_path_factory, compiled):
  """Models, documents and, under keys/, the key tokens that m0 finds."""
  folder = tmp_path_factory.mktemp("made")
  save_models(folder, ["m0", "m1"])
  path = write_jsonl(folder / "corpus.jsonl", TEXTS)
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    config = make_config(data__sources=(path,), evaluator=str(folder / "m0"))
    score.score_corpus(config, workdir=folder / "keys")
  return folder


def evaluate(made, workdir, **fields):
  config = make_config(
    data__sources=(str(made / "corpus.jsonl"),),
    key_tokens=str(made / "keys"),
    models=(str(made / "m1"),),
    **fields,
  )
  (result,) = run_lib.evaluate(config, workdir=workdir)
  return result


def test_a_model_that_skips_half_of_the_documents_covers_half(tmp_path, made):
  whole = evaluate(made, tmp_path / "whole")
  assert (whole.key_coverage, whole.n_documents_read) == (1.0, 12)
  result = evaluate(
    made, tmp_path / "skip", data__max_length=LIMIT, data__over_length="skip"
  )
  assert result.n_documents_read == 6 and result.n_documents == 12
  assert result.n_eligible == whole.n_eligible
  read = [one for one in whole.documents if one.doc_index < 6]
  key_chars = sum(one.key_chars for one in whole.documents)
  assert result.key_coverage == pytest.approx(
    sum(one.key_chars for one in read) / key_chars
  )
  assert result.chars_unread_share == pytest.approx(
    sum(map(len, TEXTS[6:])) / sum(map(len, TEXTS))
  )
  assert not any("of the eligible tokens are key" in w for w in result.warnings)
  assert not any("tokenizer" in warning for warning in result.warnings)
  (skipped,) = [w for w in result.warnings if "were not read" in w]
  assert skipped.startswith("6 of 12 documents were not read (too_long, 'd6'")
  assert skipped.endswith("--max_length, or --over_length truncate_end")
  for fmt in ("text", "markdown", "latex"):
    table = comparison.compare_table([result], fmt=fmt)
    assert "6 of 12" in table and skipped.split(" (")[0] in table
  page.render_report([result], [], tmp_path / "report.html")
  text = (tmp_path / "report.html").read_text()
  assert "6 of 12" in text and "6 of 12 documents were not read" in text


def test_a_model_that_cuts_says_how_much(tmp_path, made, caplog):
  with caplog.at_level("INFO"):
    result = evaluate(made, tmp_path, data__max_length=LIMIT)
  assert (result.n_documents_cut, result.n_truncated) == (6, 6)
  (cut,) = [w for w in result.warnings if "were cut" in w]
  assert re.fullmatch(
    r"6 of 12 documents were cut to this model's 120 ids: \d\d% of their "
    "characters are unread; --max_length",
    cut,
  )
  # In the log too: who reads no table reads that.
  assert cut in caplog.text


def test_what_the_evaluator_did_not_read_is_unread(tmp_path, made):
  config = make_config(
    data__sources=(str(made / "corpus.jsonl"),),
    data__max_length=LIMIT,
    evaluator=str(made / "m0"),
    models=(str(made / "m1"),),
  )
  (result,) = run_lib.evaluate(config, workdir=tmp_path)
  assert (result.n_documents_cut, result.n_truncated) == (6, 0)
  assert result.chars_unread_share > 0.2
  (line,) = [w for w in result.warnings if "in part" in w]
  assert line.startswith("the evaluator read 6 of 12 documents in part: ")


def write_log_probs(path, cut):
  """A target a character, of the characters that `cut` leaves of a text."""
  rows = []
  for i, text in enumerate(TEXTS):
    places = list(range(1, len(text)))[cut]
    rows.append(
      {
        "doc_id": f"d{i}",
        "token_start": places,
        "token_end": [place + 1 for place in places],
        "log_prob": [-1.0] * len(places),
      }
    )
  pq.write_table(pa.Table.from_pylist(rows), path)
  return foreign_lib.open_log_probs(path, "engine")


def evaluate_log_probs(made, workdir, cut):
  config = make_config(
    data__sources=(str(made / "corpus.jsonl"),),
    key_tokens=str(made / "keys"),
  )
  foreign = write_log_probs(workdir / "log_probs.parquet", cut)
  (result,) = run_lib.evaluate(config, workdir=workdir, foreign=[foreign])
  return result


def test_an_engine_that_cut_its_prompt_is_not_the_tokenizers_fault(
  tmp_path, made
):
  result = evaluate_log_probs(made, tmp_path, slice(None, 119))
  assert (result.n_documents_cut, result.n_truncated) == (6, 6)
  assert result.key_coverage < 0.9
  assert not any("tokenizer" in warning for warning in result.warnings)
  (cut,) = [w for w in result.warnings if "were cut" in w]
  n = len(TEXTS[6])
  assert cut.endswith(f"of 'd6' characters 0 to 120 of {n} have log-probs")
  whole = evaluate_log_probs(made, tmp_path, slice(None))
  assert (whole.n_documents_cut, whole.key_coverage) == (0, 1.0)


def test_nothing_scored_is_an_error_after_the_results():
  documents = [
    DocumentResult("a", 0, "failed", cause="broken"),
    DocumentResult("b", 1, "failed", cause="broken"),
    DocumentResult("c", 2, "empty"),
  ]
  result = summarise(
    documents, protocol_name="paper", self_evaluated=False, name="m"
  )
  message = "^m scored nothing: of 3 documents 2 failed, 1 empty$"
  with pytest.raises(ValueError, match=message):
    run_lib.check_finished([result])
  assert "2 of 3 documents were not read (failed, 'a' first: broken)" in (
    result.warnings
  )
  scored = dataclasses.replace(result, n_tokens=1)
  run_lib.check_finished([scored])
