"""Notice that a machine is about to go away: a run saves, then ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import jax
from jax.experimental import multihost_utils

# What a shell reports of a program that SIGTERM ended.
STATUS = 128 + signal.SIGTERM


class Preemption:
  """Listens for SIGTERM while it is open.

  Clouds send it half a minute before they take a machine. Of several
  processes any may get it; JAX listens in each, and all agree on the step
  after which they end.
  """

  def __enter__(self) -> Preemption:
    """Starts to listen, where Python lets it: in the main thread."""
    self._told = False
    self._several = jax.process_count() > 1
    in_main = threading.current_thread() is threading.main_thread()
    self._listens = in_main and not self._several
    if self._listens:
      self._before = signal.signal(signal.SIGTERM, self._hear)
    return self

  def __exit__(self, *error: object) -> None:
    """Gives the signal back."""
    if self._listens:
      signal.signal(signal.SIGTERM, self._before)

  def _hear(self, number: int, frame: FrameType | None) -> None:
    self._told = True

  def is_due(self, step: int) -> bool:
    """Whether the run is to end after this step; call it after each."""
    if self._several:
      return multihost_utils.reached_preemption_sync_point(step)
    return self._told
