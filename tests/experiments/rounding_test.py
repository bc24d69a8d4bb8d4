"""An evaluator beside its rounded self, on log-probs whose answer is known."""

import dataclasses
import math

import pytest
from support import records, tiny_runs

from longctx_jax.experiments import demo, rounding
from longctx_jax.text import corpus

NAN = float("nan")
LONG = [-5.0, -1.0, -9.0, -1.0, -1.0]
SHORT = [NAN, -9.0, -1.0, -1.0, -1.5]


def test_differences_and_sets_are_counted():
  """The first key stays, the last target becomes one."""
  stored = records.make_row("abcdef", LONG, SHORT)
  long = [-5.5, -1.25, -9.0, -1.0, -0.5]
  rounded = records.make_row("abcdef", long, [NAN, -9.0, -1.0, -1.0, -3.5])
  found = rounding.compare([stored], [rounded])
  assert found["n_key_tokens"] == [1, 2] and found["n_key_by_both"] == 1
  assert found["jaccard"] == 0.5
  assert found["long_log_prob"] == {
    "mean": pytest.approx((-0.5 - 0.25 + 0.5) / 5),
    "mean_abs": pytest.approx(1.25 / 5),
    "p99_abs": pytest.approx(0.5),
    "max_abs": pytest.approx(0.5),
  }
  assert (found["n_targets"], found["n_eligible"]) == (5, 4)
  # LSD: 8 to 7.75, and 0.5 to 3.
  assert found["lsd"]["mean"] == pytest.approx((-0.25 + 2.5) / 4)
  assert found["ppl"] == [
    pytest.approx(math.exp(17 / 5)),
    pytest.approx(math.exp(17.25 / 5)),
  ]
  assert found["longppl"] == pytest.approx(math.e)
  assert found["longppl_on_rounded_keys"] == pytest.approx(math.e)
  assert found["longppl_of_rounded"] == pytest.approx(math.exp(1.25))


def test_other_documents_are_refused():
  row = records.make_row("abcdef", LONG, SHORT)
  other = dataclasses.replace(row, text_sha256="another")
  with pytest.raises(ValueError, match="document .* in the other"):
    rounding.compare([row], [other])


@pytest.mark.usefixtures("scorers")
def test_both_forms_are_scored_once(tmp_path, monkeypatch, scorers):
  (tmp_path / "models").mkdir()
  tiny_runs.save_models(tmp_path / "models", ["m0"])
  texts = tiny_runs.make_texts(2)
  path = tiny_runs.write_jsonl(tmp_path / "texts.jsonl", texts)
  monkeypatch.setattr(demo, "write_chapters", lambda folder: path)
  config = tiny_runs.make_config(evaluator=str(tmp_path / "models" / "m0"))
  run = dict(workdir=tmp_path / "w", weights="int8")
  found = rounding.run_rounding(config, **run)
  assert found["n_documents"] == len(list(corpus.open_corpus(path)))
  assert 0 < found["long_log_prob"]["max_abs"] < 0.5
  before = len(scorers)
  assert rounding.run_rounding(config, **run) == found
  assert tiny_runs.passed(scorers[before:]) == 0
