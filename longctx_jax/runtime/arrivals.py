"""Results of programs that run on the devices while the next is prepared."""

from __future__ import annotations

import queue
import threading
import time
from types import TracebackType
from typing import Any

import jax
import numpy as np
from absl import logging

from longctx_jax.runtime.progress import Usage

_LINE_SECONDS = 30.0


class Arrival:
  """A result that comes; made by `Arrivals.expect`."""

  def __init__(self, name: str):
    """Names what the program reads, for the log."""
    self._name = name
    self._came = threading.Event()
    self._value: np.ndarray | BaseException | None = None

  def wait(self) -> np.ndarray:
    """The result on the host; a line every half a minute until it is there.

    Raises:
      Exception: what the program raised.
    """
    start = time.monotonic()
    while not self._came.wait(_LINE_SECONDS):
      seconds = time.monotonic() - start
      logging.info("still reading %s: %.0f s", self._name, seconds)
    if isinstance(self._value, BaseException):
      raise self._value
    return self._value

  def _come(self, value: np.ndarray | BaseException) -> None:
    self._value = value
    self._came.set()


class Arrivals:
  """Fetches results in the order of their programs, and times the devices.

  A thread waits for each result, so that its time is that of the device and
  not that of whoever asks for it later. The devices work from the moment a
  program is handed to them, or the one before it ends, until its own end.
  A context: at its end the thread ends; what has not come by then is left.
  """

  def __init__(self, usage: Usage):
    """Counts the time into `usage.busy_seconds`."""
    self._usage = usage
    self._expected: queue.SimpleQueue[tuple[Any, float, Arrival] | None] = (
      queue.SimpleQueue()
    )
    self._given_up = False
    self._thread = threading.Thread(target=self._fetch, daemon=True)

  def expect(
    self, result: jax.Array | np.ndarray, *, name: str, started: float
  ) -> Arrival:
    """A result that a program will give.

    Args:
      result: of a program that was handed to the devices.
      name: what it reads, for the log.
      started: `time.monotonic()` just before that.
    """
    arrival = Arrival(name)
    self._expected.put((result, started, arrival))
    return arrival

  def _fetch(self) -> None:
    ended = 0.0
    for result, started, arrival in iter(self._expected.get, None):
      if self._given_up:
        continue
      try:
        # Ready is earlier than here: the copy is no work of the device.
        jax.block_until_ready(result)
        now = time.monotonic()
        self._usage.busy_seconds += now - max(started, ended)
        ended = now
        arrival._come(np.asarray(result))
      except BaseException as error:  # noqa: BLE001  raised by `wait`
        arrival._come(error)

  def __enter__(self) -> Arrivals:
    self._thread.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    self._given_up = kind is not None
    self._expected.put(None)
    if kind is None:
      self._thread.join()
