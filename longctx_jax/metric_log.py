"""What a training run reports: a line per interval, and TensorBoard events."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorboardX

_RATIOS = {
  # name -> (sum, count): divided here and nowhere before.
  "loss": ("weighted_nll", "targets"),
  "nll": ("nll", "targets"),
  "weighted_nll": ("weighted_nll", "weight"),
  "mean_weight": ("weight", "targets"),
  "clipped_share": ("clipped", "targets"),
  "key_share": ("key", "targets"),
  "key_nll": ("key_nll", "key"),
}


def pooled_values(
  sums: Sequence[Mapping[str, Any]],
) -> dict[str, float | None]:
  """Values of an interval from the sums of its steps, in nats.

  `loss` is sum(w nll) / targets, what is minimised (paper, Eq. 8), `nll` the
  same without weights, `weighted_nll` sum(w nll) / sum(w). `grad_norm` is the
  mean over the steps, before clipping. A ratio without a count is None.
  """
  total = {
    name: float(np.sum([step[name] for step in sums], dtype=np.float64))
    for name in sums[0]
  }
  values = {
    name: total[top] / total[bottom] if total[bottom] else None
    for name, (top, bottom) in _RATIOS.items()
    if top in total and bottom in total
  }
  return values | {"grad_norm": total["grad_norm"] / len(sums)}


class MetricLog:
  """`workdir`/metrics.jsonl and `workdir`/tensorboard, a row per interval."""

  def __init__(
    self, workdir: str | os.PathLike[str], *, after: int, writes: bool = True
  ):
    """Opens both to go on after a step; later rows of a killed run go.

    Args:
      workdir: exists.
      after: last step whose rows stay.
      writes: False in all processes but one: nothing is opened or written.
    """
    self._writes = writes
    if not writes:
      return
    self._path = pathlib.Path(workdir) / "metrics.jsonl"
    kept = [
      line
      for line in _whole_lines(self._path)
      if json.loads(line)["step"] <= after
    ]
    temporary = self._path.with_name(self._path.name + ".tmp")
    temporary.write_text("".join(kept))
    os.replace(temporary, self._path)
    self._file = self._path.open("a")
    self._events = tensorboardX.SummaryWriter(
      str(self._path.parent / "tensorboard"), purge_step=after + 1
    )

  def write(self, step: int, values: Mapping[str, float | None]) -> None:
    """Writes one row to both; a value that is no number is null."""
    if not self._writes:
      return
    finite = {
      name: value if value is not None and math.isfinite(value) else None
      for name, value in values.items()
    }
    self._file.write(json.dumps({"step": step} | finite) + "\n")
    self._file.flush()
    for name, value in finite.items():
      if value is not None:
        self._events.add_scalar(name, value, step)
    self._events.flush()

  def close(self) -> None:
    """Closes both files."""
    if self._writes:
      self._file.close()
      self._events.close()


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """The rows of `workdir`/metrics.jsonl."""
  path = pathlib.Path(workdir) / "metrics.jsonl"
  return [json.loads(line) for line in _whole_lines(path)]


def _whole_lines(path):
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  return [line for line in lines if line.endswith("\n")]
