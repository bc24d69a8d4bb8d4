"""The compiled programs of the experiment, against the definition."""

import numpy as np
import pytest
from support import definition

from longctx_jax import testing
from longctx_jax.experiments.retrieval import data
from longctx_jax.experiments.retrieval.language import Language
from longctx_jax.experiments.retrieval.passes import Passes
from longctx_jax.paper.windows import Windows
from longctx_jax.training.losses import LossConfig


@pytest.fixture
def passes(mesh):
  return Passes(testing.tiny_model(mesh=mesh))


@pytest.fixture(scope="module")
def documents():
  """More than go through a pass at once."""
  return data.make_documents(
    Language(), np.random.default_rng(0), count=18, seq_len=40,
    definitions=(2, 2), questions=(1, 2), layout="far",
  )  # fmt: skip


def log_probs(model, ids):
  """Log-probs [T, V] of all ids but the first."""
  logits = definition.logits(model, ids[:-1])
  return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_predictions_are_those_of_the_definition(passes, documents):
  nll, right = passes.predict(passes.model.params, documents)
  assert nll.shape == right.shape == documents.classes.shape
  for b in (0, 15, 16, 17):
    ids = documents.ids[b]
    expected = log_probs(passes.model, ids)
    picked = np.take_along_axis(expected, ids[1:, None], axis=1)[:, 0]
    np.testing.assert_allclose(nll[b], -picked, atol=2e-4)
    np.testing.assert_array_equal(right[b], expected.argmax(1) == ids[1:])
  # 16 documents, and the 2 that are left.
  assert len(passes.compiled) == 2
  passes.predict(passes.model.params, documents)
  assert len(passes.compiled) == 2


def test_the_short_context_is_that_of_the_windows(passes, documents):
  few = documents.take(0, 3)
  windows = Windows(8, 4)
  loss = LossConfig(weights="live", short_len=8, stride=4, gamma=5.0)
  long, short, mask = passes.contrast(passes.model.params, few, loss)
  nll, _ = passes.predict(passes.model.params, few)
  np.testing.assert_allclose(long, -nll, atol=2e-5)
  assert loss.windows == windows
  assert not mask[:, : windows.short_len - 1].any() and mask[:, 12:].all()
  assert (np.abs(long - short)[mask] > 1e-3).mean() > 0.9
