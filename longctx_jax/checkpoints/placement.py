"""Pieces of checkpoint tensors straight into their places on the mesh.

A parameter stacks the tensors of all layers, and is many times as large as
what the host should hold. It is built in slabs along its first axis: each is
read into host buffers, one per distinct device slice, and written into the
stack on the devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from longctx_jax.checkpoints.tensor_map import TensorRef
from longctx_jax.model import int8
from longctx_jax.model.int8 import Int8Kernel

# Of a slab; a single layer may be larger.
_SLAB_BYTES = 2**28
# Elements that are cast and transposed at a time: they stay in the cache.
_BLOCK_SIZE = 2**19
_BLOCK_ROWS = 64


# (tensor name, slices of it) -> that part.
Read = Callable[[str, tuple[slice, ...]], np.ndarray]
# [start, stop) of each axis.
Bounds = tuple[tuple[int, int], ...]


def place(
  read: Read,
  refs: Sequence[TensorRef],
  shape: tuple[int, ...],
  *,
  dtype: DTypeLike,
  sharding: NamedSharding,
) -> jax.Array:
  """Builds one parameter from its pieces.

  Only what the devices of this process need is read, and once, however many
  of them hold it. The host holds one slab: one layer, or as many as fit into
  256 MiB.

  Args:
    read: reads a part of a tensor, in any dtype.
    refs: the pieces; see `tensor_map.parameter_table`.
    shape: of the parameter.
    dtype: of the parameter.
    sharding: where its parts go; a stack's first axis must not be split.
  """
  if refs[0].place and _layers_of_slab(shape, dtype) < shape[0]:
    stack = jnp.zeros(shape, dtype, device=sharding)
    write = _writer(sharding)
    return _place_slabs(read, refs, shape, dtype, sharding, stack, write)
  return _read_slab(read, refs, shape, dtype, sharding, 0)


def place_int8(
  read: Read,
  refs: Sequence[TensorRef],
  shape: tuple[int, ...],
  *,
  sharding: NamedSharding,
) -> Int8Kernel:
  """Builds a stack of kernels in int8, as `place` does.

  Each slab is rounded on the devices, from float32: there is one there, never
  a stack of kernels that are not yet rounded.

  Args:
    read, refs, shape: see `place`.
    sharding: of the kernels; each scale goes with its output channel.
  """
  parts = int8.shardings(sharding)
  scale_shape = (*shape[:-2], shape[-1])
  stack = Int8Kernel(
    jnp.zeros(shape, jnp.int8, device=parts.values),
    jnp.zeros(scale_shape, jnp.float32, device=parts.scale),
  )
  write = _int8_writer(sharding)
  return _place_slabs(read, refs, shape, np.float32, sharding, stack, write)


def _layers_of_slab(shape: tuple[int, ...], dtype: DTypeLike) -> int:
  layer_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
  fitting = max(1, _SLAB_BYTES // layer_bytes)
  # All slabs have one size: one program writes them.
  divisors = [n for n in range(1, shape[0] + 1) if shape[0] % n == 0]
  return max(n for n in divisors if n <= fitting)


# An array, or the parts of an `Int8Kernel`.
Stack = TypeVar("Stack")


def _place_slabs(
  read: Read,
  refs: Sequence[TensorRef],
  shape: tuple[int, ...],
  dtype: DTypeLike,
  sharding: NamedSharding,
  stack: Stack,
  write: Callable[[Stack, jax.Array, int], Stack],
) -> Stack:
  count = _layers_of_slab(shape, dtype)
  for start in range(0, shape[0], count):
    own = [ref for ref in refs if start <= ref.place[0] < start + count]
    slab_shape = (count, *shape[1:])
    slab = _read_slab(read, own, slab_shape, dtype, sharding, start)
    # A transfer holds the host's copy, so that the next slab waits for it.
    stack = jax.block_until_ready(write(stack, slab, start))
  return stack


def _update(stack: jax.Array, slab: jax.Array, start: int) -> jax.Array:
  return jax.lax.dynamic_update_slice_in_dim(stack, slab, start, axis=0)


# In place: a second stack would not fit.
@functools.cache
def _writer(
  sharding: NamedSharding,
) -> Callable[[jax.Array, jax.Array, int], jax.Array]:
  return jax.jit(_update, donate_argnums=0, out_shardings=sharding)


@functools.cache
def _int8_writer(
  sharding: NamedSharding,
) -> Callable[[Int8Kernel, jax.Array, int], Int8Kernel]:
  def write(stack: Int8Kernel, slab: jax.Array, start: int) -> Int8Kernel:
    rounded = int8.quantise(slab)
    return jax.tree.map(lambda a, b: _update(a, b, start), stack, rounded)

  return jax.jit(
    write, donate_argnums=0, out_shardings=int8.shardings(sharding)
  )


def _read_slab(
  read: Read,
  refs: Sequence[TensorRef],
  shape: tuple[int, ...],
  dtype: DTypeLike,
  sharding: NamedSharding,
  start: int,
) -> jax.Array:
  """The part of a parameter from layer `start` on, as an array of its own."""

  def bounds(index: tuple[slice, ...]) -> Bounds:
    return tuple(
      axis.indices(size)[:2] for axis, size in zip(index, shape, strict=True)
    )

  indices = sharding.addressable_devices_indices_map(shape).values()
  buffers = {
    index: np.empty([stop - begin for begin, stop in index], dtype)
    for index in {bounds(index) for index in indices}
  }
  for ref in refs:
    for rows, columns, target in sorted(
      _blocks(ref, buffers, start), key=lambda block: block[0]
    ):
      part = read(ref.tensor, (slice(*rows), *(slice(*c) for c in columns)))
      target[...] = part.astype(dtype, copy=False)
  return jax.make_array_from_callback(
    shape, sharding, lambda index: buffers[bounds(index)]
  )


def _blocks(
  ref: TensorRef, buffers: Mapping[Bounds, np.ndarray], start: int
) -> Iterator[tuple[tuple[int, int], Bounds, np.ndarray]]:
  """(rows, columns, target): what is read of a tensor, and where it goes.

  Sorted by rows, the parts of several devices in one block of rows follow
  each other: a source may keep the block.
  """
  depth = len(ref.place)
  lead = (ref.place[0] - start, *ref.place[1:]) if depth else ()
  offset = ref.rows[0] if ref.rows else 0
  for index, buffer in buffers.items():
    inside = zip(lead, index, strict=False)
    if not all(begin <= i < stop for i, (begin, stop) in inside):
      continue
    target = buffer[
      tuple(i - begin for i, (begin, _) in zip(lead, index, strict=False))
    ]
    core = index[depth:]
    if ref.transpose:
      target, core = target.T, core[::-1]
    (begin, stop), *columns = core
    width = math.prod(last - first for first, last in columns)
    step = max(_BLOCK_ROWS, _BLOCK_SIZE // max(width, 1))
    for row in range(begin, stop, step):
      last = min(row + step, stop)
      yield (
        (row + offset, last + offset),
        tuple(columns),
        target[row - begin : last - begin],
      )
