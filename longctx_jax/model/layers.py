"""The small parts of a block: norm, linear map, dense MLP."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from longctx_jax.model import sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.int8 import Int8Kernel

ACTIVATIONS = {
  "silu": jax.nn.silu,
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def _along_last(
  vector: Float[Array, " D"], x: Float[Array, "*S D"]
) -> Float[Array, "*R D"]:
  """The vector with as many axes as x: no rank is promoted silently."""
  return vector.reshape((1,) * (x.ndim - 1) + vector.shape)


# Which axes of the mesh split each dimension of a kernel [in, out]: of a map
# into heads or hidden units, and of one out of them.
INTO = (sharding.PARAMETER_AXES, "tensor")
OUT_OF = ("tensor", sharding.PARAMETER_AXES)
_Axis = str | tuple[str, ...] | None
_Axes = tuple[_Axis, _Axis]


def _multiply(
  x: Float[Array, "*S I"], kernel: Float[Array, "I O"], summed: _Axis
) -> Float[Array, "*S O"]:
  """x @ kernel, summed in float32 and rounded once.

  A CPU's bfloat16 units give float32: a product that is to give bfloat16 is
  computed without them. Elsewhere a result in float32 doubles what is written,
  and is asked for where shards of the summed dimension are added up: those of
  "tensor", over which alone a gathered kernel is split.
  """
  shards = sharding.axis_size("tensor") if summed == "tensor" else 1
  if not sharding.on_cpu() and shards == 1:
    return x @ kernel
  product = jnp.dot(x, kernel, preferred_element_type=jnp.float32)
  if shards > 1:
    # Before it is rounded.
    product = sharding.constrain(
      product, sharding.BATCH_AXES, *(None,) * (product.ndim - 1)
    )
  return product.astype(x.dtype)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _product(
  axes: _Axes, x: Float[Array, "*S I"], kernel: Float[Array, "I O"]
) -> Float[Array, "*S O"]:
  """x @ kernel, of which a shard is kept for the backward pass.

  Gradients are summed in float32, over devices too, and rounded once.
  """
  return _multiply(x, sharding.gather(kernel, axes), axes[0])


def _product_forward(
  axes: _Axes, x: Float[Array, "*S I"], kernel: Float[Array, "I O"]
) -> tuple[Array, tuple[Array, Array]]:
  return _product(axes, x, kernel), (x, kernel)


def _product_backward(
  axes: _Axes, saved: tuple[Array, Array], d_out: Float[Array, "*S O"]
) -> tuple[Array, Array]:
  x, kernel = saved
  d_kernel = jnp.einsum(
    "...i,...o->io", x, d_out, preferred_element_type=jnp.float32
  )
  d_kernel = sharding.constrain(d_kernel, *axes).astype(kernel.dtype)
  return _multiply(d_out, sharding.gather(kernel, axes).T, axes[1]), d_kernel


_product.defvjp(_product_forward, _product_backward)


def _int8_product(
  axes: _Axes, x: Float[Array, "*S I"], kernel: Int8Kernel
) -> Float[Array, "*S O"]:
  """x @ values * scale, summed and scaled in float32, rounded once.

  Bytes are what is gathered. All integers of a byte are bfloat16 numbers: the
  cast loses nothing, and XLA makes it on the way into the product.
  """
  values = sharding.gather(kernel.values, axes).astype(x.dtype)
  scale = sharding.gather(kernel.scale, axes[1:])
  product = jnp.dot(x, values, preferred_element_type=jnp.float32)
  return (product * _along_last(scale, product)).astype(x.dtype)


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
  """x @ kernel (+ bias), kernel [in, out] split over the mesh by `axes`."""

  def __init__(
    self,
    in_dim: int,
    out_dim: int,
    *,
    bias: bool,
    dtype: DTypeLike,
    axes: _Axes = (None, None),
  ):
    self.kernel = nnx.Param(jnp.zeros((in_dim, out_dim), dtype))
    if bias:
      self.bias = nnx.Param(jnp.zeros((out_dim,), dtype))
    self.has_bias = bias
    self.axes = axes

  def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
    """Maps the last axis."""
    kernel = self.kernel.get_value()
    multiply = _int8_product if isinstance(kernel, Int8Kernel) else _product
    x = multiply(self.axes, x, kernel)
    return x + _along_last(self.bias[...], x) if self.has_bias else x


class Mlp(nnx.Module):
  """down(act(gate(x)) * up(x))."""

  def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
    kwargs = dict(bias=config.mlp_bias, dtype=dtype)
    sizes = config.embed_dim, config.mlp_dim
    self.gate_proj = Linear(*sizes, axes=INTO, **kwargs)
    self.up_proj = Linear(*sizes, axes=INTO, **kwargs)
    self.down_proj = Linear(*reversed(sizes), axes=OUT_OF, **kwargs)
    self.activation = config.activation

  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Maps each position by itself."""
    gate = ACTIVATIONS[self.activation](self.gate_proj(x))
    return self.down_proj(gate * self.up_proj(x))
