"""Configs as published give models of the published size."""

import copy
import math

import numpy as np
import published_models
import pytest

from longctx_jax.model import config as config_lib
from longctx_jax.model import hf, inspection, names


def published(name):
  """(number of parameters, config) of a published model."""
  count, fields = published_models.MODELS[name]
  fields = copy.deepcopy(fields)
  scaling = fields["rope_scaling"] if "rope_scaling" in fields else None
  for factor, last in (("short_factor", 2.84), ("long_factor", 64.84)):
    if scaling and factor in scaling:
      # The published ones rise to these.
      scaling[factor] = np.geomspace(1, last, scaling[factor]).tolist()
  return count, config_lib.from_hf(fields, source=name)


@pytest.mark.parametrize("name", published_models.MODELS)
def test_a_published_config_gives_its_model(name):
  """Cases F2: all fields are understood, all parameters are there."""
  count, config = published(name)
  # As transformers 4 and 5 read it, and as we do.
  assert config_lib.from_hf(config_lib.to_hf(config), source="ours") == config
  assert not inspection.odd_tables(config)
  shapes = hf.parameter_shapes(config)
  assert sum(map(math.prod, shapes.values())) == count
  tensors = hf.tensor_shapes(names.parameter_table(config, shapes), shapes)
  assert sum(map(math.prod, tensors.values())) == count
