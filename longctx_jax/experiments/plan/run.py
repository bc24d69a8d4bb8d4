"""A plan: what a config takes of a slice of TPUs, without any hardware."""

from __future__ import annotations

import dataclasses

from absl import logging

from longctx_jax.experiments.plan import compiler, search
from longctx_jax.experiments.plan.compiler import Compiled
from longctx_jax.experiments.plan.workloads import Workload
from longctx_jax.model.memory import Memory
from longctx_jax.runtime import chips
from longctx_jax.runtime.chips import Slice


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is known of a workload on a slice.

  Attributes:
    workload: what is asked of the devices.
    place: the slice.
    mfu: share of the peak operations that the time is stated at.
    estimates: program -> bytes by the analytic model.
    compiled: program -> what the compiler says; empty where none ran.
    longest: ids of the longest context that fits, by the analytic model.
    longest_compiled: of the largest program at that length.
    smallest: the smallest slice of this chip that fits; None where none does.
    smallest_compiled: of the largest program there.
    elsewhere: the smallest slice of each other chip that has one.
  """

  workload: Workload
  place: Slice
  mfu: float
  estimates: dict[str, Memory]
  compiled: dict[str, Compiled]
  longest: int
  longest_compiled: Compiled | None
  smallest: Slice | None
  smallest_compiled: Compiled | None
  elsewhere: tuple[Slice, ...]

  @property
  def fits(self) -> bool:
    """Whether all programs do: by the compiler, or by the analytic model."""
    if self.compiled:
      return all(program.fits for program in self.compiled.values())
    return search.largest(self.estimates)[1].peak <= self.place.chip.hbm

  @property
  def seconds(self) -> float:
    """Of one unit of the workload, all chips at the stated MFU."""
    rate = self.place.size * self.place.chip.peak_flops * self.mfu
    return self.workload.operations().total / rate


def make(
  workload: Workload, place: Slice, *, mfu: float, compiles: bool = True
) -> Plan:
  """Plans a workload on a slice.

  Args:
    workload: what is asked of the devices.
    place: the slice.
    mfu: share of the peak operations, for the time.
    compiles: whether the programs are compiled, the longest context and the
      smallest slice included; needs libtpu, and is left out with a word where
      there is none.

  Raises:
    ValueError: a mesh that does not fit the slice, the batch or the model, or
      an impossible MFU.
  """
  if not 0 < mfu <= 1:
    raise ValueError(f"mfu={mfu} must be above 0 and at most 1, e.g. 0.4")
  estimates = search.estimate(workload, place)
  longest = search.longest_context(workload, place)
  smallest = search.smallest_slice(workload, place.chip.slices)
  others = [chip for chip in chips.CHIPS.values() if chip != place.chip]
  found = [search.smallest_slice(workload, chip.slices) for chip in others]
  elsewhere = [one for one in found if one]
  if compiles and not compiler.is_here():
    logging.warning(
      "there is no TPU compiler here, so that all numbers are the analytic "
      "model's, within a tenth: pip install libtpu"
    )
    compiles = False
  known: dict[tuple[str, int, str], Compiled] = {}

  def look(name: str, length: int, where: Slice) -> Compiled:
    key = name, length, where.name
    if key not in known:
      asked = workload
      if length != workload.length:
        asked = workload.with_length(length)
      known[key] = compiler.compile_program(asked, name, where)
    return known[key]

  compiled, at_longest, at_smallest = {}, None, None
  if compiles:
    compiled = {name: look(name, workload.length, place) for name in estimates}
    if longest:
      long = workload.with_length(longest)
      name, _ = search.largest(search.estimate(long, place))
      at_longest = look(name, longest, place)
    if smallest:
      name, _ = search.largest(search.estimate(workload, smallest))
      at_smallest = look(name, workload.length, smallest)
  return Plan(
    workload=workload,
    place=place,
    mfu=mfu,
    estimates=estimates,
    compiled=compiled,
    longest=longest,
    longest_compiled=at_longest,
    smallest=smallest,
    smallest_compiled=at_smallest,
    elsewhere=tuple(elsewhere),
  )


def require_fit(plan: Plan) -> None:
  """Raises ValueError where a program does not fit, with what would."""
  if plan.fits:
    return
  name, memory = search.largest(plan.estimates)
  found = plan.compiled.get(name)
  needed = (found.peak if found else 0) or memory.peak
  slices = [plan.smallest] if plan.smallest else plan.elsewhere
  ways = [f"--topology {one.name}" for one in slices]
  if plan.longest:
    ways.append(f"at most {plan.longest:,} ids")
  if plan.workload.has_rows_to_part(plan.place.size):
    ways.append("more of optimizer.accumulate")
  raise ValueError(
    f"the {name} takes {needed / 2**30:.1f} GiB of the "
    f"{plan.place.chip.hbm / 2**30:.2f} GiB of each chip of "
    f"{plan.place.name}, for {plan.workload.unit}: take "
    f"{', or '.join(ways) or 'another chip'}"
  )
