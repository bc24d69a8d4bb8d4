"""A number counts for what it was made of, and for nothing else.

Each test evaluates in a workdir that holds results of other inputs, and asks
for what an empty workdir gives.
"""

import dataclasses
import json
import os
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.tiny_runs import (
  ALPHA,
  BETA,
  make_config,
  make_texts,
  passed,
  save_models,
  write_jsonl,
)

from longctx_jax.evaluation import files, identity
from longctx_jax.evaluation import run as run_lib
from longctx_jax.key_tokens import manifest as manifest_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.report import alike, comparison, heatmap
from longctx_jax.scoring import run as score
from longctx_jax.scoring import scorer as scorer_lib

TEXTS = make_texts(6)
OF_THE_RUN = {
  "seconds", "tokens_per_second", "padding_share", "n_reused", "made",
}  # fmt: skip


pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  save_models(folder, ["m0", "m1", "m2"])
  return folder


@pytest.fixture
def corpus(tmp_path, models):
  """(texts, ids, thresholds) -> config of m1 on the keys that m0 finds."""

  def write(texts, ids=None, *, name="corpus", max_length=0, **longppl):
    path = tmp_path / f"{name}.jsonl"
    write_jsonl(path, texts)
    if ids:
      rows = [
        {"id": one, "text": text} for one, text in zip(ids, texts, strict=True)
      ]
      path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = make_config(
      data__sources=(str(path),),
      evaluator=str(models / "m0"),
      models=(str(models / "m1"),),
    )
    config.longppl.update(longppl)
    config.data.max_length = max_length
    score.score_corpus(config, workdir=tmp_path / name, overwrite=True)
    config.key_tokens = str(tmp_path / name)
    return config

  return write


def evaluate(config, workdir, **options):
  (result,) = run_lib.evaluate(config, workdir=workdir, **options)
  assert files.load_results(workdir) == [result]
  return result


def numbers(result):
  fields = result.to_json()
  return {name: fields[name] for name in fields.keys() - OF_THE_RUN}


def test_only_the_documents_of_this_corpus_are_pooled(
  tmp_path, corpus, scorers
):
  """One document, then another, in one workdir."""
  first = corpus(TEXTS[:1], name="A")
  second = corpus(TEXTS[1:2], ids=["e0"], name="B")
  work = tmp_path / "work"
  before = evaluate(first, work)
  after = evaluate(second, work)
  assert after.n_documents == 1 != len(TEXTS)
  assert numbers(after) == numbers(evaluate(second, tmp_path / "fresh"))
  # What was done for the first is still done.
  scorers.clear()
  assert evaluate(first, work) == before
  assert passed(scorers) == 0


def test_new_texts_under_the_ids_of_others_are_evaluated(tmp_path, corpus):
  work = tmp_path / "work"
  before = evaluate(corpus(TEXTS[:3]), work)
  config = corpus(TEXTS[3:])
  after = evaluate(config, work)
  assert after.longppl != before.longppl
  assert numbers(after) == numbers(evaluate(config, tmp_path / "fresh"))


def test_one_changed_text_is_evaluated_and_the_others_kept(
  tmp_path, corpus, scorers
):
  work = tmp_path / "work"
  evaluate(corpus(TEXTS[:3]), work)
  config = corpus([TEXTS[0], TEXTS[4], TEXTS[2]])
  scorers.clear()
  after = evaluate(config, work)
  assert passed(scorers) == after.documents[1].n_tokens
  assert numbers(after) == numbers(evaluate(config, tmp_path / "fresh"))


def test_documents_stand_where_the_corpus_has_them(tmp_path, corpus):
  """Not where they stood when they were scored."""
  config = corpus(TEXTS[:2], ids=["a", "b"])
  path = tmp_path / "now.jsonl"
  lines = (tmp_path / "corpus.jsonl").read_text().splitlines(keepends=True)
  path.write_text("".join(lines[::-1]))
  config.data.sources = (str(path),)
  found = evaluate(config, tmp_path / "work")
  assert [(one.doc_id, one.doc_index) for one in found.documents] == [
    ("b", 0), ("a", 1)
  ]  # fmt: skip


def test_numbers_of_another_arithmetic_are_done_again_or_refused(
  tmp_path, corpus, models, monkeypatch, scorers
):
  config = corpus(TEXTS[:2])
  evaluate(config, tmp_path / "work")
  monkeypatch.setattr(manifest_lib, "NUMERICS", manifest_lib.NUMERICS + 1)
  with pytest.raises(ValueError, match="numerics was 1 and is 2"):
    evaluate(config, tmp_path / "work")
  # The evaluator's own log-probs are of the arithmetic of before.
  config.models = (str(models / "m0"),)
  assert evaluate(config, tmp_path / "own").n_reused == 0


