"""Which documents share the rows of a batch, from their lengths alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int32

from longctx_jax.model import row_parts
from longctx_jax.scoring import buckets


@dataclasses.dataclass(frozen=True)
class Place:
  """Where a document lies in a batch.

  Attributes:
    index: of the document among those that were to be placed.
    row: of the batch.
    start: position of its first id in the row.
  """

  index: int
  row: int
  start: int


@dataclasses.dataclass(frozen=True)
class Batch:
  """Documents in rows of one length.

  Attributes:
    length: positions of a row.
    places: of the documents that go with this batch; the others wait.
  """

  length: int
  places: tuple[Place, ...]


# Rows that many short documents fill: a pass of fewer positions costs a device
# as much, since it reads all weights once.
_LEAST_SHARED = 2048


def row_length(n: int) -> int:
  """Shortest row that many documents share and that holds n ids.

  A power of 2, at least 128: few programs, and short documents fill what the
  long ones leave.
  """
  return max(128, 1 << max(0, n - 2).bit_length())


def plan(
  lengths: Sequence[int], *, rows: int, align: int, parts: int = 1
) -> Batch:
  """The next batch: the longest document, and what fits beside it.

  Longest first, each into the first row that has room for it, so that what a
  long one leaves is filled by shorter ones. Of two equally long documents the
  first is placed first: the same lengths in the same order give the same batch.

  Args:
    lengths: ids of the documents that wait, each at least 2; not empty.
    rows: of a batch.
    align: a document starts at a multiple of it; 0: in a row of its own.
    parts: that a row can be cut into; see `row_parts`.
  """
  order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
  longest = lengths[order[0]]
  if align:
    needed = sum(-(-n // align) * align for n in lengths)
    least = min(_LEAST_SHARED, row_length(-(-needed // rows)))
    length = max(row_length(longest), least)
  else:
    length = buckets.bucket_length(longest - 1)
  length = row_parts.fitting_length(length, parts)
  # A row has an id more than positions: the last is a target alone.
  used, most = [0] * rows, length + 1
  least, places = 0, []
  for i in order:
    n = lengths[i]
    if least + n > most:
      continue  # No row has room, as `least` is used of the emptiest.
    row = next(row for row in range(rows) if used[row] + n <= most)
    places.append(Place(i, row, used[row]))
    used[row] = -(-(used[row] + n) // align) * align if align else most
    least = min(used)
  return Batch(length, tuple(places))


def batches(
  lengths: Sequence[int], *, rows: int, align: int
) -> Iterator[tuple[Batch, list[int]]]:
  """All batches of documents that wait together, with the lengths in each.

  For what padding there will be, without a model.
  """
  waiting = list(lengths)
  while waiting:
    batch = plan(waiting, rows=rows, align=align)
    placed = {place.index for place in batch.places}
    yield batch, [waiting[i] for i in sorted(placed)]
    waiting = [n for i, n in enumerate(waiting) if i not in placed]


@dataclasses.dataclass(frozen=True)
class Layout:
  """What a pass needs beside the ids of shared rows, int32 [B, S] each.

  Attributes:
    positions: in the document, from 0.
    segment_ids: of the documents, 0, 1, ... in each row; what lies behind the
      last is a segment of its own.
    lengths: ids of the document; for RoPE tables that depend on it.
  """

  positions: Int32[np.ndarray, "B S"]
  segment_ids: Int32[np.ndarray, "B S"]
  lengths: Int32[np.ndarray, "B S"]


def lay_out(batch: Batch, lengths: Sequence[int], *, rows: int) -> Layout:
  """Positions, segments and lengths of a batch.

  Args:
    batch: as planned.
    lengths: ids of the documents that were to be placed.
    rows: of the batch.
  """
  shape = rows, batch.length
  starts = np.zeros(shape, np.int32)
  segments, known = np.zeros(shape, np.int32), np.ones(shape, np.int32)
  used, count = [0] * rows, [0] * rows
  # Each place overwrites the rest of its row, up to the next one.
  for place in batch.places:
    rest = np.s_[place.row, place.start :]
    n = lengths[place.index]
    starts[rest], known[rest] = place.start, n
    segments[rest] = count[place.row]
    count[place.row] += 1
    used[place.row] = place.start + n
  for row, (end, segment) in enumerate(zip(used, count, strict=True)):
    starts[row, end:] = min(end, batch.length)
    segments[row, end:], known[row, end:] = segment, 1
  positions = np.arange(batch.length, dtype=np.int32) - starts
  return Layout(positions, segments, known)
