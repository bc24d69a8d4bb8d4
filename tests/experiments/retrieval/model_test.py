"""The small model: its start, and the same weights under another table."""

import jax
import numpy as np
import pytest

from longctx_jax.experiments.retrieval import model as model_lib
from longctx_jax.model import parameters

CONFIG = model_lib.make_config(
  vocab_size=132,
  embed_dim=64,
  num_layers=2,
  num_heads=2,
  mlp_dim=96,
  theta=10000.0,
  max_position=64,
)


@pytest.fixture(scope="module")
def model():
  return model_lib.make_model(CONFIG, seed=3)


def test_the_start_has_the_stated_deviations(model):
  """Embeddings times sqrt(D); half the layers' noise into the residual."""
  assert (CONFIG.embed_scale, CONFIG.head_dim, CONFIG.tied) == (8.0, 32, False)
  expected = {
    "embedding": 0.02,
    "output": 0.5 / 64**0.5,
    "layers.attention.q_proj.kernel": 1 / 64**0.5,
    "layers.attention.o_proj.kernel": 1 / 64**0.5 / 2,
    "layers.mlp.up_proj.kernel": 1 / 64**0.5,
    "layers.mlp.down_proj.kernel": 1 / 96**0.5 / 2,
  }
  found = parameters.flatten(model.params)
  for name, deviation in expected.items():
    assert np.std(found[name][...]) == pytest.approx(deviation, rel=0.05), name
  assert all((x[...] == 1).all() for n, x in found.items() if "scale" in n)


def test_a_seed_is_a_start(model):
  same, other = (model_lib.make_model(CONFIG, seed=seed) for seed in (3, 4))
  jax.tree.map(np.testing.assert_array_equal, same.params, model.params)
  assert (
    other.params["embedding"][...] != model.params["embedding"][...]
  ).any()


def test_another_base_changes_the_table_alone(model):
  wide = model_lib.with_theta(model, 80000.0)
  assert wide.params is model.params
  assert wide.config.rope.theta == 80000.0 and model.config == CONFIG
  assert wide.graphdef != model.graphdef
