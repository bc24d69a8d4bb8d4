"""Kernels in 8 bits against NumPy: rounding, products, shards."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx_jax import testing
from longctx_jax.checkpoints import weights
from longctx_jax.model import int8, layers, moe, parameters, sharding
from longctx_jax.training import state


def rounded(kernel):
  """(integers, scale, what they stand for), in float64."""
  kernel = np.asarray(kernel, np.float64)
  highest = np.abs(kernel).max(-2)
  scale = np.where(highest == 0, 1, highest / 127)
  values = np.rint(kernel / scale[..., None, :])
  return values, scale, values * scale[..., None, :]


def test_rounding_is_the_formula(rng):
  kernel = rng.normal(size=(3, 40, 24)).astype(np.float32)
  kernel[1, :, 5] = 0
  kernel[2, 7, 3] = 50  # An outlier costs its own channel alone.
  found = int8.quantise(jnp.asarray(kernel))
  values, scale, stands_for = rounded(kernel)
  assert found.values.dtype == jnp.int8 and found.shape == kernel.shape
  np.testing.assert_array_equal(found.values, values)
  np.testing.assert_allclose(found.scale, scale, rtol=1e-6)
  assert np.abs(values).max(-2).min() == 0  # The channel of zeros.
  assert sorted(set(np.abs(values).max(-2).ravel())) == [0, 127]
  off = np.abs(kernel - stands_for)
  assert (off <= scale[:, None] * 0.5001).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_damaged_channel_shows_and_no_other(bad, rng):
  kernel = rng.normal(size=(8, 4)).astype(np.float32)
  kernel[3, 2] = bad
  linear = layers.Linear(8, 4, bias=False, dtype=jnp.float32)
  linear.kernel = nnx.Param(int8.quantise(jnp.asarray(kernel)))
  out = linear(jnp.ones((5, 8)))
  np.testing.assert_array_equal(np.isfinite(out).all(0), [1, 1, 0, 1])


@pytest.mark.parametrize(
  ("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 2**-8)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_map_multiplies_what_the_integers_stand_for(
  dtype, tolerance, bias, rng
):
  linear = layers.Linear(40, 24, bias=bias, dtype=dtype)
  kernel = rng.normal(size=(40, 24)).astype(np.float32)
  linear.kernel = nnx.Param(int8.quantise(jnp.asarray(kernel)))
  x = jnp.asarray(rng.normal(size=(2, 7, 40)), dtype)
  expected = np.asarray(x, np.float64) @ rounded(kernel)[2]
  got = linear(x)
  assert got.dtype == dtype
  # One rounding at the end, as of a plain kernel.
  np.testing.assert_allclose(
    np.asarray(got, np.float64), expected, rtol=tolerance, atol=1e-5
  )


CONFIGS = {
  "dense": testing.tiny_config(
    vocab_size=264, tied=False, qkv_bias=True, num_heads=4, num_kv_heads=2
  ),
  "experts": testing.tiny_config(
    vocab_size=264,
    model_type="mixtral",
    num_experts=4,
    experts_per_token=2,
    expert_dim=24,
    norm_topk=True,
  ),
}


class Dequantised(testing.RandomSource):
  """The checkpoint with each kernel at what its integers stand for."""

  def __init__(self, config):
    super().__init__(config, seed=0)
    for name, tensor in self._tensors.items():
      if re.fullmatch(r".*(_proj|\.w\d)\.weight", name):
        tensor[...] = rounded(tensor.T)[2].T


def load(source, config, mesh, **options):
  graphdef, params = weights.load_parameters(
    source, config, dtype=jnp.float32, mesh=mesh, **options
  )
  return dataclasses.replace(
    testing.tiny_model(config, mesh=mesh), graphdef=graphdef, params=params
  )


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
  "sizes", [{"fsdp": 1}, {"data": 2, "fsdp": 2, "tensor": 2}]
)
def test_a_model_is_that_of_the_dequantised_checkpoint(kind, sizes, rng):
  """Through the scanned stack, the experts' blocks and every axis of a mesh."""
  config = CONFIGS[kind]
  one = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1])
  devices = jax.devices()[: int(np.prod(list(sizes.values())))]
  mesh = sharding.make_mesh(sizes, devices)
  source = testing.RandomSource(config, seed=0)
  model = load(source, config, mesh, rounded=True)
  ids = rng.integers(0, 256, (4, 33))
  got = model.logits(ids)
  expected = load(Dequantised(config), config, one).logits(ids)
  np.testing.assert_allclose(got, expected, atol=1e-4)
  plain = load(source, config, one).logits(ids)
  assert np.abs(plain - expected).max() > 1e-3


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_is_rounded_and_where_it_lives(kind):
  config = CONFIGS[kind]
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  source = testing.RandomSource(config, seed=0)
  model = load(source, config, mesh, rounded=True)
  flat = parameters.flatten(model.params)
  kinds = {
    name: isinstance(leaf.get_value(), int8.Int8Kernel)
    for name, leaf in flat.items()
  }
  stay = ("embedding", "output", "norm.scale", ".bias", "router.kernel")
  assert all(kinds[name] != name.endswith(stay) for name in kinds)
  assert sum(kinds.values()) == 7
  for name in ("up_proj", "down_proj"):
    kernel = flat[f"layers.mlp.{name}.kernel"].get_value()
    values = kernel.values.addressable_shards
    scales = kernel.scale.addressable_shards
    for part, scale in zip(values, scales, strict=True):
      # Each device has the scales of its own channels, and no others.
      assert part.index[-1] == scale.index[-1]
      assert part.data.shape[-1] == scale.data.shape[-1]
  # Shards round as one device does.
  one = sharding.make_mesh({"fsdp": 1}, jax.devices()[:1])
  alone = load(source, config, one, rounded=True)
  pairs = zip(*map(jax.tree.leaves, (model.params, alone.params)), strict=True)
  for a, b in pairs:
    np.testing.assert_array_equal(a, b)


def test_ragged_dot_multiplies_what_the_blocks_do(monkeypatch, rng):
  """What runs on TPU against what runs here."""
  config = CONFIGS["experts"]
  layer = moe.Experts(config, dtype=jnp.float32)
  graphdef, params = nnx.split(layer)
  params = jax.tree.map(
    lambda leaf: jnp.asarray(rng.normal(0, 0.2, leaf.shape), leaf.dtype), params
  )
  for name in ("gate_proj", "up_proj", "down_proj"):
    kernel = params[name]["kernel"]
    params[name]["kernel"] = kernel.replace(int8.quantise(kernel[...]))
  x = jnp.asarray(rng.normal(size=(2, 19, config.embed_dim)), jnp.float32)

  def apply():
    return jax.jit(lambda p, x: nnx.merge(graphdef, p)(x))(params, x)

  by_blocks = apply()
  monkeypatch.setattr(moe, "_block_product", moe._ragged_product)
  np.testing.assert_allclose(apply(), by_blocks, atol=1e-5)
  assert np.abs(by_blocks).max() > 0.1


def test_nothing_is_trained_from_int8():
  config = CONFIGS["dense"]
  mesh = sharding.make_mesh({"fsdp": -1})
  source = testing.RandomSource(config, seed=0)
  model = load(source, config, mesh, rounded=True)
  with pytest.raises(ValueError, match="int8.*scor"):
    state.create(model, None)
