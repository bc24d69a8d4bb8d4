"""Bytes that a program takes of a device, from shapes alone.

Weights and optimizer are exact. Temporaries are what is alive where most is:
in a layer, for all positions that a device has at a time, or at the output
head. How many arrays of which size that are was read from programs that the
TPU compiler made; the sum is within 10 % of what it takes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax

from longctx_jax.model import sharding
from longctx_jax.model.config import ModelConfig

_FLOAT32 = 4
# What a loop over the parts of a batch takes, over what is alive in it.
_GAPS = 1.1


@dataclasses.dataclass(frozen=True)
class Memory:
  """Bytes of a device, all at the same time.

  Attributes:
    weights: parameters.
    optimizer: its state.
    temporaries: everything else.
  """

  weights: int
  optimizer: int
  temporaries: int

  @property
  def peak(self) -> int:
    """All of them."""
    return self.weights + self.optimizer + self.temporaries


def shard_bytes(tree: Any) -> int:
  """Bytes on a device of arrays, or of shapes with shardings."""
  return sum(
    math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
    for leaf in jax.tree.leaves(tree)
  )


@dataclasses.dataclass(frozen=True)
class Activations:
  """Sizes of what a device has of a pass, in bytes.

  Attributes:
    config: facts of the model.
    mesh: which axes split what.
    rows: rows of a device at a time, or of which it has parts.
    length: positions of a row.
    in_parts: whether the axis "context" splits the rows.
    itemsize: bytes of an item of activations and parameters.
  """

  config: ModelConfig
  mesh: sharding.AnyMesh
  rows: int
  length: int
  in_parts: bool
  itemsize: int

  @property
  def hidden(self) -> int:
    """The residual stream, or its like."""
    return self._positions * self.config.embed_dim * self.itemsize

  @property
  def heads(self) -> int:
    """Queries of all heads; keys and values are fewer, or as many."""
    width = self.config.num_heads * self.config.head_dim
    return self._positions * width * self.itemsize // self._ways("tensor")

  @property
  def normalisers(self) -> int:
    """The log-normaliser of each head, float32."""
    return (
      self._positions * self.config.num_heads * _FLOAT32 // self._ways("tensor")
    )

  @property
  def gathered(self) -> int:
    """Keys and values of whole rows, where a device has parts."""
    if not self.in_parts or self._ways("context") == 1:
      return 0
    width = 2 * self.config.num_kv_heads * self.config.head_dim
    size = self.rows * self.length * width * self.itemsize
    return size // self._ways("tensor")

  @property
  def mlp(self) -> int:
    """The hidden units of a layer's MLP, of all experts of a position."""
    config = self.config
    width = config.experts_per_token * config.expert_dim or config.mlp_dim
    return self._positions * width * self.itemsize // self._ways("tensor")

  @property
  def partial_sums(self) -> int:
    """What "tensor" adds up in a layer; 0 where it splits nothing.

    A product in float32, as wide as the residual stream, and the sums of
    attention and of the MLP, which do not take each other's place.
    """
    if self._ways("tensor") == 1:
      return 0
    return self.hidden * _FLOAT32 // self.itemsize + 2 * self.hidden

  @property
  def matrix(self) -> int:
    """The largest matrix of a layer, gathered for its product; 0 if whole."""
    config = self.config
    width = config.num_experts * config.expert_dim or config.mlp_dim
    size = config.embed_dim * width * self.itemsize
    return self._gather(size)

  @property
  def table(self) -> int:
    """The embedding or the output head, gathered; 0 if whole."""
    size = self.config.vocab_size * self.config.embed_dim * self.itemsize
    return self._gather(size)

  @property
  def head_gradient(self) -> int:
    """The gradient of the output head, float32, of this shard's rows."""
    size = self.config.vocab_size * self.config.embed_dim * _FLOAT32
    return size // self._ways("tensor")

  def _gather(self, size: int) -> int:
    """Bytes of a parameter that is whole but for "tensor"; 0 if it lies so."""
    ways = math.prod(self._ways(axis) for axis in sharding.PARAMETER_AXES)
    return size // self._ways("tensor") if ways > 1 else 0

  def _ways(self, axis: str) -> int:
    return self.mesh.shape[axis]

  @property
  def _positions(self) -> int:
    parts = self._ways("context") if self.in_parts else 1
    return self.rows * -(-self.length // parts)


def forward(
  activations: Activations,
  *,
  weights: int,
  rounded: bool = False,
  is_short: bool = False,
) -> Memory:
  """Of a scoring pass: the residual stream and its norm, gate, up, matrices.

  Args:
    activations: of the pass.
    weights: bytes of the parameters on a device.
    rounded: whether kernels are in 8 bits, whose product leaves gate and up in
      one array.
    is_short: a pass over windows, which does so too.
  """
  a = activations
  mlp = a.mlp if rounded or is_short else 2 * a.mlp
  layer = 2 * a.hidden + max(mlp, a.gathered + 2 * a.heads) + 2 * a.matrix
  layer += a.partial_sums
  head = 2 * a.hidden + 2 * a.table  # The embedding is gathered as well.
  return Memory(weights, 0, max(layer, head))


def step(
  activations: Activations,
  *,
  weights: int,
  optimizer: int,
  parts: int,
  short: Activations | None,
  remat: str,
) -> Memory:
  """Of a training step: the backward pass of a layer, or of the head.

  Args:
    activations: of the long pass over a part.
    weights: bytes of the float32 parameters on a device.
    optimizer: bytes of its state on a device.
    parts: of a batch, one after the other.
    short: of the windows at a time; None without live weights.
    remat: what the layers keep; one of `remat.POLICIES`.
  """
  a = activations
  copies = weights * a.itemsize // _FLOAT32  # Parameters of the passes.
  gradients = copies
  kept = (
    a.config.num_layers
    * {
      "block": a.hidden,
      "attention": a.hidden + a.heads + a.normalisers,
      "none": 4 * a.hidden + 4 * a.heads + a.normalisers + 3 * a.mlp,
    }[remat]
  )
  layer = 10 * a.hidden + 6 * a.heads + 6 * a.mlp + 2 * a.matrix + a.gathered
  head = 2 * a.head_gradient
  if parts > 1:  # That of the head waits for the layers, to be added up.
    layer += a.head_gradient
  most = kept + gradients + max(layer, head)
  if parts > 1:
    # Sums over the parts, of before and after one; embedding and head, gathered
    # once for all. One that is both is copied for the head.
    most += 2 * weights + 2 * a.table
    most = int(most * _GAPS)
  if short:
    windows = forward(short, weights=0, is_short=True)
    most = max(most, windows.temporaries)
  return Memory(weights, optimizer, copies + most)
