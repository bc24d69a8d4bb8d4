"""What a run says of itself, and when it stops."""

import json
import math

import numpy as np
import pytest

from longctx_jax.runtime.progress import StepClock
from longctx_jax.training import metrics

SUMS = dict(nll=6.0, weighted_nll=9.0, weight=5.0, targets=3.0, clipped=1.0,
            scored=2.0, key=1.0, key_nll=0.5, grad_norm=2.0)  # fmt: skip
FLAT = SUMS | dict(weight=3.0, clipped=0.0, key=0.0, key_nll=0.0)


def test_steps_are_pooled_and_never_a_mean_of_means():
  values = metrics.pooled_values(
    [SUMS, SUMS | dict(nll=2.0, targets=1.0, grad_norm=4.0)]
  )
  assert values["nll"] == 8 / 4
  assert values["loss"] == 18 / 4
  assert values["weighted_nll"] == 18 / 10
  assert values["mean_weight"] == 10 / 4
  assert values["clipped_share"] == values["key_share"] == 2 / 4
  assert values["key_nll"] == 0.5
  assert values["grad_norm"] == 3.0


def test_a_ratio_without_a_count_is_none():
  values = metrics.pooled_values([SUMS | dict(key=0.0, key_nll=0.0)])
  assert values["key_nll"] is None and values["key_share"] == 0.0


def test_rows_are_json_with_finite_numbers(tmp_path):
  log = metrics.MetricLog(tmp_path, after=0)
  log.write(1, {"loss": 2.5, "mfu": None, "key_nll": math.nan})
  log.close()
  (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert json.loads(line) == {
    "step": 1, "loss": 2.5, "mfu": None, "key_nll": None,
  }  # fmt: skip


def test_a_run_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path):
  log = metrics.MetricLog(tmp_path, after=0)
  for step in (1, 2, 3):
    log.write(step, {"loss": float(step)})
  log.close()
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 4, "lo')  # The kill came within a line.
  log = metrics.MetricLog(tmp_path, after=2)
  log.write(3, {"loss": 30.0})
  log.close()
  assert [row["loss"] for row in metrics.read_metrics(tmp_path)] == [
    1.0,
    2.0,
    30.0,
  ]


def test_other_processes_write_nothing(tmp_path):
  log = metrics.MetricLog(tmp_path, after=0, writes=False)
  log.write(1, {"loss": 1.0})
  log.close()
  assert not list(tmp_path.iterdir())


def test_tensorboard_gets_the_values(tmp_path):
  log = metrics.MetricLog(tmp_path, after=0)
  log.write(7, {"loss": 2.5})
  log.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  # Of the record: tag, and the value as float32.
  assert b"loss" in path.read_bytes()


@pytest.fixture
def make(tmp_path):
  logs = []

  def make(**options):
    logs.append(metrics.MetricLog(tmp_path, after=0))
    times = iter(np.arange(0.0, 1000.0, 2.0))
    return metrics.Reporter(
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
  with pytest.raises(metrics.Diverged, match=r"at step 5 \(steps 4 to 6"):
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
