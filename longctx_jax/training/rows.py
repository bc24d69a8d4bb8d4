"""Documents packed into rows of a fixed length, each whole and once."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from longctx_jax.paper.windows import Windows


def pack(
  lengths: ArrayLike, order: ArrayLike, *, capacity: int
) -> list[np.ndarray]:
  """Best fit: each item goes into the fullest row that still has room for it.

  Lengths 5, 3, 4, 2 in that order and a capacity of 7 give rows [0, 3] and
  [1, 2]. Nothing is cut, left out or repeated, and which items share a row
  depends on the arguments alone.

  Args:
    lengths: int [N], each from 1 to capacity.
    order: permutation of the items, int [N]: who comes first.
    capacity: of a row.

  Returns:
    Rows of item numbers, int64 [n_r] each, in the order that they were begun;
    items within a row in the order that they came.

  Raises:
    ValueError: an item that fits into no row.
  """
  lengths = np.asarray(lengths, np.int64)
  wrong = (lengths < 1) | (lengths > capacity)
  if wrong.any():
    raise ValueError(
      f"item {wrong.argmax()} has length {lengths[wrong.argmax()]}; a row "
      f"holds 1 to {capacity}"
    )
  rows: list[list[int]] = []
  smallest = int(lengths.min(initial=capacity))
  # (room, row), ascending: the first with room enough is the fullest.
  unfilled: list[tuple[int, int]] = []
  for item in np.asarray(order, np.int64).tolist():
    length = int(lengths[item])
    at = bisect.bisect_left(unfilled, (length, -1))
    if at < len(unfilled):
      room, row = unfilled.pop(at)
      rows[row].append(item)
    else:
      room, row = capacity, len(rows)
      rows.append([item])
    if room - length >= smallest:
      bisect.insort(unfilled, (room - length, row))
  return [np.array(row, np.int64) for row in rows]


def require_batch_size(batch_size: int, *, accumulate: int, ways: int) -> None:
  """Raises ValueError unless parts and devices share a batch evenly.

  Args:
    batch_size: rows of a step.
    accumulate: parts of a batch, one after the other.
    ways: shards of the mesh's batch axes, among which a part is split.
  """
  unit = accumulate * ways
  if batch_size % unit:
    below = batch_size - batch_size % unit
    nearest = " or ".join(str(size) for size in (below, below + unit) if size)
    raise ValueError(
      f"batch_size={batch_size} rows are not a multiple of "
      f"accumulate={accumulate} times the {ways} shards of the mesh's batch "
      f"axes: take {nearest}"
    )


def max_windows(seq_len: int, windows: Windows) -> int:
  """Most windows that a row can have, of one document or of several.

  W = max(0, ceil((T + 1 - K) / d) - 1).

  A document of n ids has ceil((n - K) / d) - 1 windows without its first, which
  is less than (n - K) / d. Over the documents of a row, together at most T + 1
  ids, the sum is less than (T + 1 - K) / d: packing never needs more.

  Args:
    seq_len: T, inputs of a row.
    windows: of the short contexts.
  """
  behind = seq_len + 1 - windows.short_len
  return max(0, -(-behind // windows.stride) - 1)


def plan_row(
  lengths: Sequence[int], *, seq_len: int, windows: Windows
) -> dict[str, np.ndarray]:
  """Plans the short-context windows of the documents of a row.

  Each document is planned by itself (`Windows.plan`), so that no window
  leaves it; its window 0, whose weight is exp(0), is dropped.

  Args:
    lengths: ids of each document of the row, in order.
    seq_len: T, inputs of a row.
    windows: of the short contexts.

  Returns:
    `window_start`, `score_start` and `score_end`, int32 [W], indices of ids
    within the row: window w reads ids [start, start + K + d - 1) and scores ids
    [score_start, score_end). Unused windows are 0, 0, 0.
  """
  count = max_windows(seq_len, windows)
  planned = np.zeros((3, count), np.int32)
  first, used = 0, 0
  for length in lengths:
    plan = windows.plan(length)
    found = np.stack([plan.start, plan.score_start, plan.score_end])[:, 1:]
    planned[:, used : used + found.shape[1]] = first + found
    first, used = first + length, used + found.shape[1]
  names = ("window_start", "score_start", "score_end")
  return dict(zip(names, planned, strict=True))


def make_row(
  documents: Sequence[np.ndarray],
  *,
  seq_len: int,
  packed: bool,
  pad_id: int = 0,
  with_lengths: bool = False,
  windows: Windows | None = None,
  weights: Sequence[np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
  """Lays documents out as a row, padded on the right.

  Padding is known by its position and never by its id, so that a document may
  hold the padding id. A target bears loss unless it is padding or the first id
  of a document: sum(loss_mask) = sum_i (n_i - 1).

  Args:
    documents: int [n_i] each, at least one, together at most T + 1 ids; one
      alone unless `packed`.
    seq_len: T, inputs of a row.
    packed: whether segment ids and positions are wanted.
    pad_id: what stands in the padding.
    with_lengths: whether real lengths are wanted, for RoPE tables that depend
      on them.
    windows: of the short contexts; None plans none.
    weights: float [n_i - 1] of each document's targets; None for no weights.

  Returns:
    `inputs`, `targets` int32 [T], `loss_mask` float32 [T]; where packed
    `segment_ids` (of inputs; 1, 2, ..., 0 is padding) and `positions` int32
    [T]; as asked for `lengths` int32 [] or, packed, [T], the plan of `plan_row`
    [W] and `weights` float32 [T].

  Raises:
    ValueError: more ids than the row holds, or several unpacked documents.
  """
  lengths = [len(ids) for ids in documents]
  if sum(lengths) > seq_len + 1 or not (packed or len(lengths) == 1):
    raise ValueError(
      f"documents of {lengths} ids, packed={packed}: a row holds "
      f"{seq_len + 1} ids, and one document unless it is packed"
    )
  ids = np.full(seq_len + 1, pad_id, np.int32)
  ids[: sum(lengths)] = np.concatenate(documents)
  # The padding is a last segment, so that everything below is one repeat.
  parts = np.array([*lengths, seq_len + 1 - sum(lengths)])
  segment = np.repeat(np.r_[1 : len(lengths) + 1, 0], parts).astype(np.int32)
  inside = (segment[1:] > 0) & (segment[1:] == segment[:-1])
  row = {
    "inputs": ids[:-1],
    "targets": ids[1:],
    "loss_mask": inside.astype(np.float32),
  }
  if packed:
    first = np.repeat(np.cumsum(parts) - parts, parts)
    row["segment_ids"] = segment[:-1]
    row["positions"] = (np.arange(seq_len + 1) - first)[:-1].astype(np.int32)
  if with_lengths:
    each = np.repeat(parts, parts)[:-1]
    row["lengths"] = (each if packed else parts[0]).astype(np.int32)
  if windows:
    row |= plan_row(lengths, seq_len=seq_len, windows=windows)
  if weights is not None:
    row["weights"] = np.ones(seq_len, np.float32)
    row["weights"][inside] = np.concatenate(weights)
  return row


def stack(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Rows of the same fields as a batch: each field gets a leading axis."""
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
