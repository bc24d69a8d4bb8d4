"""Configs as published give models of the published size."""

import copy
import math

import published_models
import pytest

from longctx_jax.model import config as config_lib
from longctx_jax.model import hf, names


def published(name):
  """(number of parameters, config) of a published model."""
  count, fields = published_models.MODELS[name]
  fields = copy.deepcopy(fields)
  for factor in ("short_factor", "long_factor"):
    if factor in (
      fields["rope_scaling"] or {} if "rope_scaling" in fields else {}
    ):
      fields["rope_scaling"][factor] = [1.0] * fields["rope_scaling"][factor]
  return count, config_lib.from_hf(fields, source=name)


@pytest.mark.parametrize("name", published_models.MODELS)
def test_a_published_config_gives_a_model_of_the_published_size(name):
  """The fields are all understood, and every tensor has its shape."""
  count, config = published(name)
  shapes = hf.parameter_shapes(config)
  assert sum(map(math.prod, shapes.values())) == count
  tensors = hf.tensor_shapes(names.parameter_table(config, shapes), shapes)
  assert sum(map(math.prod, tensors.values())) == count
