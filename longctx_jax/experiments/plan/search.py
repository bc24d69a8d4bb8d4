"""The longest context and the smallest slice, by the analytic model."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence

from longctx_jax.experiments.plan.workloads import Workload
from longctx_jax.model import sharding
from longctx_jax.model.memory import Memory
from longctx_jax.runtime.chips import Slice
from longctx_jax.scoring import buckets

# The analytic model may be off by as much; what it finds shall fit all the
# same.
MARGIN = 1.1
_SHORTEST, _LONGEST = 1 << 10, 1 << 20


def estimate(workload: Workload, place: Slice) -> dict[str, Memory]:
  """Program -> what it takes of a device, by the analytic model.

  Raises:
    ValueError: where the mesh does not fit the slice, the batch or the model.
  """
  mesh = sharding.abstract_mesh(workload.sizes, place.size)
  return {name: workload.memory(name, mesh) for name in workload.programs}


def largest(estimates: dict[str, Memory]) -> tuple[str, Memory]:
  """The program that takes most of a device."""
  return max(estimates.items(), key=lambda item: item[1].peak)


def longest_context(workload: Workload, place: Slice) -> int:
  """The longest rows or documents that fit with the margin; 0 where none do.

  Lengths are the buckets of `buckets.bucket_length`, from 1,024 to 2^20.

  Raises:
    ValueError: see `estimate`.
  """
  lengths = list(_lengths())
  fitting = bisect.bisect_left(
    lengths,
    True,
    key=lambda length: not _fits(workload.with_length(length), place),
  )
  return lengths[fitting - 1] if fitting else 0


def smallest_slice(workload: Workload, slices: Sequence[Slice]) -> Slice | None:
  """The first slice that the workload fits with the margin.

  A slice that the batch or the model cannot be shared over counts as too
  small: the run would be refused there.

  Args:
    workload: what is asked of the devices.
    slices: smallest first.
  """
  for place in slices:
    try:
      if _fits(workload, place):
        return place
    except ValueError:
      continue
  return None


def _fits(workload: Workload, place: Slice) -> bool:
  _, memory = largest(estimate(workload, place))
  return memory.peak * MARGIN <= place.chip.hbm


def _lengths() -> Iterator[int]:
  length = _SHORTEST
  while length <= _LONGEST:
    yield length
    length = buckets.bucket_length(length + 1)
