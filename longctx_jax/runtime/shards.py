"""Which part of the work is whose, where several processes share it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

_AUTO = (
  "SLURM_ARRAY_TASK_ID",
  "SLURM_ARRAY_TASK_MIN",
  "SLURM_ARRAY_TASK_COUNT",
)


@dataclasses.dataclass(frozen=True)
class Shard:
  """One of `count` shares: what stands at `index`, `index` + `count`, ...

  Attributes:
    index: from 0.
    count: of the shares.
  """

  index: int
  count: int

  def __post_init__(self):
    if not 0 <= self.index < self.count:
      raise ValueError(
        f"shard {self.index}/{self.count}: expected i/n with 0 <= i < n, e.g. "
        "0/8 to 7/8"
      )

  @property
  def taken(self) -> slice:
    """Of a sequence: the items of this share."""
    return slice(self.index, None, self.count)

  def takes(self, place: int) -> bool:
    """Whether the item at a place is one of this share."""
    return place % self.count == self.index

  def __str__(self) -> str:
    return f"{self.index}/{self.count}"


WHOLE = Shard(0, 1)


def parse(text: str, environment: Mapping[str, str]) -> Shard:
  """The shard that "i/n", "auto" or "auto/n" means.

  Args:
    text: "auto" takes index and count of a SLURM job array; "auto/n" the index
      alone, also that of an indexed job (JOB_COMPLETION_INDEX).
    environment: variables of the process.

  Raises:
    ValueError: anything else, or a variable that is missing or no number.
  """
  match = re.fullmatch(r"(\d+|auto)(?:/(\d+))?", text)
  if not match or text.isdigit():
    raise ValueError(f"shard={text!r} must be i/n, e.g. 0/8, auto, or auto/8")
  index, count = match.groups()
  if index != "auto":
    return Shard(int(index), int(count))
  if count and "JOB_COMPLETION_INDEX" in environment:
    return Shard(_number(environment, "JOB_COMPLETION_INDEX"), int(count))
  needed = _AUTO[:2] if count else _AUTO
  missing = [name for name in needed if name not in environment]
  if missing:
    raise ValueError(
      f"shard={text!r}: {', '.join(missing)} not set: this is no SLURM job "
      "array. Give --shard i/n, or --shard auto/n in an indexed job"
    )
  task, first, *total = (_number(environment, name) for name in needed)
  return Shard(task - first, int(count) if count else total[0])


def _number(environment: Mapping[str, str], name: str) -> int:
  if not environment[name].isdigit():
    raise ValueError(f"{name}={environment[name]!r} is no number")
  return int(environment[name])
