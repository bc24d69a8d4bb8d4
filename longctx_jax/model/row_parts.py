"""Rows in parts: what the axis "context" of a mesh splits.

The later a position, the more it attends to. For C shards a row is cut into 2C
chunks, and part i is chunk i and then chunk 2C - 1 - i: all parts cost the
same. A part is a row of its own, in an array of C times as many rows that are
1 / C as long. Nothing but attention needs to know: there a shard gathers the
keys and values of the whole row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Shaped

from longctx_jax.model import sharding
from longctx_jax.model.attention_spec import AttentionSpec

AXIS = "context"


def count() -> int:
  """C, the parts of a row on the mesh in use; 1 without a mesh."""
  return sharding.axis_size(AXIS)


def fitting_length(length: int, parts: int) -> int:
  """The least number of positions, `length` or more, in so many equal parts."""
  unit = _chunks(parts)
  return -(-length // unit) * unit


def require_length(length: int, parts: int, *, name: str) -> None:
  """Raises ValueError for rows that have no equal parts.

  Args:
    length: positions of a row.
    parts: size of the mesh axis "context".
    name: of the setting, for the message.
  """
  above = fitting_length(length, parts)
  if above != length:
    below = above - _chunks(parts)
    nearest = " or ".join(str(size) for size in (below, above) if size)
    raise ValueError(
      f"mesh axis {AXIS!r} of size {parts} cuts rows into {_chunks(parts)} "
      f"equal chunks, which {name}={length} positions are not: take {nearest}"
    )


def _chunks(parts: int) -> int:
  return 2 * parts if parts > 1 else 1


def _order(parts: int) -> np.ndarray:
  """Chunks in the order that the parts have them: 0, 2C - 1, 1, 2C - 2, ..."""
  first = np.arange(parts)
  return np.stack([first, 2 * parts - 1 - first], axis=1).reshape(-1)


def split(x: Shaped[Array, "B T *S"]) -> Shaped[Array, "P t *S"]:
  """Rows [B, T, ...] as parts [B C, T / C, ...], each where its shard is.

  The rows themselves where the mesh has one part.

  Args:
    x: B is a multiple of the shards of `sharding.ROW_AXES`, and T of 2C.
  """
  parts = count()
  if parts == 1:
    return x
  ways = sharding.axis_size(*sharding.ROW_AXES)
  batch, length, *tail = x.shape
  x = x.reshape(batch, 2 * parts, -1, *tail)[:, _order(parts)]
  x = x.reshape(ways, -1, parts, length // parts, *tail).swapaxes(1, 2)
  x = x.reshape(batch * parts, -1, *tail)
  return sharding.constrain(x, sharding.BATCH_AXES, *(None,) * (x.ndim - 1))


def join(x: Shaped[Array, "P t *S"]) -> Shaped[Array, "B T *S"]:
  """Parts [B C, T / C, ...] as rows [B, T, ...] in order: undoes `split`."""
  parts = count()
  if parts == 1:
    return x
  ways = sharding.axis_size(*sharding.ROW_AXES)
  batch, length, *tail = x.shape
  x = x.reshape(ways, parts, -1, length, *tail).swapaxes(1, 2)
  x = x.reshape(batch // parts, 2 * parts, -1, *tail)
  x = x[:, np.argsort(_order(parts))]
  x = x.reshape(batch // parts, -1, *tail)
  return sharding.constrain(x, sharding.ROW_AXES, AXIS, *(None,) * (x.ndim - 2))


def repeat(x: Shaped[Array, " B"]) -> Shaped[Array, " P"]:
  """What is known of a row [B], for each of its parts [B C]."""
  parts = count()
  if parts == 1:
    return x
  ways = sharding.axis_size(*sharding.ROW_AXES)
  x = jnp.repeat(x.reshape(ways, 1, -1), parts, axis=1).reshape(-1)
  return sharding.constrain(x, sharding.BATCH_AXES)


def positions(parts: int, length: int) -> Int[Array, "P t"]:
  """Place of each position in its row, of so many parts [P, t]."""
  rows = parts // count()
  whole = jnp.arange(length * count())
  return split(jnp.broadcast_to(whole, (rows, whole.size)))


def chunk_starts(parts: int, length: int) -> np.ndarray:
  """First position of both chunks of each part, int [C, 2].

  Args:
    parts: C.
    length: of a part.
  """
  return _order(parts).reshape(parts, 2) * (length // 2)


def on_shards(
  attend: Callable[..., Array],
  q: Float[Array, "P t N H"],
  k: Float[Array, "P s K H"],
  v: Float[Array, "P s K H"],
  segment_ids: Int[Array, "P s"] | None,
  *,
  in_parts: bool,
  tables: Any = (),
  table_specs: Any = (),
) -> Float[Array, "P t N H"]:
  """Runs attend(q, k, v, segment_ids, tables) on each shard of the mesh in use.

  The batch is split over `sharding.BATCH_AXES` and the heads over "tensor", as
  far as they divide evenly; else every shard computes all.

  Args:
    attend: of whole rows; without a mesh it gets all there is.
    q: queries.
    k: keys; a shard gets those of its rows, in order, and not of parts alone.
    v: values, likewise.
    segment_ids: of the keys, likewise.
    in_parts: whether rows are parts.
    tables: a tree of further arrays.
    table_specs: how they are split.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return attend(q, k, v, segment_ids, tables)
  batch = sharding.BATCH_AXES if in_parts else sharding.batch_axes(len(q), mesh)
  heads = "tensor" if k.shape[2] % mesh.shape["tensor"] == 0 else None

  def of_shard(
    q: Array, k: Array, v: Array, segment_ids: Array | None, tables: Any
  ) -> Array:
    if in_parts:
      k, v = _gather(k), _gather(v)
      segment_ids = None if segment_ids is None else _gather(segment_ids)
    return attend(q, k, v, segment_ids, tables)

  spec = PartitionSpec(batch, None, heads, None)
  return jax.shard_map(
    of_shard,
    in_specs=(spec, spec, spec, PartitionSpec(batch, None), table_specs),
    out_specs=spec,
    # Kernels do not say over which axes their outputs vary.
    check_vma=False,
  )(q, k, v, segment_ids, tables)