def test_edited_slices_are_other_key_tokens(tmp_path, corpus):
  config = corpus(TEXTS[:2], alpha=2.0, beta=-2.0)
  folder = tmp_path / "judge"
  folder.mkdir()
  config.key_tokens = f"slices:{folder}"
  for spans in ("[20, 25];[60, 61]", "[30, 44]"):
    for i in range(2):
      (folder / f"slice_{i}.txt").write_text(spans)
    found = evaluate(config, tmp_path / "work")
    fresh = evaluate(config, tmp_path / f"fresh {spans[1]}")
    assert numbers(found) == numbers(fresh)
  assert found.n_key_tokens == 28


def test_a_store_that_was_scored_anew_is_evaluated_anew(tmp_path, corpus):
  """Of the same texts it read less."""
  work = tmp_path / "work"
  evaluate(corpus(TEXTS[:3]), work)
  message = r"keys\.max_length was 4096 and is 99"
  with pytest.raises(ValueError, match=message):
    evaluate(corpus(TEXTS[:3], max_length=99), work)


def test_the_hash_of_key_tokens_is_of_all_that_a_model_is_told(
  tmp_path, corpus
):
  corpus(TEXTS[:1])
  (keys,) = store_lib.read_store(tmp_path / "corpus")
  changed = [
    dataclasses.replace(keys, **change)
    for change in (
      {"spans": keys.spans[1:]},
      {"n_chars": keys.n_chars - 1},
      {"n_eligible": keys.n_eligible - 1},
      {"reason": "no_key_tokens"},
    )
  ]
  hashes = {identity.keys_sha256(one) for one in (keys, *changed)}
  assert len(hashes) == 5
  again = dataclasses.replace(keys, spans=keys.spans.copy(), doc_index=7)
  assert identity.keys_sha256(again) == identity.keys_sha256(keys)


def test_where_a_model_lies_is_no_other_model(
  tmp_path, corpus, models, scorers
):
  """Nor the place of the evaluator that the store names."""
  config = corpus(TEXTS[:2])
  shutil.copytree(models / "m1", tmp_path / "moved" / "m1")
  work = tmp_path / "work"
  evaluate(config, work)
  config.models = (str(tmp_path / "moved" / "m1"),)
  scorers.clear()
  result = evaluate(config, work)
  assert passed(scorers) == 0
  assert result.model["name"] == str(tmp_path / "moved" / "m1")


def test_tokens_are_named_by_document_and_are_those_of_the_result(
  tmp_path, corpus
):
  """The corpus grows at its front, in a folder with files of before."""
  work = tmp_path / "work"
  config = corpus(TEXTS[:2], ids=["a", "b/é"])
  config.eval.per_token = True
  evaluate(config, work)
  old = work / "tokens" / "m1" / "00000000.parquet"
  shutil.copy(next(old.parent.iterdir()), old)
  config = corpus(TEXTS[:3], ids=["new", "a", "b/é"])
  config.eval.per_token = True
  result = evaluate(config, work)
  assert len(list(old.parent.iterdir())) == 3
  table = pq.read_table(old.parent)
  counts = dict(
    zip(*np.unique(table["doc_id"], return_counts=True), strict=True)
  )
  assert counts == {one.doc_id: one.n_tokens for one in result.documents}
  assert [one.doc_index for one in result.documents] == [0, 1, 2]
  # A file that is gone is made again.
  next(old.parent.iterdir()).unlink()
  assert numbers(evaluate(config, work)) == numbers(result)
  assert len(list(old.parent.iterdir())) == 3


def test_the_thresholds_are_the_stores_unless_named(tmp_path, corpus, caplog):
  config = corpus(TEXTS[:2], alpha=0.25)
  expected = evaluate(config, tmp_path / "config")
  config.longppl.update(alpha=2.0, beta=-2.0)
  with caplog.at_level("INFO"):
    found = evaluate(config, tmp_path / "unnamed", named={})
  assert numbers(found) == numbers(expected)
  assert f"alpha=0.25, beta={BETA:g}" in caplog.text
  named = evaluate(config, tmp_path / "named", named={"alpha": 1.0})
  assert (named.alpha, named.beta) == (1.0, BETA)
  assert named.n_key_tokens < found.n_key_tokens


def test_results_on_other_texts_are_not_comparable(tmp_path, corpus, models):
  """As many documents, of the same names."""
  one = evaluate(corpus(TEXTS[:2]), tmp_path / "one")
  config = corpus(TEXTS[2:4])
  config.models = (str(models / "m2"),)
  other = evaluate(config, tmp_path / "other")
  message = r"'m1' and 'm2' differ in document 'd0' \(text, keys\): '\w{8}, "
  with pytest.raises(alike.NotComparable, match=message):
    comparison.compare_table([one, other], fmt="text")
  # The table of a run does not mix them either, and says so.
  table = comparison.run_table([other], [one, other])
  assert "\nm2 " in table and "\nm1 " not in table
  assert "left out: m1, of another run, which differs in document 'd0'" in table
  kept = evaluate(corpus(TEXTS[2:4], name="again"), tmp_path / "again")
  assert "\nm1 " in comparison.run_table([other], [kept, other])


