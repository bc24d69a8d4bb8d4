"""Configs as published give models of the published size."""

import math

import published_models
import pytest

from longctx_jax.model import config as config_lib
from longctx_jax.model import hf, inspection, names


@pytest.mark.parametrize("name", published_models.MODELS)
def test_a_published_config_gives_its_model(name):
  """Cases F2: all fields are understood, all parameters are there."""
  count, config = published_models.read(name)
  # As transformers 4 and 5 read it, and as we do.
  assert config_lib.from_hf(config_lib.to_hf(config), source="ours") == config
  assert not inspection.odd_tables(config)
  shapes = hf.parameter_shapes(config)
  assert sum(map(math.prod, shapes.values())) == count
  tensors = hf.tensor_shapes(names.parameter_table(config, shapes), shapes)
  assert sum(map(math.prod, tensors.values())) == count
