"""What devices send each other, read from the text of a compiled program."""

from __future__ import annotations

import collections
import dataclasses
import math
import re

KINDS = (
  "all-gather",
  "all-reduce",
  "reduce-scatter",
  "collective-permute",
  "all-to-all",
)
_BYTES = {"pred": 1, "bf16": 2, "f16": 2}
_ARRAY = re.compile(r"([a-z]+\d*)\w*\[([\d,]*)\]")
_HEAD = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\(")
_CALLED = re.compile(
  r"(?:calls|to_apply|body|branch_computations|called_computations)="
  r"(\{[^}]*\}|%?[\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Traffic:
  """The collectives of a kind, in one run of a program.

  Attributes:
    count: how many, those of a loop as often as it turns.
    size: bytes of their results on one device.
  """

  count: int
  size: int


def count(text: str) -> dict[str, Traffic]:
  """Collectives by kind, as a device takes part in them.

  A loop counts as often as its condition says: as the text states, or where
  it compares the counter with a constant. One that says neither counts once.

  Args:
    text: of `jax.stages.Compiled.as_text`.
  """
  computations, entry = _read(text)
  times = _times(computations, entry)
  found: dict[str, list[int]] = {kind: [0, 0] for kind in KINDS}
  for name, lines in computations.items():
    for _, shape, operation, _ in lines:
      kind = operation.removesuffix("-start")
      if kind in found:
        found[kind][0] += times[name]
        found[kind][1] += times[name] * _result_size(shape, operation)
  return {
    kind: Traffic(count, size) for kind, (count, size) in found.items() if count
  }


# (name, shape, operation, line) of each instruction, by computation.
_Lines = list[tuple[str, str, str, str]]


def _read(text: str) -> tuple[dict[str, _Lines], str]:
  """Instructions by computation, and the name of the first to run."""
  computations: dict[str, _Lines] = {}
  lines: _Lines = []
  entry = ""
  for line in text.splitlines():
    if head := _HEAD.match(line):
      lines = computations[head[2]] = []
      entry = head[2] if head[1] else entry
    elif match := _LINE.match(line):
      lines.append((*match.groups(), line))
  return computations, entry


def _times(computations: dict[str, _Lines], entry: str) -> collections.Counter:
  """How often each computation runs."""
  calls = {
    name: [
      (called, _turns(line, computations))
      for _, _, _, line in lines
      for group in _CALLED.findall(line)
      for called in re.findall(r"[\w.\-]+", group)
      if called in computations
    ]
    for name, lines in computations.items()
  }
  times: collections.Counter = collections.Counter()

  def run(name: str, often: int) -> None:
    times[name] += often
    for called, turns in calls[name]:
      run(called, often * turns)

  run(entry, 1)
  return times


def _turns(line: str, computations: dict[str, _Lines]) -> int:
  """How often an instruction runs what it calls: a loop's turns, else once."""
  if stated := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
    return int(stated[1])
  names = re.search(r"condition=%?([\w.\-]+), body=%?([\w.\-]+)", line)
  if not names:
    return 1
  condition, body = (computations[name] for name in names.groups())
  limits = _constants(condition)
  for _, _, operation, compared in condition:
    if operation == "compare" and "direction=LT" in compared:
      counter, limit = _operands(compared)[:2]
      if limit in limits:
        return -(-limits[limit] // _step(counter, condition, body))
  return 1


def _step(counter: str, condition: _Lines, body: _Lines) -> int:
  """By how much a turn raises the counter; 1 where the text does not show."""
  lines = {name: line for name, _, _, line in (*condition, *body)}
  place = re.search(r"index=(\d+)", lines[counter])
  root = next(line for *_, line in body if line.lstrip().startswith("ROOT"))
  if not place or " tuple(" not in root:
    return 1
  raised = lines[_operands(root)[int(place[1])]]
  steps = _constants(body)
  if " add(" not in raised:
    return 1
  return next((steps[n] for n in _operands(raised) if n in steps), 1)


def _operands(line: str) -> list[str]:
  """Names of an instruction's operands."""
  inside = re.sub(r"/\*.*?\*/", "", line.split(" = ", 1)[1])
  inside = re.search(r" [\w\-]+\((.*?)\)(?:,|$)", inside)
  return re.findall(r"%?([\w.\-]+)(?:,|$)", inside[1]) if inside else []


def _constants(lines: _Lines) -> dict[str, int]:
  """Whole numbers by the name of their instruction."""
  return {
    name: int(value[1])
    for name, _, operation, line in lines
    if operation == "constant"
    and (value := re.search(r"constant\((\d+)\)", line))
  }


def _result_size(shape: str, operation: str) -> int:
  """Bytes of a collective's result; one that starts holds its operands too."""
  if operation.endswith("-start") and operation != "all-reduce-start":
    shape = re.sub(r"\{[^{}]*\}", "", shape)  # Layouts have brackets too.
    groups = re.findall(r"\(([^()]*)\)", shape[1:])
    if groups:  # Several at once: (operands), (results).
      return _size(groups[-1])
    return max(_size(match[0]) for match in _ARRAY.finditer(shape))
  return _size(shape)


def _size(shape: str) -> int:
  """Bytes of the arrays in the text of a shape."""
  return sum(
    _item_size(match[1]) * math.prod(int(n) for n in match[2].split(",") if n)
    for match in _ARRAY.finditer(shape)
  )


def _item_size(dtype: str) -> int:
  """Bytes of an item: f32 has 4; f8e4m3 and what has no size of its own, 1."""
  bits = re.search(r"\d+", dtype)
  if dtype in _BYTES:
    return _BYTES[dtype]
  return int(bits[0]) // 8 if bits else 1