def test_heat_maps_of_other_key_tokens_are_refused_by_field(tmp_path, corpus):
  config = corpus(TEXTS[:2])
  data = list(config.data.sources)
  result = evaluate(config, tmp_path / "work")
  options = dict(thresholds=(ALPHA, BETA), results=[result])

  def maps(name):
    return heatmap.heatmap_documents(
      tmp_path / name, data, "text", 2, **options
    )

  assert len(maps("corpus")) == 2
  corpus(TEXTS[:2], name="other", max_length=99)
  message = r"keys\.max_length: 99 and 4096"
  with pytest.raises(alike.NotComparable, match=message):
    maps("other")
  corpus(TEXTS[2:4], name="texts")
  with pytest.raises(alike.NotComparable, match=r"text of 'd0': '\w{8}' and"):
    maps("texts")


def test_what_key_tokens_and_corpus_share_is_evaluated_on_request(
  tmp_path, corpus, caplog
):
  """One text changed, one is gone, one is new."""
  config = corpus(TEXTS[:4])
  path = tmp_path / "now.jsonl"
  write_jsonl(path, [TEXTS[0], TEXTS[1] + ".", TEXTS[2]])
  path.write_text(path.read_text() + '{"id": "new", "text": "x"}\n')
  config.data.sources = (str(path),)
  with pytest.raises(ValueError, match="don't belong to this corpus"):
    evaluate(config, tmp_path / "work")
  with caplog.at_level("INFO"):
    found = evaluate(config, tmp_path / "work", intersection=True)
  assert [one.doc_id for one in found.documents] == ["d0", "d2"]
  assert (
    "2 documents are in the corpus and in the key tokens; left out: 1 only in "
    "the corpus, 1 only in the key tokens, 1 with another text"
  ) in caplog.text
  write_jsonl(path, ["y"])
  with pytest.raises(ValueError, match="none of 1 documents is among the 4"):
    evaluate(config, tmp_path / "work", intersection=True)


def test_a_document_that_is_not_finite_fails_alone(
  tmp_path, corpus, monkeypatch, caplog
):
  config = corpus(TEXTS[:4])
  expected = evaluate(config, tmp_path / "fresh")
  bad, score_long = TEXTS[2], scorer_lib.Scorer.score_long

  def with_one_overflow(self, jobs):
    for done in score_long(self, jobs):
      if isinstance(done, scorer_lib.Scores):
        if len(done.job.ids) == len(bad.encode()):
          long = done.long.copy()
          long[17] = np.nan
          done = dataclasses.replace(done, long=long)
      yield done

  monkeypatch.setattr(scorer_lib.Scorer, "score_long", with_one_overflow)
  found = evaluate(config, tmp_path / "work")
  failed = [one for one in found.documents if one.reason == "failed"]
  assert failed and found.n_documents_read == 4 - len(failed)
  assert "the log-prob of target 17 of" in failed[0].cause
  assert failed[0].doc_id in caplog.text
  assert any("were not read (failed" in line for line in found.warnings)
  assert found.key_coverage < expected.key_coverage
  # It is done nowhere, so that a sound model makes it good.
  monkeypatch.undo()
  assert numbers(evaluate(config, tmp_path / "work")) == numbers(expected)


class Crash(BaseException):
  """Ends a run as SIGKILL does: nothing catches it."""


def crash_at(monkeypatch, count):
  """Raises at the `count`-th write from now on, before it reaches the disk."""
  calls = []
  for name in ("replace", "fsync"):
    call = getattr(os, name)

    def counted(*args, call=call):
      calls.append(args)
      if len(calls) == count:
        raise Crash
      return call(*args)

    monkeypatch.setattr(os, name, counted)
  return calls


def test_a_crash_at_any_write_leaves_before_or_after(tmp_path, corpus, models):
  """Two documents with tokens, then two others in the same workdir."""
  first, second = corpus(TEXTS[:2], name="A"), corpus(TEXTS[2:4], name="B")
  first.eval.per_token = second.eval.per_token = True
  work = tmp_path / "work"
  before = evaluate(first, work)
  shutil.copytree(work, tmp_path / "saved")
  with pytest.MonkeyPatch.context() as monkeypatch:
    writes = crash_at(monkeypatch, 0)
    after = evaluate(second, work)
  assert len(writes) > 10
  for count in range(1, len(writes) + 1):
    shutil.rmtree(work)
    shutil.copytree(tmp_path / "saved", work)
    with pytest.MonkeyPatch.context() as monkeypatch:
      crash_at(monkeypatch, count)
      with pytest.raises(Crash):
        evaluate(second, work)
    try:
      (found,) = files.load_results(work)
      assert numbers(found) in (numbers(before), numbers(after)), count
    except ValueError as error:
      assert "documents/m1.parquet is not the one" in str(error)
    assert numbers(evaluate(second, work)) == numbers(after), count
    assert not list(work.rglob("*.tmp"))
    table = pq.read_table(work / "tokens" / "m1")
    assert table.num_rows == after.n_tokens
