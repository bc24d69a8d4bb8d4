import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx_jax import testing
from longctx_jax.model import moe, sharding

CONFIG = testing.tiny_config(
  model_type="mixtral",
  num_experts=5,
  experts_per_token=2,
  expert_dim=24,
  norm_topk=True,
)


def make(config=CONFIG, *, skew=0.0):
  """A layer with kernels far from 0; `skew` favours the first expert."""
  layer = moe.Experts(config, dtype=jnp.float32)
  graphdef, params = nnx.split(layer)
  rng = np.random.default_rng(0)
  params = jax.tree.map(
    lambda kernel: jnp.asarray(rng.normal(0, 0.2, kernel.shape), kernel.dtype),
    params,
  )
  kernel = params["router"]["kernel"]
  params["router"]["kernel"] = kernel.replace(kernel[...].at[:, 0].add(skew))
  return graphdef, params


def definition(params, x, config):
  """Token by token in float64."""
  params = jax.tree.map(lambda p: np.asarray(p, np.float64), params)
  router, gate, up, down = (
    params[name]["kernel"][...]
    for name in ("router", "gate_proj", "up_proj", "down_proj")
  )
  rows = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
  out = np.zeros_like(rows)
  for t, row in enumerate(rows):
    logits = row @ router
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    chosen = np.argsort(-probs)[: config.experts_per_token]
    weights = probs[chosen]
    if config.norm_topk:
      weights /= weights.sum()
    for weight, e in zip(weights, chosen, strict=True):
      hidden = row @ gate[e]
      hidden = hidden / (1 + np.exp(-hidden)) * (row @ up[e])
      out[t] += weight * (hidden @ down[e])
  return out.reshape(x.shape)


@functools.partial(jax.jit, static_argnums=0)
def apply(graphdef, params, x):
  return nnx.merge(graphdef, params)(x)


@pytest.fixture
def x(rng):
  return jnp.asarray(rng.normal(size=(2, 19, CONFIG.embed_dim)), jnp.float32)


@pytest.mark.parametrize(("block", "norm_topk"), [(4, True), (128, False)])
def test_experts_are_the_definition(monkeypatch, x, block, norm_topk):
  monkeypatch.setattr(moe, "_BLOCK", block)
  config = dataclasses.replace(CONFIG, norm_topk=norm_topk)
  graphdef, params = make(config)
  got = apply(graphdef, params, x)
  np.testing.assert_allclose(got, definition(params, x, config), atol=1e-5)
  assert np.abs(got).max() > 0.1


@pytest.mark.parametrize("skew", [0.0, 0.1])
def test_blocks_equal_ragged_dot_in_value_and_gradient(monkeypatch, x, skew):
  """What runs here against what runs on TPU; also with experts left idle."""
  monkeypatch.setattr(moe, "_BLOCK", 4)
  graphdef, params = make(skew=skew)
  x = jnp.abs(x) if skew else x

  def graded():
    def loss(params, x):
      return (nnx.merge(graphdef, params)(x) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, x)

  by_blocks = graded()
  monkeypatch.setattr(moe, "_block_product", moe._ragged_product)
  by_ragged_dot = graded()
  leaves = zip(*map(jax.tree.leaves, (by_blocks, by_ragged_dot)), strict=True)
  for a, b in leaves:
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
  assert np.abs(by_blocks[1][0]["router"]["kernel"][...]).max() > 1e-4


def test_no_expert_runs_on_tokens_of_another(x):
  """0 x NaN is NaN: an expert of NaN shows where it is multiplied."""
  graphdef, params = make()
  healthy = apply(graphdef, params, x)
  for name in ("gate_proj", "up_proj", "down_proj"):
    kernel = params[name]["kernel"]
    params[name]["kernel"] = kernel.replace(kernel[...].at[3].set(jnp.nan))
  logits = x @ params["router"]["kernel"][...]
  goes_there = (jax.lax.top_k(logits, 2)[1] == 3).any(-1)
  assert 0 < goes_there.sum() < goes_there.size
  got = apply(graphdef, params, x)
  np.testing.assert_array_equal(jnp.isnan(got).all(-1), goes_there)
  np.testing.assert_array_equal(got[~goes_there], healthy[~goes_there])


def test_each_shard_routes_its_own_rows(rng):
  config = dataclasses.replace(CONFIG, embed_dim=8)
  graphdef, params = make(config)
  x = jnp.asarray(rng.normal(size=(4, 7, 8)), jnp.float32)

  def loss(params, x):
    out = nnx.merge(graphdef, params)(x)
    return (out**2).sum(), out

  graded = jax.value_and_grad(loss, (0, 1), has_aux=True)
  expected = jax.jit(graded)(params, x)
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
  with jax.set_mesh(mesh):
    got = jax.jit(graded)(params, x)
    # A batch that the mesh does not divide is routed by every shard.
    uneven = jax.jit(lambda *a: loss(*a)[1])(params, x[:3])
  leaves = zip(*map(jax.tree.leaves, (got, expected)), strict=True)
  for a, b in leaves:
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
  np.testing.assert_allclose(uneven, expected[0][1][:3], rtol=2e-4, atol=1e-5)
