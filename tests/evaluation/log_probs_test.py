"""The log-probs that an evaluation keeps: whole, once, and of this run."""

import dataclasses
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from support.tiny_runs import (
  make_config,
  make_texts,
  passed,
  save_models,
  share_passes,
  write_jsonl,
)

from longctx_jax.evaluation import files, foreign, log_probs
from longctx_jax.evaluation import run as run_lib
from longctx_jax.evaluation.passes import Evaluated, unscored
from longctx_jax.key_tokens import store
from longctx_jax.scoring import run as score
from longctx_jax.scoring.protocol import Prepared

TEXTS = make_texts()

pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def made(tmp_path_factory, compiled):
  """A folder with m0 to m2, corpus.jsonl and, under keys/, its key tokens."""
  folder = tmp_path_factory.mktemp("made")
  save_models(folder, ["m0", "m1", "m2"])
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    path = write_jsonl(folder / "corpus.jsonl", TEXTS)
    config = make_config(data__sources=(path,), evaluator=str(folder / "m0"))
    score.score_corpus(config, workdir=folder / "keys")
  return folder


@pytest.fixture
def config(made):
  return make_config(
    data__sources=(str(made / "corpus.jsonl"),),
    key_tokens=str(made / "keys"),
    models=(str(made / "m1"),),
  )


def read(workdir, name="m1"):
  return list(log_probs.read(log_probs.path_of(workdir, name)))


def assert_same(kept, others):
  assert [one.doc_id for one in kept] == [one.doc_id for one in others]
  for one, other in zip(kept, others, strict=True):
    np.testing.assert_array_equal(one.offsets, other.offsets)
    np.testing.assert_array_equal(one.log_probs, other.log_probs)


def test_an_evaluation_keeps_each_target_in_one_file(tmp_path, config):
  (result,) = run_lib.evaluate(config, workdir=tmp_path)
  folder = tmp_path / "log_probs"
  assert [path.name for path in folder.iterdir()] == ["m1.parquet"]
  kept = read(tmp_path)
  assert [one.doc_id for one in kept] == ["d0", "d1", "d2", "d3"]
  for one, document in zip(kept, result.documents, strict=True):
    assert one.text_sha256 == document.text_sha256
    assert len(one.log_probs) == document.n_tokens
    assert -one.log_probs.sum() == pytest.approx(document.nll_sum, rel=1e-12)
    assert (np.diff(one.offsets[:, 0]) >= 0).all()


def test_they_are_read_as_those_of_another_engine(tmp_path, config):
  (own,) = run_lib.evaluate(config, workdir=tmp_path / "own")
  path = log_probs.path_of(tmp_path / "own", "m1")
  config.models = ()
  (result,) = run_lib.evaluate(
    config,
    workdir=tmp_path / "w",
    foreign=[foreign.open_log_probs(path, "again")],
  )
  for name in ("longppl", "ppl", "n_key_tokens", "key_coverage", "n_tokens"):
    assert getattr(result, name) == getattr(own, name)
  assert result.documents == own.documents


def test_a_target_takes_8_bytes_at_most(tmp_path, made, config):
  """Long documents: a file of four short ones is mostly its own schema."""
  rng = np.random.default_rng(0)
  keeper = log_probs.Keeper(tmp_path, "m", {})
  (keys, *_) = store.read_store(made / "keys")
  starts = np.cumsum(rng.integers(1, 9, 32_768))
  offsets = np.stack([starts, starts + rng.integers(1, 9, 32_768)], axis=1)
  wanted = []
  for i in range(3):
    one = dataclasses.replace(keys, doc_id=f"d{i}")
    done = Evaluated(
      one,
      unscored(one, "", "failed"),
      prepared=Prepared(np.arange(32_769), offsets, 0, 9, 9, False, ""),
      log_probs=-rng.exponential(2.0, 32_768).astype(np.float32),
    )
    keeper.add(done)
    wanted.append(log_probs.identity_of(one))
  rows, size = keeper.finish(wanted)
  assert rows == 3 and size / (3 * 32_768) < log_probs.BYTES_PER_TARGET


