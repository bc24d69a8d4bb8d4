"""Speed and time left, told by a clock that the test turns."""

import time

import pytest

from longctx_jax.runtime import progress as progress_lib
from longctx_jax.runtime.progress import Progress, StepClock, Usage


class Clock:
  """Seconds that pass when the test says so."""

  def __init__(self):
    self.now = 1000.0

  def __call__(self):
    return self.now


@pytest.fixture
def clock():
  return Clock()


@pytest.fixture
def usage():
  """Of a scorer that did something before."""
  return Usage(tokens=500, compile_seconds=7.0, compilations=2)


def test_compilation_counts_in_no_speed(clock, usage):
  progress = Progress("score", 10, usage, clock=clock)
  clock.now += 25
  usage.compile_seconds += 5
  usage.tokens += 4000
  progress.advance(2)
  assert (progress.seconds, progress.tokens_per_second) == (20, 200)
  assert str(progress) == (
    "score: 2 of 10 documents | 200 tokens/s | 1:20 left | padding 0%"
  )


def test_documents_of_an_earlier_run_do_not_shorten_the_time_left(clock, usage):
  progress = Progress("score", 10, usage, clock=clock)
  progress.skip(6)
  clock.now += 30
  progress.advance(1)
  assert "7 of 10" in str(progress) and "1:30 left" in str(progress)


def test_the_first_line_has_no_division_by_nothing(clock, usage):
  progress = Progress("score", 10, usage, clock=clock)
  assert progress.tokens_per_second == 0 and "0 of 10" in str(progress)


def test_long_work_is_told_in_hours_and_padding_in_per_cent(clock, usage):
  progress = Progress("m", 1001, usage, clock=clock)
  clock.now += 4.0
  usage.fed, usage.needed = 400, 300
  progress.advance()
  assert "1:06:40 left | padding 25%" in str(progress)


def test_a_line_at_most_every_ten_seconds_and_the_totals_at_the_end(
  clock, usage, caplog
):
  progress = Progress("score", 100, usage, clock=clock)
  with caplog.at_level("INFO"):
    for _ in range(25):
      clock.now += 1
      progress.advance()
    # `caplog.text` was formatted when the line came, `messages` is later.
    lines = caplog.text.splitlines()
    assert ["10 of" in lines[0], "20 of" in lines[1]] == [True, True]
    assert len(lines) == 2
    caplog.clear()
    progress.skip(75)
    usage.compile_seconds += 1.5
    usage.compilations += 1
    progress.finish()
  assert caplog.messages == [
    "score: 25 documents in 0:24 (+ 1.5 s for 1 compilations) | 0 tokens/s | "
    "padding 0%"
  ]


def test_pauses_count_in_no_lap_and_no_time_left(clock):
  steps = StepClock(100, clock=clock)
  with steps.pause():
    clock.now += 500.0  # Compiles.
  clock.now += 30.0
  assert steps.lap(10, 10) == 30.0
  with steps.pause():
    clock.now += 77.0  # Evaluates.
  clock.now += 60.0
  assert steps.lap(30, 20) == 60.0
  # 3 s a step, 70 steps.
  assert steps.time_left() == "3:30"


def test_a_resumed_run_counts_its_own_steps(clock):
  steps = StepClock(100, clock=clock)
  clock.now += 20.0
  steps.lap(90, 10)  # It went on after step 80.
  assert steps.time_left() == "0:20"


def test_a_long_document_tells_its_windows(clock, usage, caplog):
  """Also before the first document is finished."""
  caplog.set_level("INFO", "absl")
  progress = Progress("score", 2, usage, clock=clock)
  usage.count_windows(begun=400)
  for _ in range(8):
    clock.now += 5
    usage.count_windows(scored=10)
  lines = caplog.text.splitlines()
  assert len(lines) == 4
  assert "score: 0 of 2 documents + 20 of 400 windows | " in lines[0]
  assert "time left unknown" in lines[0]
  assert "+ 80 of 400 windows" in lines[-1]
  usage.count_windows(scored=320)
  assert "windows" not in str(progress)


def test_what_lasts_is_told_at_its_start_and_again(monkeypatch, caplog):
  monkeypatch.setattr(progress_lib, "_LINE_SECONDS", 0.01)
  caplog.set_level("INFO", "absl")
  for announced in (True, False):
    caplog.clear()
    with progress_lib.heartbeat("m0", doing="loading", announced=announced):
      while len(caplog.records) < 2 + announced:
        time.sleep(0.01)
    lines = [record.getMessage() for record in caplog.records]
    assert (lines[0] == "loading m0") == announced
    assert lines[-1] == "still loading m0: 0 s"
