"""A model that is ready: its logits, the same weights seen otherwise."""

import dataclasses

import jax
import numpy as np
import pytest
from support import definition

from longctx_jax import testing
from longctx_jax.model import loaded, sharding


@pytest.fixture(scope="module")
def model():
  # Two devices: rows that they do not divide are padded.
  mesh = sharding.make_mesh({"fsdp": 2}, jax.devices()[:2])
  return testing.tiny_model(mesh=mesh)


def test_logits_are_those_of_each_row_alone(model):
  ids = np.random.default_rng(0).integers(0, 256, (3, 7)).astype(np.int32)
  logits = np.asarray(model.logits(ids), np.float64)
  assert logits.shape == (3, 7, model.config.vocab_size)
  normed = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  for row, own in zip(ids, normed, strict=True):
    got = own[np.arange(6), row[1:]]
    np.testing.assert_allclose(got, definition.log_probs(model, row), atol=1e-5)


def test_limited_attention_keeps_the_weights(model):
  limited = model.with_attention(window=4, sink_len=1)
  assert limited.params is model.params
  assert limited.checksum == model.checksum
  assert limited.config.describe_attention() == "first 1 + last 4"
  ids = np.arange(12, dtype=np.int32)[None]
  both = [np.asarray(one.logits(ids))[0] for one in (model, limited)]
  np.testing.assert_allclose(both[0][:5], both[1][:5], atol=1e-5)
  assert np.abs(both[0][-1] - both[1][-1]).max() > 1e-3


def test_text_needs_a_tokenizer(model):
  loaded.require_tokenizer(model)
  with pytest.raises(ValueError, match="tiny-0 has no tokenizer files"):
    loaded.require_tokenizer(dataclasses.replace(model, tokenizer=None))