def _gather(x: Shaped[Array, "b t *S"]) -> Shaped[Array, "b T *S"]:
  """Whole rows, in order, of the parts that the shards have."""
  parts = count()
  batch, length, *tail = x.shape
  x = jax.lax.all_gather(x, AXIS, axis=1)
  x = x.reshape(batch, 2 * parts, length // 2, *tail)
  # Slices, and not a lookup: their gradient is no scatter.
  x = jnp.concatenate([x[:, i] for i in np.argsort(_order(parts))], axis=1)
  return x.reshape(batch, parts * length, *tail)


def chunk_by_chunk(attend: Callable[..., Array]) -> Callable[..., Array]:
  """Makes of attend(..., first) one that also takes rows in parts.

  Args:
    attend: (q, k, v, spec, segment_ids, first) -> out, where `first` is the
      position of the first query, traced, or None for that of the spec.
  """

  @functools.wraps(attend)
  def run(
    q: Float[Array, "P t N H"],
    k: Float[Array, "P s K H"],
    v: Float[Array, "P s K H"],
    spec: AttentionSpec,
    segment_ids: Int[Array, "P s"] | None,
    *,
    in_parts: bool = False,
  ) -> Float[Array, "P t N H"]:
    if not in_parts:
      return attend(q, k, v, spec, segment_ids)

    def of_shard(
      q: Array, k: Array, v: Array, segment_ids: Array | None, starts: Array
    ) -> Array:
      chunks = q.reshape(len(q), 2, -1, *q.shape[2:]).swapaxes(0, 1)
      out = jax.lax.map(
        lambda xs: attend(xs[0], k, v, spec, segment_ids, xs[1]),
        (chunks, starts[0]),
      )
      return out.swapaxes(0, 1).reshape(q.shape)

    starts = jnp.asarray(chunk_starts(count(), q.shape[1]), jnp.int32)
    return on_shards(
      of_shard,
      q,
      k,
      v,
      segment_ids,
      in_parts=True,
      tables=starts,
      table_specs=PartitionSpec(AXIS),
    )

  return run
