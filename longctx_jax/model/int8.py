"""Kernels in 8 bits: half the memory of bfloat16, for models that only score.

Symmetric and weight-only: an integer of a byte times a scale of its output
channel, so that the integers go into a product as they are and the scale comes
after it. Norms, biases, routers, embedding and head stay: together they are
small, and a row of the head is a token's logit.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

FORMAT = "int8"
_HIGHEST = 127
_KERNELS = re.compile(r"layers\..*_proj\.kernel")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Int8Kernel:
  """values * scale, in the place of a kernel.

  Not qwix's QArray: its scales keep the contracted axis, of size 1, which a
  rule of `partition` would split; here one rule says where both parts live.

  Attributes:
    values: -127 to 127, int8 [..., in, out]; or, as `scale`, a spec or a
      sharding.
    scale: of each output channel, float32 [..., out].
  """

  values: Any
  scale: Any

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the kernel."""
    return self.values.shape


Kernel = Float[Array, "..."] | Int8Kernel


def is_rounded(name: str) -> bool:
  """Whether a parameter, by its dotted name, is kept in int8."""
  return bool(_KERNELS.fullmatch(name))


def named(weight_format: str) -> str:
  """The name of a format whose kernels are rounded as they are read."""
  return f"{weight_format} as {FORMAT}"


def is_named(weight_format: str | None) -> bool:
  """Whether `named` made it."""
  return bool(weight_format) and weight_format.endswith(f" as {FORMAT}")


def quantise(kernel: Float[Array, "*S I O"]) -> Int8Kernel:
  """round(kernel / scale), scale = max(abs(kernel)) / 127 over the inputs.

  Off by half a scale at most; a channel of zeros stays zero. NaN and infinity
  come out of a product as NaN.
  """
  wide = kernel.astype(jnp.float32)
  highest = jnp.abs(wide).max(-2)
  scale = jnp.where(highest == 0, 1, highest / _HIGHEST)
  values = jnp.round(wide / scale[..., None, :])
  return Int8Kernel(values.astype(jnp.int8), scale)


def require_plain(params: Any, *, doing: str) -> None:
  """Raises ValueError where kernels are rounded: they are for scoring alone.

  Args:
    params: a tree of parameters.
    doing: what needs them as they were, for the message.
  """

  def is_kernel(leaf: Any) -> bool:
    return isinstance(leaf, Int8Kernel)

  if any(map(is_kernel, jax.tree.leaves(params, is_leaf=is_kernel))):
    raise ValueError(
      f"kernels are rounded to int8, which is for scoring: {doing} needs them "
      "as they are stored: load the model without weights='int8'"
    )


def like(kernel: Kernel, spec: P) -> P | Int8Kernel:
  """The spec of a kernel, as a spec for each part of it.

  Args:
    kernel: plain, or an `Int8Kernel`.
    spec: of each axis of the kernel.
  """
  if not isinstance(kernel, Int8Kernel):
    return spec
  return Int8Kernel(spec, _of_scale(spec))


def shardings(sharding: NamedSharding) -> Int8Kernel:
  """An `Int8Kernel` of shardings: a scale lives where its channel does."""
  scale = NamedSharding(sharding.mesh, _of_scale(sharding.spec))
  return Int8Kernel(sharding, scale)


def _of_scale(spec: P) -> P:
  *stack, _, out = spec
  return P(*stack, out)