def stop_after(monkeypatch, count):
  """Ctrl-C once so many documents are in the ledger."""
  append = files.Ledger.append

  def stopping(self, line):
    append(self, line)
    if len(self.done) == count:
      raise KeyboardInterrupt

  monkeypatch.setattr(files.Ledger, "append", stopping)


def test_what_a_stopped_run_kept_stays(tmp_path, config, monkeypatch, scorers):
  run_lib.evaluate(config, workdir=tmp_path / "whole")
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    stop_after(patch, 2)
    run_lib.evaluate(config, workdir=tmp_path / "w")
  assert not log_probs.path_of(tmp_path / "w", "m1").exists()
  before = passed(scorers)
  run_lib.evaluate(config, workdir=tmp_path / "w")
  assert 0 < passed(scorers) - before < sum(map(len, TEXTS))
  assert_same(read(tmp_path / "w"), read(tmp_path / "whole"))
  assert len(list((tmp_path / "w" / "log_probs").iterdir())) == 1


def test_documents_that_come_and_go(tmp_path, made, config, scorers):
  """A corpus that grows at its front, then loses that: none is passed twice."""
  rows = (made / "corpus.jsonl").read_text().splitlines(keepends=True)
  part = tmp_path / "part.jsonl"
  part.write_text("".join(rows[1:]))
  config.data.sources = (str(part),)
  (small,) = run_lib.evaluate(config, workdir=tmp_path / "w", intersection=True)
  assert [one.doc_id for one in read(tmp_path / "w")] == ["d1", "d2", "d3"]
  config.data.sources = (str(made / "corpus.jsonl"),)
  run_lib.evaluate(config, workdir=tmp_path / "w")
  run_lib.evaluate(config, workdir=tmp_path / "fresh")
  assert_same(read(tmp_path / "w"), read(tmp_path / "fresh"))
  before = passed(scorers)
  config.data.sources = (str(part),)
  again = run_lib.evaluate(config, workdir=tmp_path / "w", intersection=True)
  assert again[0].documents_sha256 == small.documents_sha256
  assert [one.doc_id for one in read(tmp_path / "w")] == ["d1", "d2", "d3"]
  assert passed(scorers) == before


def test_other_weights_leave_nothing_of_the_former(tmp_path, made, config):
  model = tmp_path / "m1"
  shutil.copytree(made / "m1", model)
  config.models = (str(model),)
  run_lib.evaluate(config, workdir=tmp_path / "w")
  shutil.copytree(made / "m2", model, dirs_exist_ok=True)
  run_lib.evaluate(config, workdir=tmp_path / "w", overwrite=True)
  run_lib.evaluate(config, workdir=tmp_path / "fresh")
  assert_same(read(tmp_path / "w"), read(tmp_path / "fresh"))


def test_none_are_kept_where_none_are_wanted(tmp_path, config):
  run_lib.evaluate(config, workdir=tmp_path)
  config.eval.log_probs = False
  run_lib.evaluate(config, workdir=tmp_path)
  assert not log_probs.path_of(tmp_path, "m1").exists()
  # What is done is not done again for their sake.
  config.eval.log_probs = True
  run_lib.evaluate(config, workdir=tmp_path)
  assert not log_probs.path_of(tmp_path, "m1").exists()


def test_pieces_of_a_stopped_run_go_with_it(tmp_path, config, monkeypatch):
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    stop_after(patch, 2)
    run_lib.evaluate(config, workdir=tmp_path)
  folder = tmp_path / "log_probs"
  assert len(list(folder.rglob("*.parquet"))) == 2
  config.eval.log_probs = False
  run_lib.evaluate(config, workdir=tmp_path, overwrite=True)
  assert list(folder.iterdir()) == []


def test_groups_hold_many_documents_and_keep_their_order(
  tmp_path, config, monkeypatch
):
  run_lib.evaluate(config, workdir=tmp_path / "one")
  monkeypatch.setattr(log_probs, "_GROUP_TARGETS", 300)
  run_lib.evaluate(config, workdir=tmp_path / "w")
  path = log_probs.path_of(tmp_path / "w", "m1")
  assert pq.ParquetFile(path).num_row_groups == 2
  assert_same(read(tmp_path / "w"), read(tmp_path / "one"))
