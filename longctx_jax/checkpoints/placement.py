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

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

from longctx_jax.checkpoints.tensor_map import TensorRef

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
  if refs[0].place:
    layer_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
    fitting = max(1, _SLAB_BYTES // layer_bytes)
    # All slabs have one size: one program writes them.
    divisors = [n for n in range(1, shape[0] + 1) if shape[0] % n == 0]
    count = max(n for n in divisors if n <= fitting)
    if count < shape[0]:
      return _place_slabs(read, refs, shape, dtype, sharding, count)
  return _read_slab(read, refs, shape, dtype, sharding, 0)


def _place_slabs(
  read: Read,
  refs: Sequence[TensorRef],
  shape: tuple[int, ...],
  dtype: DTypeLike,
  sharding: NamedSharding,
  count: int,
) -> jax.Array:
  stack = jnp.zeros(shape, dtype, device=sharding)
  for start in range(0, shape[0], count):
    own = [ref for ref in refs if start <= ref.place[0] < start + count]
    slab_shape = (count, *shape[1:])
    slab = _read_slab(read, own, slab_shape, dtype, sharding, start)
    stack = _writer(sharding)(stack, slab, start)
    # A transfer holds the host's copy, so that the next slab waits for it.
    stack.block_until_ready()
  return stack


@functools.cache
def _writer(
  sharding: NamedSharding,
) -> Callable[[jax.Array, jax.Array, int], jax.Array]:
  return jax.jit(
    lambda stack, slab, start: jax.lax.dynamic_update_slice_in_dim(
      stack, slab, start, axis=0
    ),
    donate_argnums=0,  # In place: a second stack would not fit.
    out_shardings=sharding,
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
