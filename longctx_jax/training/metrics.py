"""What a training run reports: a line per interval, and TensorBoard events."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorboardX
from absl import logging

from longctx_jax.runtime import files
from longctx_jax.runtime.progress import StepClock

ROWS, EVENTS = "metrics.jsonl", "tensorboard"
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
      after: last step whose rows stay; -1 where none do.
      writes: False in all processes but one: nothing is opened or written.
    """
    self._writes = writes
    if not writes:
      return
    self._path = pathlib.Path(workdir) / ROWS
    kept = [
      line
      for line in _whole_lines(self._path)
      if json.loads(line)["step"] <= after
    ]
    files.write_text(self._path, "".join(kept))
    self._file = self._path.open("a")
    self._events = tensorboardX.SummaryWriter(
      str(self._path.parent / EVENTS), purge_step=after + 1
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
  path = pathlib.Path(workdir) / ROWS
  return [json.loads(line) for line in _whole_lines(path)]


def _whole_lines(path: pathlib.Path) -> list[str]:
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  return [line for line in lines if line.endswith("\n")]


# Below this share of key and of capped targets a scorer retrieves nothing: real
# text has 0.3 % and more.
_LEAST_SHARE = 5e-4
_JUDGED_STEPS = 20


class Diverged(ValueError):
  """The loss, or its gradient, is no finite number.

  Attributes:
    step: the first at which it was seen.
  """

  def __init__(self, message: str, step: int):
    super().__init__(message)
    self.step = step


class Reporter:
  """Reads the sums of steps, several at a time, and writes a row of them.

  Attributes:
    pending: (step, sums) not yet read; the sums may still be computed.
  """

  def __init__(
    self,
    log: MetricLog,
    clock: StepClock,
    *,
    total: int,
    learning_rate: Callable[[int], Any],
    weighted: bool,
    utilisation: Callable[[float], float | None],
  ):
    """Reports to a log.

    Args:
      log: gets the rows.
      clock: of the run.
      total: steps of the run.
      learning_rate: as a function of the steps done before.
      weighted: whether targets carry weights, which are then judged.
      utilisation: MFU at a number of steps per second, None where unknown.
    """
    self.pending: list[tuple[int, Mapping[str, Any]]] = []
    self._log = log
    self._clock = clock
    self._total = total
    self._learning_rate = learning_rate
    self._utilisation = utilisation
    self._unjudged = min(_JUDGED_STEPS, total) if weighted else 0
    self._early: list[Mapping[str, Any]] = []

  def report(self) -> None:
    """Writes a row over the steps since the last one.

    Raises:
      Diverged: a loss or gradient norm is not finite; the step is named.
    """
    if not self.pending:
      return
    steps, sums = zip(*jax.device_get(self.pending), strict=True)
    self.pending = []
    require_finite(steps, sums)
    seconds = self._clock.lap(steps[-1], len(steps))
    tokens = float(sum(one["targets"] for one in sums))
    values = pooled_values(sums) | {
      "learning_rate": float(self._learning_rate(steps[-1] - 1)),
      "tokens": tokens,
      "tokens_per_second": tokens / seconds,
      "mfu": self._utilisation(len(steps) / seconds),
    }
    self._log.write(steps[-1], values)
    logging.info(
      "step %d of %d | loss %.4f | NLL %.4f | mean weight %.3f | "
      "%s tokens/s%s | %s left",
      steps[-1],
      self._total,
      *(values[name] for name in ("loss", "nll", "mean_weight")),
      f"{values['tokens_per_second']:,.0f}",
      f" | MFU {values['mfu']:.1%}" if values["mfu"] is not None else "",
      self._clock.time_left(),
    )
    if steps[0] <= self._unjudged:
      self._early += sums
      if steps[-1] >= self._unjudged:
        warn_of_flat_weights(pooled_values(self._early))


def require_finite(
  steps: Sequence[int], sums: Sequence[Mapping[str, Any]]
) -> None:
  """Raises Diverged where a loss or a gradient norm is not finite."""
  for step, one in zip(steps, sums, strict=True):
    if not np.isfinite([one["weighted_nll"], one["grad_norm"]]).all():
      raise Diverged(
        f"the loss is not finite at step {step} (steps {steps[0]} to "
        f"{steps[-1]} were read together): weighted NLL "
        f"{one['weighted_nll']}, gradient norm {one['grad_norm']}",
        step,
      )


def warn_of_flat_weights(values: Mapping[str, float | None]) -> bool:
  """Warns where weights single out no target, so that LongCE is CE.

  Args:
    values: of the first steps; see `pooled_values`.

  Returns:
    Whether it warned.
  """
  if max(values["key_share"], values["clipped_share"]) >= _LEAST_SHARE:
    return False
  logging.warning(
    "the weights stay at 1 (mean %.4f; %.4f%% of the targets are key tokens, "
    "%.4f%% are at the cap): the scorer cannot retrieve from its long context, "
    "or the documents do not ask for it. LongCE is then no better than CE: "
    "extend the context by another RoPE table, train with CE first, or take "
    "stored weights from an evaluator that retrieves",
    values["mean_weight"],
    100 * values["key_share"],
    100 * values["clipped_share"],
  )
  return True
