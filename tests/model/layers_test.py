"""The small parts of a block, against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx_jax import testing
from longctx_jax.model import layers, sharding


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


def make_linear(rng, dtype):
  module = layers.Linear(40, 24, bias=False, dtype=dtype)
  module.kernel[...] = jnp.asarray(rng.normal(size=(40, 24)), dtype)
  return module, jnp.asarray(rng.normal(size=(2, 7, 40)), dtype)


def test_a_bfloat16_product_is_rounded_once_and_so_are_its_gradients(rng):
  # cases D1
  module, x = make_linear(rng, jnp.bfloat16)
  d_out = jnp.asarray(rng.normal(size=(2, 7, 24)), jnp.bfloat16)
  graphdef, params = nnx.split(module)
  out, pull = jax.vjp(lambda p, x: nnx.merge(graphdef, p)(x), params, x)
  d_params, d_x = pull(d_out)
  x, d_out, kernel = (
    np.asarray(part, np.float64) for part in (x, d_out, module.kernel[...])
  )
  expected = {
    "out": (out, x @ kernel),
    "d_x": (d_x, d_out @ kernel.T),
    "d_kernel": (
      d_params["kernel"][...],
      np.einsum("bti,bto->io", x, d_out),
    ),
  }
  for name, (got, exact) in expected.items():
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
      np.asarray(got, np.float64), exact, rtol=2**-8, atol=1e-5, err_msg=name
    )


def products(dtype):
  """(dtypes of the inputs, of the output) of a Linear's products."""
  module, x = make_linear(np.random.default_rng(0), dtype)
  graphdef, params = nnx.split(module)

  def loss(params, x):
    return nnx.merge(graphdef, params)(x).astype(jnp.float32).sum()

  jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(params, x)
  found = []

  def walk(jaxpr):
    for eqn in jaxpr.eqns:
      if eqn.primitive.name == "dot_general":
        found.append(tuple(v.aval.dtype.name for v in eqn.invars + eqn.outvars))
      for value in eqn.params.values():
        inner = getattr(value, "jaxpr", value)
        if hasattr(inner, "eqns"):
          walk(inner)

  walk(jaxpr.jaxpr)
  return found


@pytest.mark.parametrize(
  ("on_cpu", "out"), [(True, "float32"), (False, "bfloat16")]
)
def test_products_of_bfloat16_give_float32_where_it_costs_nothing(
  monkeypatch, on_cpu, out
):
  """On a CPU, and those that are summed over devices: a kernel's gradient."""
  monkeypatch.setattr(sharding, "on_cpu", lambda: on_cpu)
  narrow = ("bfloat16", "bfloat16")
  assert sorted(products(jnp.bfloat16)) == sorted(
    [(*narrow, out), (*narrow, out), (*narrow, "float32")]
  )
  assert products(jnp.float32) == [("float32",) * 3] * 3


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"fsdp": 2, "tensor": 4}])
@pytest.mark.parametrize("axes", [layers.INTO, layers.OUT_OF])
def test_products_of_shards_are_rounded_once(monkeypatch, rng, sizes, axes):
  monkeypatch.setattr(sharding, "on_cpu", lambda: False)
  mesh = sharding.make_mesh(sizes)
  kernel, x, d_out = (
    jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    for shape in ((64, 48), (8, 5, 64), (8, 5, 48))
  )
  linear = layers.Linear(64, 48, bias=False, dtype=jnp.bfloat16, axes=axes)
  graphdef, params = nnx.split(linear)

  @jax.jit
  def run(kernel, x, d_out):
    def apply(kernel, x):
      params["kernel"] = params["kernel"].replace(kernel)
      return nnx.merge(graphdef, params)(x)

    out, pull = jax.vjp(apply, kernel, x)
    return out, *pull(d_out)

  split = sharding.batch_sharding(mesh)
  place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
  with jax.set_mesh(mesh):
    got = run(jax.device_put(kernel, place), *jax.device_put((x, d_out), split))
  assert got[1].sharding.is_equivalent_to(place, 2)
  kernel, x, d_out = (np.asarray(a, np.float64) for a in (kernel, x, d_out))
  exact = (
    x @ kernel, np.einsum("bti,bto->io", x, d_out), d_out @ kernel.T
  )  # fmt: skip
  for a, b in zip(got, exact, strict=True):
    np.testing.assert_allclose(
      np.asarray(a, np.float64), b, rtol=2**-8, atol=1e-5
    )
