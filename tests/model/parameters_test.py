"""Names and shapes of parameters, known before any is made."""

import jax
import jax.numpy as jnp
import pytest

from longctx_jax import testing
from longctx_jax.model import parameters


@pytest.mark.parametrize("tied", [True, False])
def test_shapes_are_those_of_the_model_that_is_loaded(tied, mesh):
  config = testing.tiny_config(tied=tied)
  model = testing.tiny_model(config, mesh=mesh)
  found = parameters.flatten(model.params)
  assert {n: leaf.shape for n, leaf in found.items()} == (
    parameters.parameter_shapes(config)
  )
  assert ("output" in found) != tied
  layers = [leaf for name, leaf in found.items() if name.startswith("layers.")]
  assert layers and {leaf.shape[0] for leaf in layers} == {config.num_layers}


def test_an_abstract_model_holds_no_array_and_is_made_once():
  config, dtype = testing.tiny_config(), jnp.dtype(jnp.bfloat16)
  graphdef, params = parameters.abstract_model(config, dtype)
  leaves = parameters.flatten(params).values()
  assert {leaf.dtype for leaf in leaves} == {dtype}
  values = [leaf.get_value() for leaf in leaves]
  assert all(isinstance(value, jax.ShapeDtypeStruct) for value in values)
  assert parameters.abstract_model(testing.tiny_config(), dtype)[0] is graphdef
