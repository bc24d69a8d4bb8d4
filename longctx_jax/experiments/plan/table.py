"""A plan for readers: lines of text, or a row of a Markdown table."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator

from longctx_jax.experiments.plan import search
from longctx_jax.experiments.plan.compiler import Compiled
from longctx_jax.experiments.plan.run import Plan
from longctx_jax.model import parameters, sharding

_GIB = 2**30
_COLUMNS = (
  "config", "program", "slice", "weights", "optimizer", "temporaries", "peak",
  "operations", "long / short / head", "time", "longest context",
  "smallest slice", "peak, compiled",
)  # fmt: skip


def text(plan: Plan) -> str:
  """The whole plan, a fact a line."""
  return "\n".join(
    f"{name:<18}{value}".rstrip() for name, value in _lines(plan)
  )


def header() -> str:
  """Head of the Markdown table."""
  return f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}"


def row(plan: Plan, config: str, model: str = "") -> str:
  """A row of the Markdown table; bytes are GiB of a chip.

  Args:
    plan: its largest program is shown.
    config: file of the config, which ":" and a variant may follow.
    model: in place of the one that the config names, if any.
  """
  name, memory = search.largest(plan.estimates)
  operations = plan.workload.operations()
  found = plan.compiled.get(name)
  label = f"`{pathlib.Path(config).name.replace('.py', '')}` {model}"
  cells = (
    label.strip(),
    name,
    plan.place.name,
    *(
      f"{size / _GIB:.2f}"
      for size in (memory.weights, memory.optimizer, memory.temporaries)
    ),
    f"{memory.peak / _GIB:.2f} of {_hbm(plan)}",
    f"{operations.total:.2e}",
    _shares(plan),
    _time(plan.seconds),
    f"{plan.longest:,}",
    plan.smallest.name if plan.smallest else "none",
    _verdict(found) if found else "not compiled",
  )
  return f"| {' | '.join(cells)} |"


def _lines(plan: Plan) -> Iterator[tuple[str, str]]:
  workload, place = plan.workload, plan.place
  mesh = sharding.mesh_shape(workload.sizes, place.size)
  count = sum(
    math.prod(shape)
    for shape in parameters.parameter_shapes(workload.facts).values()
  )
  yield "model", f"{workload.model}: {count / 1e9:.2f} B parameters"
  yield "work", f"{workload.kind}: {workload.unit}"
  hosts = f"{place.hosts} host{'s' if place.hosts > 1 else ''}"
  yield (
    "slice",
    f"{place.name}: {place.size} chips of {_hbm(plan)} GiB on {hosts}; mesh "
    + ", ".join(f"{axis} {size}" for axis, size in mesh.items()),
  )
  for name, memory in plan.estimates.items():
    yield name, "bytes of a device"
    for part in ("weights", "optimizer", "temporaries", "peak"):
      size = f"{getattr(memory, part) / _GIB:.2f} GiB"
      yield f"  {part}", size + _beside(plan.compiled.get(name), part)
  operations = workload.operations()
  yield "operations", f"{operations.total:.3g} for {workload.unit}"
  yield "", f"long / short / head: {_shares(plan)}"
  yield "time", f"{_time(plan.seconds)} at an MFU of {plan.mfu:g}"
  if workload.units:
    whole = _time(workload.units * plan.seconds)
    yield "", f"{workload.units} of them: {whole}"
  for name, found in plan.compiled.items():
    for kind, traffic in found.traffic.items():
      sent = f"{traffic.count:,} x {kind}, {traffic.size / _GIB:.2f} GiB"
      yield "collectives", f"{sent} in a {name}"
  longest = f"{plan.longest:,} ids" if plan.longest else "none from 1,024 ids"
  yield "longest context", longest + _confirmed(plan.longest_compiled)
  reach = workload.facts.max_position
  if plan.longest > reach:
    yield "", f"the RoPE table reaches {reach:,}"
  smallest = plan.smallest.name if plan.smallest else f"no {place.chip.name}"
  yield "smallest slice", smallest + _confirmed(plan.smallest_compiled)
  if plan.elsewhere:
    yield "", f"elsewhere: {', '.join(one.name for one in plan.elsewhere)}"
  if not plan.compiled:
    yield "not compiled", "bytes are the analytic model's, within 10 %"


def _hbm(plan: Plan) -> str:
  return f"{plan.place.chip.hbm / _GIB:.2f}"


def _beside(found: Compiled | None, part: str) -> str:
  """What the compiler says of a part; weights and optimizer are exact."""
  if not found or part in ("weights", "optimizer"):
    return ""
  if not found.fits:
    return f"; {_verdict(found)}" if part == "peak" else ""
  return f"; compiled: {getattr(found, part) / _GIB:.2f} GiB"


def _verdict(found: Compiled) -> str:
  """The peak that the compiler found, or that it refused."""
  size = f"{found.peak / _GIB:.2f}"
  if found.fits:
    return size
  return f"refused: {size} GiB" if found.peak else "refused by the compiler"


def _confirmed(found: Compiled | None) -> str:
  if not found:
    return ""
  if not found.fits:
    return f" ({_verdict(found)})"
  return f" (compiled: {found.peak / _GIB:.2f} GiB)"


def _shares(plan: Plan) -> str:
  operations = plan.workload.operations()
  return " / ".join(
    f"{part / operations.total:.0%}"
    for part in (operations.long, operations.short, operations.head)
  )


def _time(seconds: float) -> str:
  """A duration in its largest fitting unit."""
  for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
    if seconds >= size:
      return f"{seconds / size:.3g} {unit}"
  return f"{seconds * 1000:.3g} ms"
