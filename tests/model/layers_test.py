"""The small parts of a block, against their formulas in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.model import layers


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norm_is_the_formula_in_float32(plus_one, dtype, rng):
  x = jnp.asarray(rng.normal(0, 3, (2, 5, 8)), dtype)
  norm = layers.RMSNorm(8, eps=1e-5, plus_one=plus_one, dtype=dtype)
  scale = jnp.asarray(rng.normal(1, 0.2, 8), dtype)
  norm.scale[...] = scale
  wide, factor = np.asarray(x, np.float64), np.asarray(scale, np.float64)
  rms = np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
  expected = wide / rms * (factor + plus_one)
  got = norm(x)
  assert got.dtype == dtype
  # One cast at the end: half a unit in the last place of bfloat16 is 2^-9.
  tolerance = 2**-8 if dtype == jnp.bfloat16 else 1e-6
  np.testing.assert_allclose(np.asarray(got, float), expected, tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_map_has_the_bias_it_is_given(bias, rng):
  linear = layers.Linear(3, 4, bias=bias, dtype=jnp.float32)
  kernel = rng.normal(size=(3, 4))
  linear.kernel[...] = jnp.asarray(kernel, jnp.float32)
  if bias:
    linear.bias[...] = jnp.arange(4.0)
  x = rng.normal(size=(2, 5, 3))
  expected = x @ kernel + (np.arange(4) if bias else 0)
  got = linear(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_the_mlp_is_gated(activation, rng):
  config = testing.tiny_config(activation=activation)
  mlp = layers.Mlp(config, dtype=jnp.float32)
  kernels = {
    name: rng.normal(0, 0.3, getattr(mlp, name).kernel.shape)
    for name in ("gate_proj", "up_proj", "down_proj")
  }
  for name, kernel in kernels.items():
    getattr(mlp, name).kernel[...] = jnp.asarray(kernel, jnp.float32)
  x = rng.normal(size=(1, 3, config.embed_dim))
  gate = x @ kernels["gate_proj"]
  if activation == "silu":
    gate = gate / (1 + np.exp(-gate))
  else:
    cubic = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    gate = 0.5 * gate * (1 + np.tanh(cubic))
  expected = (gate * (x @ kernels["up_proj"])) @ kernels["down_proj"]
  got = mlp(jnp.asarray(x, jnp.float32))
  np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
