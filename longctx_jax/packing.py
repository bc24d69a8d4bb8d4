"""Documents packed into rows of a fixed length, each whole and once."""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import ArrayLike


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
