"""Fixed shapes for documents of any length: buckets and pools of windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


# TPU kernels tile sequences by 128, and 512 is the shortest length from which
# a step of 128 keeps a bucket within 1.25 times the one below.
_TILE = 128


def bucket_length(n: int) -> int:
  """Smallest bucket that holds n positions.

  Buckets are multiples of 128, four to the octave from 512 up (1024, 1280,
  1536, 1792, 2048, ...): each at most 1.25 times the one below.
  """
  step = max(_TILE, (1 << max(0, n - 1).bit_length()) // 8)
  return max(_TILE, -(-n // step) * step)


def bucket_lengths(max_len: int) -> list[int]:
  """All buckets up to the one that holds max_len, ascending."""
  buckets = [bucket_length(1)]
  while buckets[-1] < max_len:
    buckets.append(bucket_length(buckets[-1] + 1))
  return buckets


def pool(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
  """Groups items into lists of `size`, in order; the last may be shorter."""
  batch: list[Item] = []
  for item in items:
    batch.append(item)
    if len(batch) == size:
      yield batch
      batch = []
  if batch:
    yield batch
