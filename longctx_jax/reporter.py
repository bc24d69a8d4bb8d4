"""From sums of training steps to rows, a line of progress, and a halt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging

from longctx_jax import metric_log
from longctx_jax.metric_log import MetricLog
from longctx_jax.progress import StepClock

# Below this share of key and of capped targets a scorer retrieves nothing: real
# text has 0.3 % and more.
_LEAST_SHARE = 5e-4
_JUDGED_STEPS = 20


class Diverged(ValueError):
  """The loss, or its gradient, is no finite number."""


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
    values = metric_log.pooled_values(sums) | {
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
        warn_of_flat_weights(metric_log.pooled_values(self._early))


def require_finite(
  steps: Sequence[int], sums: Sequence[Mapping[str, Any]]
) -> None:
  """Raises Diverged where a loss or a gradient norm is not finite."""
  for step, one in zip(steps, sums, strict=True):
    if not np.isfinite([one["weighted_nll"], one["grad_norm"]]).all():
      raise Diverged(
        f"the loss is not finite at step {step} (steps {steps[0]} to "
        f"{steps[-1]} were read together): weighted NLL "
        f"{one['weighted_nll']}, gradient norm {one['grad_norm']}. The last "
        "checkpoint is from before it; try a lower learning_rate, more "
        "warmup_steps, or clip_norm"
      )


def warn_of_flat_weights(values: Mapping[str, float | None]) -> bool:
  """Warns where weights single out no target, so that LongCE is CE.

  Args:
    values: of the first steps; see `metric_log.pooled_values`.

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
