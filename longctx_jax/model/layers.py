"""The small parts of a block: norm, linear map, dense MLP."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from longctx_jax.model import int8, sharding
from longctx_jax.model.config import ModelConfig

ACTIVATIONS = {
  "silu": jax.nn.silu,
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def _along_last(
  vector: Float[Array, " D"], x: Float[Array, "*S D"]
) -> Float[Array, "*R D"]:
  """The vector with as many axes as x: no rank is promoted silently."""
  return vector.reshape((1,) * (x.ndim - 1) + vector.shape)


@jax.custom_vjp
def _bfloat16_product(
  x: Float[Array, "*S I"], kernel: Float[Array, "I O"]
) -> Float[Array, "*S O"]:
  """x @ kernel, summed in float32 and rounded once; so are its gradients.

  A CPU's bfloat16 units give float32: a product that is to give bfloat16 is
  computed without them.
  """
  product = jnp.dot(x, kernel, preferred_element_type=jnp.float32)
  return product.astype(x.dtype)


def _bfloat16_product_forward(
  x: Float[Array, "*S I"], kernel: Float[Array, "I O"]
) -> tuple[Array, tuple[Array, Array]]:
  return _bfloat16_product(x, kernel), (x, kernel)


def _bfloat16_product_backward(
  saved: tuple[Array, Array], d_out: Float[Array, "*S O"]
) -> tuple[Array, Array]:
  x, kernel = saved
  d_kernel = jnp.einsum(
    "...i,...o->io", x, d_out, preferred_element_type=jnp.float32
  )
  return _bfloat16_product(d_out, kernel.T), d_kernel.astype(kernel.dtype)


_bfloat16_product.defvjp(_bfloat16_product_forward, _bfloat16_product_backward)


class RMSNorm(nnx.Module):
  """x / rms(x) * scale, in float32, cast once at the end.

  With `plus_one` the factor is 1 + scale, as Gemma stores it.
  """

  def __init__(self, dim: int, *, eps: float, plus_one: bool, dtype: DTypeLike):
    self.scale = nnx.Param(jnp.full((dim,), 0 if plus_one else 1, dtype))
    self.eps = eps
    self.shift = int(plus_one)

  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Normalises the last axis."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + self.eps)
    scale = _along_last(self.scale[...].astype(jnp.float32), x)
    return (normed * (self.shift + scale)).astype(x.dtype)


class Linear(nnx.Module):
  """x @ kernel (+ bias), kernel [in, out]."""

  def __init__(
    self, in_dim: int, out_dim: int, *, bias: bool, dtype: DTypeLike
  ):
    self.kernel = nnx.Param(jnp.zeros((in_dim, out_dim), dtype))
    if bias:
      self.bias = nnx.Param(jnp.zeros((out_dim,), dtype))
    self.has_bias = bias

  def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
    """Maps the last axis."""
    kernel = self.kernel.get_value()
    if isinstance(kernel, int8.Int8Kernel):
      x = int8.product(x, kernel)
    # Elsewhere a result in float32 would double what is written.
    elif x.dtype == kernel.dtype == jnp.bfloat16 and sharding.on_cpu():
      x = _bfloat16_product(x, kernel)
    else:
      x = x @ kernel
    return x + _along_last(self.bias[...], x) if self.has_bias else x


class Mlp(nnx.Module):
  """down(act(gate(x)) * up(x))."""

  def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
    kwargs = dict(bias=config.mlp_bias, dtype=dtype)
    self.gate_proj = Linear(config.embed_dim, config.mlp_dim, **kwargs)
    self.up_proj = Linear(config.embed_dim, config.mlp_dim, **kwargs)
    self.down_proj = Linear(config.mlp_dim, config.embed_dim, **kwargs)
    self.activation = config.activation

  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Maps each position by itself."""
    gate = ACTIVATIONS[self.activation](self.gate_proj(x))
    return self.down_proj(gate * self.up_proj(x))
