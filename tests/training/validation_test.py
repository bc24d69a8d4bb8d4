"""Held-out documents: the numbers of an evaluation, from programs kept."""

import dataclasses

import jax.numpy as jnp
import pytest
from support import records, tiny_runs
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.evaluation import passes, results
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import finder, scorer
from longctx_jax.text import corpus
from longctx_jax.training import validation

TEXT = "the quick brown fox jumps over the dog"


@pytest.fixture
def model():
  return testing.tiny_model(mesh=one_device_mesh())


@pytest.fixture
def held_out(model, tmp_path):
  """(store, corpus): two documents, every fifth target of one is key."""
  manifest = dataclasses.replace(
    finder.make_manifest(
      model,
      windows=Windows(8, 4),
      thresholds=records.make_row("ab", [-1.0], [-1.0]).manifest.thresholds,
      protocol="strict",
      max_length=64,
      over_length="truncate_end",
      detail="tokens",
    ),
    checksum="of another",
  )
  n = len(TEXT) - 1
  short = [-1.0 if t % 5 else -9.0 for t in range(n)]
  store = records.make_store(
    records.make_row(TEXT, [-1.0] * n, short, manifest=manifest),
    records.make_unscored("d1", "empty", manifest=manifest, doc_index=1),
  )
  path = tiny_runs.write_jsonl(tmp_path / "held_out.jsonl", [TEXT, ""])
  return store, corpus.open_corpus(path)


def test_each_model_gets_its_own_numbers_from_programs_compiled_once(
  model, held_out, monkeypatch
):
  make, made = scorer.make_scorer, []

  def counted(*arguments, **options):
    made.append(arguments)
    return make(*arguments, **options)

  monkeypatch.setattr(scorer, "make_scorer", counted)
  store, documents = held_out
  validator = validation.HeldOut(store, documents, dtype=jnp.float32)
  other = testing.tiny_model(seed=1, mesh=one_device_mesh())
  found = [validator.evaluate(one) for one in (model, other)]
  assert len(made) == 1
  assert found[0].ppl != found[1].ppl and found[0].n_key_tokens == 8
  for one, result in zip((model, other), found, strict=True):
    run = passes.Evaluation(make(one, Windows(8, 4)), store.manifest)
    pairs = [(keys, TEXT if keys.doc_id == "d0" else "") for keys in store]
    expected = results.summarise(
      [done.result for done in run.evaluate(pairs)],
      protocol_name="strict",
      self_evaluated=False,
    )
    assert result.ppl == pytest.approx(expected.ppl, rel=1e-6)
    assert result.longppl == pytest.approx(expected.longppl, rel=1e-6)


def test_other_documents_are_refused(held_out, tmp_path):
  store, _ = held_out
  path = tiny_runs.write_jsonl(tmp_path / "other.jsonl", [TEXT + ".", ""])
  with pytest.raises(ValueError, match=r"\('d0'\) with another text"):
    validation.HeldOut(store, corpus.open_corpus(path), dtype=jnp.float32)
