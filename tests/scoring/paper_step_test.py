"""The definition as a program, and the scorer that must agree with it."""

import jax
import numpy as np
import pytest
from support import definition
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.model import sharding
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import paper_step
from longctx_jax.scoring import scorer as scorer_lib

WINDOWS = Windows(48, 16)


def ids_of(n):
  return np.random.default_rng(n).integers(0, 256, n).astype(np.int32)


@pytest.fixture(scope="module")
def model():
  return testing.tiny_model(mesh=one_device_mesh())


@pytest.fixture(scope="module")
def step(model):
  return paper_step.make_paper_step(model, WINDOWS)


@pytest.mark.parametrize("n", [2, 48, 49, 64, 65, 130])
def test_it_is_the_papers_definition(model, step, n):
  """Cases C1: nothing scored short, the edges of windows, several."""
  ids = ids_of(n)
  long, short = step(model.params, ids)
  expected = definition.short_log_probs(model, ids, short_len=48, stride=16)
  np.testing.assert_allclose(
    long, definition.log_probs(model, ids), atol=1e-5, rtol=0
  )
  np.testing.assert_allclose(short, expected, atol=1e-5, rtol=0)
  assert np.isnan(short).sum() == min(n - 1, 47)


def test_the_pooled_scorer_agrees_with_it_whatever_the_mesh(model, step):
  """Buckets, pools and eight devices: windows of all documents mixed."""
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  config = testing.tiny_config(vocab_size=264)
  split = testing.tiny_model(config, mesh=mesh)
  step_on_mesh = paper_step.make_paper_step(split, WINDOWS)
  scorer = scorer_lib.make_scorer(split, WINDOWS, window_batch=2)
  jobs = [scorer_lib.Job(n, ids_of(n)) for n in (66, 130)]
  for scores in scorer.score(jobs):
    with jax.set_mesh(mesh):
      found = step_on_mesh(split.params, scores.job.ids)
    for got, expected in zip(found, (scores.long, scores.short), strict=True):
      np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)
