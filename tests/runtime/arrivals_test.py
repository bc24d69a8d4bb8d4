"""What the devices give, and when; results that the test holds back."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.runtime import arrivals as arrivals_lib
from longctx_jax.runtime.arrivals import Arrivals
from longctx_jax.runtime.progress import Progress, Usage


@pytest.fixture
def usage():
  return Usage()


class Held:
  """Stands for a program that runs until the test ends it."""

  def __init__(self, value):
    self._value, self.end = value, threading.Event()

  def block_until_ready(self):
    self.end.wait()
    return self

  def __array__(self, dtype=None, copy=None):
    if isinstance(self._value, Exception):
      raise self._value
    return np.array(self._value)


def test_results_are_those_of_their_programs(usage):
  double = jax.jit(lambda x: x * 2)
  with Arrivals(usage) as arrivals:
    coming = [
      arrivals.expect(double(jnp.arange(i)), name="", started=time.monotonic())
      for i in range(5)
    ]
    for i, arrival in reversed(list(enumerate(coming))):
      np.testing.assert_array_equal(arrival.wait(), 2 * np.arange(i))


def test_an_error_of_a_program_comes_up_where_its_result_is_read(usage):
  bad, good = Held(RuntimeError("out of memory")), Held(3)
  bad.end.set(), good.end.set()
  with Arrivals(usage) as arrivals:
    first, second = (
      arrivals.expect(one, name="", started=time.monotonic())
      for one in (bad, good)
    )
    with pytest.raises(RuntimeError, match="out of memory"):
      first.wait()
    assert second.wait() == 3


def test_what_lasts_is_told(usage, monkeypatch, caplog):
  monkeypatch.setattr(arrivals_lib, "_LINE_SECONDS", 0.01)
  caplog.set_level("INFO", "absl")
  held = Held(1)
  with Arrivals(usage) as arrivals:
    arrival = arrivals.expect(held, name="a text of 9 ids", started=0.0)
    threading.Timer(0.1, held.end.set).start()
    arrival.wait()
  assert "still reading a text of 9 ids: 0 s" in caplog.messages


def test_a_run_that_ends_early_leaves_what_has_not_come(usage):
  held = Held(1)
  with pytest.raises(KeyboardInterrupt), Arrivals(usage) as arrivals:
    arrivals.expect(held, name="", started=0.0)
    raise KeyboardInterrupt
  held.end.set()


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_only_the_devices_time_counts_as_theirs(delay):
  """A host that sleeps between passes is the control: it makes them idle.

  The program really computes; its time alone is measured beside it.
  """
  x = jnp.ones((256, 256))
  work = jax.jit(
    lambda x: jax.lax.fori_loop(0, 60, lambda _, y: x @ y * 1e-3, x)
  )
  work(x).block_until_ready()
  usage = Usage()
  progress = Progress("score", 8, usage)
  with Arrivals(usage) as arrivals:
    coming = []
    for _ in range(8):
      time.sleep(delay)
      started = time.monotonic()
      coming.append(arrivals.expect(work(x), name="", started=started))
      if delay:
        coming[-1].wait()
    for arrival in coming:
      arrival.wait()
  idle = progress.seconds - usage.busy_seconds
  assert 0 < usage.busy_seconds < progress.seconds
  if delay:
    assert idle >= 8 * delay
    assert progress.busy_share < 1 - 8 * delay / progress.seconds + 0.01
  else:
    assert progress.busy_share > 0.7
