"""What the first version wrote is read: a store, results, a ledger."""

import math
import pathlib
import shutil

import numpy as np
import pytest
from support.tiny_runs import make_config, passed, save_models

from longctx_jax.evaluation import files
from longctx_jax.evaluation import run as evaluate
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.scoring import run as score

BEFORE = pathlib.Path(__file__).parent / "golden" / "written_before"


def test_a_store_is_read_with_its_manifest_inside():
  store = store_lib.read_store(BEFORE)
  assert store.manifest.thresholds == Thresholds(0.5, -20.0)
  rows = list(store)
  assert [row.doc_id for row in rows] == [f"d{i}" for i in range(5)]
  for row in rows:
    benefit = row.long_log_probs - row.short_log_probs
    expected = (benefit > 0.5) & (row.long_log_probs > -20)
    np.testing.assert_array_equal(row.key_mask, expected)
    assert expected.any()


def test_results_are_read_with_their_documents():
  results = files.load_results(BEFORE)
  assert [result.name for result in results] == ["e0", "m1", "m2"]
  for result in results:
    nll = sum(one.key_nll_sum for one in result.documents)
    count = sum(one.n_key_tokens for one in result.documents)
    assert result.n_key_tokens == count > 0 and len(result.documents) == 5
    assert result.longppl == pytest.approx(math.exp(nll / count), rel=1e-12)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  save_models(folder, ["e0", "m1"])
  return folder


def test_a_run_goes_on_with_the_store_and_evaluates_anew(
  tmp_path, monkeypatch, models, scorers
):
  """Every row is there; a ledger without hashes of the texts is done again."""
  workdir = tmp_path / "w"
  shutil.copytree(BEFORE, workdir)
  monkeypatch.chdir(models)
  config = make_config(
    data__sources=(str(BEFORE / "docs.jsonl"),), evaluator="e0"
  )
  assert len(score.score_corpus(config, workdir=workdir)) == 5
  assert passed(scorers) == 0
  before = {result.name: result for result in files.load_results(BEFORE)}["m1"]
  config.models, config.key_tokens = ("m1",), str(workdir)
  (result,) = evaluate.evaluate(config, workdir=workdir)
  assert passed(scorers) == result.n_tokens == before.n_tokens
  assert result.longppl == pytest.approx(before.longppl, rel=1e-6)
  assert result.ppl == pytest.approx(before.ppl, rel=1e-6)
