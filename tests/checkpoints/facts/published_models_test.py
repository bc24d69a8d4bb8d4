"""Configs as published give models of the published size."""

import math

import pytest
from support import published_models

from longctx_jax.checkpoints import tensor_map, weight_faults, weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import parameters


@pytest.mark.parametrize("name", published_models.MODELS)
def test_a_published_config_gives_its_model(name):
  """Cases F2: all fields are understood, all parameters are there."""
  count, config = published_models.read(name)
  # As transformers 4 and 5 read it, and as we do.
  assert config_json.from_hf(config_json.to_hf(config), source="ours") == config
  assert not weight_faults.odd_tables(config)
  shapes = parameters.parameter_shapes(config)
  assert sum(map(math.prod, shapes.values())) == count
  tensors = weights.tensor_shapes(
    tensor_map.parameter_table(config, shapes), shapes
  )
  assert sum(map(math.prod, tensors.values())) == count
