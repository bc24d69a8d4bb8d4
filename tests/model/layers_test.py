import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx_jax.model import layers, sharding


def linear(rng, dtype):
  module = layers.Linear(40, 24, bias=False, dtype=dtype, rngs=nnx.Rngs(0))
  module.kernel[...] = jnp.asarray(rng.normal(size=(40, 24)), dtype)
  return module, jnp.asarray(rng.normal(size=(2, 7, 40)), dtype)


def test_a_bfloat16_product_is_rounded_once_and_so_are_its_gradients(rng):
  # cases D1
  module, x = linear(rng, jnp.bfloat16)
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
  module, x = linear(np.random.default_rng(0), dtype)
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
def test_products_of_bfloat16_give_float32_on_a_cpu_alone(
  monkeypatch, on_cpu, out
):
  monkeypatch.setattr(sharding, "on_cpu", lambda: on_cpu)
  assert products(jnp.bfloat16) == [("bfloat16", "bfloat16", out)] * 3
  assert products(jnp.float32) == [("float32",) * 3] * 3
