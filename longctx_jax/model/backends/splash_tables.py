"""Which blocks a Splash kernel visits, as the tables that it reads.

The library asks a mask for one block after the other, in Python: minutes for a
million positions. Here the ends of all blocks are compared at once.
"""

from __future__ import annotations

import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask_info as mask_info_lib,
)
from jaxtyping import Int

from longctx_jax.model.attention_spec import AttentionSpec

_UNSEEN, _PARTLY, _WHOLE = 0, 1, 2
_SMALL = (np.int8, np.int16, np.int32)


def make_tables(
  spec: AttentionSpec,
  starts: Int[np.ndarray, "s c"],
  *,
  run: int,
  num_k: int,
  block_q: int,
  block_k: int,
  by_keys: bool = False,
) -> mask_info_lib.MaskInfo:
  """The tables of all shards, one after the other along the queries.

  Those of shards that visit fewer blocks are padded: all run one grid.

  Args:
    spec: what is visible; the kernel asks it in blocks that are seen in part.
    starts: first query rows of the runs of each shard.
    run: rows of a run, a multiple of `block_q`.
    num_k: keys, a multiple of `block_k`.
    block_q: rows of a block.
    block_k: keys of a block.
    by_keys: whether the kernel goes through the queries of each block of keys,
      for the gradient of keys and values; else through the keys of each block
      of queries.
  """
  blocks = starts[..., None] + np.arange(0, run, block_q)
  keys = np.arange(0, num_k, block_k)
  visits = [
    _pack_queries(shard) if by_keys else _pack_keys(shard)
    for shard in (
      _compare(spec, first, keys, block_q, block_k)
      for first in blocks.reshape(len(starts), -1)
    )
  ]
  axis = 0 if by_keys else 1
  most = max(mask.shape[axis] for mask, _ in visits)

  def pad(table: np.ndarray, mode: str) -> np.ndarray:
    width = [(0, 0), (0, 0)]
    width[axis] = (0, most - table.shape[axis])
    return np.pad(table, width, mode=mode)

  rows = starts[..., None] + np.arange(run)
  return mask_info_lib.MaskInfo(
    # The block that is there already: none is fetched for the padding.
    data_next=_small([pad(at, "edge") for _, at in visits]),
    mask_next=None,
    block_mask=_small([pad(mask, "constant") for mask, _ in visits]),
    partial_mask_blocks=None,
    q_sequence=rows.reshape(-1).astype(np.int32),
  )


def _compare(
  spec: AttentionSpec,
  rows: Int[np.ndarray, " q"],
  keys: Int[np.ndarray, " k"],
  block_q: int,
  block_k: int,
) -> Int[np.ndarray, "q k"]:
  """How much of each block is seen, from its first row and its first key."""
  first = spec.q_offset + rows[:, None]
  last, after = first + block_q - 1, keys[None] + block_k
  keys = keys[None]
  some, whole = keys <= last, after <= first + 1
  if spec.window:
    near = after > first - spec.window + 1
    some &= near | (keys < spec.sink_len)
    whole &= (last - keys < spec.window) | (after <= spec.sink_len)
  return np.where(whole, _WHOLE, np.where(some, _PARTLY, _UNSEEN))


def _pack_keys(
  seen: Int[np.ndarray, "q k"],
) -> tuple[Int[np.ndarray, "q w"], Int[np.ndarray, "q w"]]:
  """Of each block of queries what is seen, to the left: (how much, which)."""
  width = (seen != _UNSEEN).sum(1).max()
  order = np.argsort(seen == _UNSEEN, axis=1, kind="stable")[:, :width]
  mask = np.take_along_axis(seen, order, axis=1)
  return mask, np.where(mask != _UNSEEN, order, 0)


def _pack_queries(
  seen: Int[np.ndarray, "q k"],
) -> tuple[Int[np.ndarray, "w k"], Int[np.ndarray, "w k"]]:
  """Of each block of keys what sees it, to the end: (how much, which)."""
  width = (seen != _UNSEEN).sum(0).max()
  order = np.argsort(seen != _UNSEEN, axis=0, kind="stable")[-width:]
  mask = np.take_along_axis(seen, order, axis=0)
  return mask, np.where(mask != _UNSEEN, order, 0)


def _small(shards: list[np.ndarray]) -> Int[np.ndarray, "1 q k"]:
  """In the smallest type: scalar memory is scarce."""
  table = np.concatenate(shards)[None]
  kind = next(one for one in _SMALL if table.max() <= np.iinfo(one).max)
  return table.astype(kind)
