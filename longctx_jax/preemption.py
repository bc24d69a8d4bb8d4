"""Notice that a machine is about to go away: a run saves, then ends."""

from __future__ import annotations

import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils

# What a shell reports of a program that SIGTERM ended.
STATUS = 128 + signal.SIGTERM


class Preemption:
  """Listens for SIGTERM while it is open.

  Clouds send it half a minute before they take a machine. Of several
  processes any may get it; all agree on the step after which they end.
  """

  def __enter__(self) -> Preemption:
    """Starts to listen; from the main thread."""
    self._told = False
    self._before = signal.signal(signal.SIGTERM, self._hear)
    return self

  def __exit__(self, *error: object) -> None:
    """Gives the signal back."""
    signal.signal(signal.SIGTERM, self._before)

  def _hear(self, number: int, frame: FrameType | None) -> None:
    self._told = True

  def is_due(self, step: int) -> bool:
    """Whether the run is to end after this step; call it after each."""
    if jax.process_count() > 1:
      # Its notice comes from JAX's own listener.
      return multihost_utils.reached_preemption_sync_point(step)
    return self._told
