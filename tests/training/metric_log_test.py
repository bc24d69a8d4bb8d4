"""Rows of a run: pooled, finite or null, cut where a killed run goes on."""

import json
import math

from longctx_jax.training.metrics import MetricLog, pooled_values, read_metrics


def sums(**changes):
  return (
    dict(nll=6.0, weighted_nll=9.0, weight=5.0, targets=3.0, clipped=1.0,
         scored=2.0, key=1.0, key_nll=0.5, grad_norm=2.0) | changes
  )  # fmt: skip


def test_steps_are_pooled_and_never_a_mean_of_means():
  values = pooled_values([sums(), sums(nll=2.0, targets=1.0, grad_norm=4.0)])
  assert values["nll"] == 8 / 4
  assert values["loss"] == 18 / 4
  assert values["weighted_nll"] == 18 / 10
  assert values["mean_weight"] == 10 / 4
  assert values["clipped_share"] == values["key_share"] == 2 / 4
  assert values["key_nll"] == 0.5
  assert values["grad_norm"] == 3.0


def test_a_ratio_without_a_count_is_none():
  values = pooled_values([sums(key=0.0, key_nll=0.0)])
  assert values["key_nll"] is None and values["key_share"] == 0.0


def test_rows_are_json_with_finite_numbers(tmp_path):
  log = MetricLog(tmp_path, after=0)
  log.write(1, {"loss": 2.5, "mfu": None, "key_nll": math.nan})
  log.close()
  (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert json.loads(line) == {
    "step": 1, "loss": 2.5, "mfu": None, "key_nll": None,
  }  # fmt: skip


def test_a_run_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path):
  log = MetricLog(tmp_path, after=0)
  for step in (1, 2, 3):
    log.write(step, {"loss": float(step)})
  log.close()
  with (tmp_path / "metrics.jsonl").open("a") as file:
    file.write('{"step": 4, "lo')  # The kill came within a line.
  log = MetricLog(tmp_path, after=2)
  log.write(3, {"loss": 30.0})
  log.close()
  assert [row["loss"] for row in read_metrics(tmp_path)] == [1.0, 2.0, 30.0]


def test_other_processes_write_nothing(tmp_path):
  log = MetricLog(tmp_path, after=0, writes=False)
  log.write(1, {"loss": 1.0})
  log.close()
  assert not list(tmp_path.iterdir())


def test_tensorboard_gets_the_values(tmp_path):
  log = MetricLog(tmp_path, after=0)
  log.write(7, {"loss": 2.5})
  log.close()
  (path,) = (tmp_path / "tensorboard").iterdir()
  # Of the record: tag, and the value as float32.
  assert b"loss" in path.read_bytes()
