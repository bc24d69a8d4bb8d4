"""Processes that end together, over loopback.

The functions below it are what each process runs.
"""

import ctypes
import os
import signal
import threading
import time

import pytest
from support import loopback

from longctx_jax.runtime import channel, failures, watch


def end_while_another_computes():
  """Process 1 has an error; the main thread of process 0 is at work."""
  watch.machine.raise_on_sigterm()
  try:
    with watch.Watch(failures.explain):
      if channel.index():
        raise ValueError("bad input")
      while True:
        time.sleep(0.01)
  except KeyboardInterrupt as error:
    print(f"heard: {error}")
    watch.leave(2)
  except ValueError:
    watch.leave(2)


def die():
  """Process 1 is killed; process 0 is stuck, as in a pass on a device."""
  watch.SILENT_SECONDS, watch.GRACE_SECONDS = 4.0, 1.0
  watch.machine.raise_on_sigterm()
  with watch.Watch(failures.explain):
    if channel.index():
      time.sleep(2)
      os.kill(os.getpid(), signal.SIGKILL)
    # No handler of Python's runs in here.
    ctypes.CDLL(None).sleep(60)


def test_one_process_watches_nothing():
  threads = threading.active_count()
  with watch.Watch(failures.explain):
    assert threading.active_count() == threads
  with pytest.raises(ValueError, match="own"), watch.Watch(failures.explain):
    raise ValueError("own")
  with pytest.raises(SystemExit) as caught:
    watch.leave(7)
  assert caught.value.code == 7


def test_an_error_reaches_a_process_at_work(tmp_path):
  running = loopback.call_all(
    "runtime.watch_test:end_while_another_computes", count=2, cwd=tmp_path
  )
  first, second = loopback.finish(running)
  assert first == (2, "heard: process 1 of 2 ended: bad input\n")
  assert second[0] == 2


def test_a_killed_process_ends_one_that_hangs(tmp_path):
  running = loopback.call_all("runtime.watch_test:die", count=2, cwd=tmp_path)
  first, second = loopback.finish(running)
  assert second[0] == -signal.SIGKILL
  assert first[0] == 2
  assert "error: process 1 of 2 was not heard of for" in first[1]
