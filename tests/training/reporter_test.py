"""What a run says of itself, and when it stops."""

import math

import numpy as np
import pytest
from absl import logging

from longctx_jax.runtime.progress import StepClock
from longctx_jax.training import metrics
from longctx_jax.training import metrics as metrics_lib

SUMS = dict(nll=6.0, weighted_nll=9.0, weight=5.0, targets=3.0, clipped=1.0,
            scored=2.0, key=1.0, key_nll=0.5, grad_norm=2.0)  # fmt: skip
FLAT = SUMS | dict(weight=3.0, clipped=0.0, key=0.0, key_nll=0.0)


@pytest.fixture
def make(tmp_path):
  logs = []

  def make(**options):
    logs.append(metrics.MetricLog(tmp_path, after=0))
    times = iter(np.arange(0.0, 1000.0, 2.0))
    return metrics_lib.Reporter(
      logs[-1],
      StepClock(10, clock=lambda: next(times)),
      **dict(
        total=10,
        learning_rate=lambda step: 0.1 * step,
        weighted=True,
        utilisation=lambda rate: 0.5 * rate,
      )
      | options,
    )

  yield make
  for log in logs:
    log.close()


@pytest.fixture
def warnings(monkeypatch):
  found = []
  monkeypatch.setattr(
    logging, "warning", lambda text, *values: found.append(text % values)
  )
  return found


def test_a_row_covers_the_steps_since_the_last_one(make, tmp_path):
  report = make()
  report.pending = [(1, SUMS), (2, SUMS)]
  report.report()
  (row,) = metrics.read_metrics(tmp_path)
  assert row["step"] == 2 and row["loss"] == 3.0 and row["tokens"] == 6.0
  # The clock moves 2 s between the start and the lap.
  assert row["tokens_per_second"] == 3.0 and row["mfu"] == 0.5
  assert row["learning_rate"] == 0.1  # That of step 2: one was done before.
  report.report()
  assert len(metrics.read_metrics(tmp_path)) == 1


@pytest.mark.parametrize("field", ["weighted_nll", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_stops_the_run_by_step(make, tmp_path, field, value):
  report = make()
  report.pending = [(4, SUMS), (5, SUMS | {field: value}), (6, SUMS)]
  with pytest.raises(metrics_lib.Diverged, match=r"at step 5 \(steps 4 to 6"):
    report.report()
  assert not metrics.read_metrics(tmp_path)


@pytest.mark.parametrize("steps", [1, 3, 5, 10])
def test_weights_that_stay_at_1_are_told_once(make, warnings, steps):
  report = make()
  for first in range(1, 11, steps):
    report.pending = [
      (step, FLAT) for step in range(first, min(first + steps, 11))
    ]
    report.report()
  (text,) = warnings
  assert "stay at 1" in text and "cannot retrieve" in text


def test_weights_that_single_out_targets_are_not(make, warnings):
  report = make()
  report.pending = [(step, FLAT) for step in range(1, 10)] + [(10, SUMS)]
  report.report()
  assert not warnings


def test_ce_has_no_weights_to_judge(make, warnings):
  report = make(weighted=False)
  report.pending = [(step, FLAT) for step in range(1, 11)]
  report.report()
  assert not warnings
