"""Policies for the backward pass: equal gradients, and what is run again."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import family_cases

from longctx_jax import testing
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import remat


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def gradient(graphdef, params, policy, backend):
  ids = jnp.arange(256)[None] % 250

  def total(params):
    module = nnx.merge(graphdef, params)
    hidden = module(ids, remat=policy, backend=backend)
    return (hidden * jnp.cos(hidden)).mean()

  return jax.grad(total)(params)


def test_every_policy_keeps_the_gradient_and_its_own_memory(mesh):
  config = testing.tiny_config(num_layers=6, windows=(0,) * 6)
  model = testing.tiny_model(config, mesh=mesh)
  compiled = {
    policy: gradient.lower(
      model.graphdef, model.params, policy, "blockwise"
    ).compile()
    for policy in remat.POLICIES
  }
  expected = compiled["none"](model.params)
  for policy in ("block", "attention"):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(
        a, b, rtol=0, atol=1e-5 * np.abs(a).max()
      ),
      expected,
      compiled[policy](model.params),
    )
  block, attention, everything = (
    compiled[policy].memory_analysis().temp_size_in_bytes
    for policy in remat.POLICIES
  )
  # Six layers of activations against one.
  assert block < everything / 2
  # And one more of its size for each layer, [1, 256, 4 x 10] and [1, 256, 4].
  kept = 6 * 256 * 44 * 4
  assert kept / 2 < attention - block < 2 * kept


def count(jaxpr, name):
  """How often a primitive occurs whose results are read, in loops too."""
  read = {id(v) for eqn in jaxpr.eqns for v in eqn.invars}
  read |= {id(v) for v in jaxpr.outvars}
  total = 0
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == name:
      total += any(id(v) in read for v in eqn.outvars)
      continue
    for value in jax.tree.leaves(
      list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
    ):
      inner = getattr(value, "jaxpr", value)
      total += count(inner, name) if hasattr(inner, "eqns") else 0
  return total


@pytest.mark.parametrize("name", ["llama", "qwen2"])
@pytest.mark.parametrize(
  ("backend", "kernel", "forward", "backward"),
  [
    ("blockwise", "while", 1, 1),
    ("splash", "pallas_call", 1, 2),
    ("cudnn", "dot_product_attention_fwd_wrapper", 1, 0),
  ],
)
@pytest.mark.usefixtures("interpreted", "pretended_cudnn")
def test_attention_is_run_again_by_one_policy_alone(
  mesh, name, backend, kernel, forward, backward
):
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  config = dataclasses.replace(config, head_dim=16)
  dtype = "bfloat16" if backend == "cudnn" else "float32"
  model = testing.tiny_model(config, mesh=mesh, dtype=jnp.dtype(dtype))
  kinds = len(set(config.layer_kinds))
  for policy in remat.POLICIES:
    jaxpr = jax.make_jaxpr(gradient, static_argnums=(0, 2, 3))(
      model.graphdef, model.params, policy, backend
    )
    again = policy == "block"
    expected = kinds * (forward * (1 + again) + backward)
    assert count(jaxpr.jaxpr, kernel) == expected, policy


def test_a_policy_that_is_none_is_named():
  with pytest.raises(ValueError, match="remat='all' is not one of block, att"):
    remat.apply_policy(lambda x: x, "all")
