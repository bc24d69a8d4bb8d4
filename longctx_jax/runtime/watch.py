"""Several processes end together: each learns when and why another ended."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

import jax
from absl import logging

from longctx_jax.runtime import channel, machine

_LOOK_SECONDS = 1.0
# JAX itself ends a process 100 s after another's last sign of life, without a
# word of ours and with what was not written yet.
SILENT_SECONDS = 60.0
# Once a pass failed here, the likely cause is another process that died.
_SUSPECTED_SECONDS = 15.0
# For the main thread to come out of what it does and save its work.
GRACE_SECONDS = 20.0
_GONE = "left"
# Processes that nobody waits for any more.
_lost: set[int] = set()


class Watch:
  """While it is open, an error of one process ends all of them.

  Each process gives a sign of life every second. One that is silent for 60 s
  was killed, or its host is gone: the others end, and say which it was. What
  waits for a device that waits for the lost process is left 20 s later. Where
  process 0 is lost, JAX ends the others at once, with its own words. One
  process alone watches nothing.
  """

  def __init__(self, explain: Callable[[BaseException], str]):
    """A watch.

    Args:
      explain: an error as a sentence for the others; "" where it has none.
    """
    self._explain = explain
    self._over = threading.Event()
    self._unwound = threading.Event()
    self._verdict: channel.Ended | None = None
    self._limit = SILENT_SECONDS

  def __enter__(self) -> Watch:
    """Starts to watch."""
    self._active = channel.count() > 1
    if self._active:
      self._thread = threading.Thread(target=self._look, daemon=True)
      self._thread.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    """Tells the others of an error, or ends with the word of theirs.

    Raises:
      channel.Ended: this process ends because another did.
    """
    self._unwound.set()
    if not self._active:
      return
    if error is None or isinstance(error, SystemExit):
      self._close()
      return
    cause = error.__cause__ if isinstance(error, channel.Ended) else error
    if isinstance(cause, jax.errors.JaxRuntimeError):
      self._find_cause()
    verdict = self._verdict
    self._close()
    # What a process does once another ended is no news; its own error is.
    follows = KeyboardInterrupt | jax.errors.JaxRuntimeError
    if verdict and isinstance(error, follows):
      raise verdict from error
    if not isinstance(error, channel.Ended) or cause:
      channel.end(self._describe(error))

  def _find_cause(self) -> None:
    """Waits for the word on another process, which may be behind an error."""
    self._limit = _SUSPECTED_SECONDS
    logging.warning(
      "a pass failed; within %.0f s it is known whether another process is "
      "the cause",
      2 * _SUSPECTED_SECONDS,
    )
    channel.retry(
      lambda: self._verdict is not None, seconds=2 * _SUSPECTED_SECONDS
    )

  def _describe(self, error: BaseException) -> channel.Ended:
    who = f"process {channel.index()} of {channel.count()}"
    if isinstance(error, machine.Terminated):
      return channel.Ended(f"{who} was told to end", 128 + signal.SIGTERM)
    if isinstance(error, channel.Ended):
      return error
    if isinstance(error, KeyboardInterrupt):
      return channel.Ended(f"{who} was interrupted", 128 + signal.SIGINT)
    said = self._explain(error) or f"{type(error).__name__}: {error}"
    return channel.Ended(f"{who} ended: {said}", 2)

  def _close(self) -> None:
    self._over.set()
    self._thread.join()
    channel.put(_sign_of(channel.index()), _GONE)

  def _look(self) -> None:
    beat = 0
    seen = {
      other: ("", time.monotonic())
      for other in range(channel.count())
      if other != channel.index()
    }
    while not self._over.wait(_LOOK_SECONDS):
      try:
        beat += 1
        channel.put(_sign_of(channel.index()), str(beat))
        self._verdict = channel.ended() or self._silent(seen)
      except jax.errors.JaxRuntimeError:
        return  # Process 0 is gone: JAX ends this one.
      if self._verdict:
        channel.end(self._verdict)
        self._interrupt()
        return

  def _silent(self, seen: dict[int, tuple[str, float]]) -> channel.Ended | None:
    """The end of a process that was not heard of for long."""
    now = time.monotonic()
    for other, (sign, since) in seen.items():
      found = channel.peek(_sign_of(other)) or ""
      if found != sign:
        seen[other] = found, now
      elif sign != _GONE and now - since > self._limit:
        _lost.add(other)
        return channel.Ended(
          f"process {other} of {channel.count()} was not heard of for "
          f"{now - since:.0f} s: it was killed, or its machine is gone",
          2,
        )
    return None

  def _interrupt(self) -> None:
    """Brings the main thread to its end, or ends without it."""
    if self._unwound.is_set():
      return
    _thread.interrupt_main(signal.SIGTERM)
    if not self._unwound.wait(GRACE_SECONDS):
      logging.error("error: %s", self._verdict)
      logging.flush()
      os._exit(self._verdict.status)


def leave(status: int) -> None:
  """Ends a process of several after an error, and waits for no other one.

  At its usual end a process waits for all others, which may be lost. Process
  0 goes last: JAX ends the others as soon as it is gone.
  """
  if channel.count() == 1:
    sys.exit(status)
  sys.stdout.flush()
  sys.stderr.flush()
  if channel.index() == 0:
    others = set(range(1, channel.count())) - _lost
    channel.retry(
      lambda: all(channel.peek(_left_of(other)) for other in others),
      seconds=GRACE_SECONDS,
    )
    time.sleep(_LOOK_SECONDS)
  else:
    channel.put(_left_of(channel.index()), _GONE)
  os._exit(status)


def _sign_of(process: int) -> str:
  return f"longctx/sign/{process}"


def _left_of(process: int) -> str:
  return f"longctx/left/{process}"
