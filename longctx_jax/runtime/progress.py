"""What a long run says of itself: usage, speed, time left, a heartbeat."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

from absl import logging

_LINE_SECONDS = 30.0


@contextlib.contextmanager
def heartbeat(
  name: str, *, doing: str = "reading", announced: bool = True
) -> Iterator[None]:
  """Logs what begins, and a line every half a minute: it looks like hanging.

  Args:
    name: of what is worked on.
    doing: what is done with it.
    announced: whether the beginning is a line too; else only what lasts is.
  """
  done, start = threading.Event(), time.monotonic()
  if announced:
    logging.info("%s %s", doing, name)

  def tell() -> None:
    while not done.wait(_LINE_SECONDS):
      seconds = time.monotonic() - start
      logging.info("still %s %s: %.0f s", doing, name, seconds)

  thread = threading.Thread(target=tell, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()


_EVERY_SECONDS = 10.0


class Progress:
  """Logs a line every ten seconds; compilation counts in no speed.

  Attributes:
    done: documents that are finished, those of an earlier run included.
    total: documents in all, as far as is known.
  """

  def __init__(
    self,
    verb: str,
    total: int,
    usage: Usage,
    *,
    clock: Callable[[], float] = time.monotonic,
  ):
    self.done = 0
    self._skipped = 0
    self._verb = verb
    self.total = total
    self._usage = usage
    self._clock = clock
    self._start = self._last = clock()
    self._start_tokens = usage.tokens
    self._start_compile = usage.compile_seconds
    self._start_compilations = usage.compilations
    self._start_busy = usage.busy_seconds
    # Documents may be skipped by the thread that reads them.
    self._counting = threading.Lock()
    usage.listener = self._tell

  @property
  def seconds(self) -> float:
    """Since the start, compilation excluded."""
    compiled = self._usage.compile_seconds - self._start_compile
    return max(self._clock() - self._start - compiled, 1e-9)

  @property
  def tokens_per_second(self) -> float:
    """Targets of the long pass per second."""
    return (self._usage.tokens - self._start_tokens) / self.seconds

  @property
  def busy_share(self) -> float:
    """Share of the time in which the devices worked; 0 where none is known."""
    busy = self._usage.busy_seconds - self._start_busy
    return min(busy / self.seconds, 1.0)

  def skip(self, documents: int = 1) -> None:
    """Counts documents that an earlier run finished: they take no time."""
    with self._counting:
      self.done += documents
      self._skipped += documents

  def advance(self, documents: int = 1) -> None:
    """Counts finished documents; logs if it is time."""
    with self._counting:
      self.done += documents
    self._tell()

  def _tell(self) -> None:
    now = self._clock()
    if now - self._last >= _EVERY_SECONDS and self.done < self.total:
      self._last = now
      logging.info("%s", self)

  def __str__(self) -> str:
    left, own = "time left unknown", self.done - self._skipped
    if own:
      seconds = (self.total - self.done) * self.seconds / own
      left = f"{clock_text(seconds)} left"
    usage, windows = self._usage, ""
    if usage.windows < usage.windows_begun:
      windows = f" + {usage.windows:,} of {usage.windows_begun:,} windows"
    return (
      f"{self._verb}: {self.done:,} of {self.total:,} documents{windows} | "
      f"{self.tokens_per_second:,.0f} tokens/s | {left} | "
      f"padding {self._usage.padding_share:.0%}"
    )

  def finish(self) -> None:
    """Logs the totals of this run."""
    logging.info(
      "%s: %s documents in %s (+ %.1f s for %d compilations) | %s tokens/s | "
      "padding %.0f%%%s",
      self._verb,
      f"{self.done - self._skipped:,}",
      clock_text(self.seconds),
      self._usage.compile_seconds - self._start_compile,
      self._usage.compilations - self._start_compilations,
      f"{self.tokens_per_second:,.0f}",
      100 * self._usage.padding_share,
      f" | devices busy {self.busy_share:.0%}" if self.busy_share else "",
    )


class StepClock:
  """Time of training steps; compilation and other pauses count in none."""

  def __init__(
    self, total: int, *, clock: Callable[[], float] = time.monotonic
  ):
    """Starts the clock of a run of `total` steps."""
    self._total = total
    self._clock = clock
    self._start = self._lap_start = clock()
    self._done = self._left = 0

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Time inside does not count."""
    start = self._clock()
    try:
      yield
    finally:
      paused = self._clock() - start
      self._start += paused
      self._lap_start += paused

  def lap(self, step: int, steps: int) -> float:
    """Seconds of the last `steps` steps, which end at `step`."""
    now = self._clock()
    seconds = max(now - self._lap_start, 1e-9)
    self._lap_start = now
    self._done += steps
    self._left = self._total - step
    return seconds

  def time_left(self) -> str:
    """Of the run, by the mean step of this process."""
    per_step = (self._clock() - self._start) / max(self._done, 1)
    return clock_text(per_step * self._left)


def clock_text(seconds: float) -> str:
  """Minutes and seconds, and hours where there are any."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return (
    f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
  )


@dataclasses.dataclass
class Usage:
  """What a scorer did so far.

  Attributes:
    tokens: scored targets of the long pass.
    fed: positions that went through the model, padding included.
    needed: the same without padding.
    compilations: compiled programs.
    compile_seconds: time that they took.
    busy_seconds: time in which the devices ran passes.
    windows: windows that were scored, of documents that are not finished.
    windows_begun: windows of these documents in all.
    listener: called after each pass.
  """

  tokens: int = 0
  fed: int = 0
  needed: int = 0
  compilations: int = 0
  compile_seconds: float = 0.0
  busy_seconds: float = 0.0
  windows: int = 0
  windows_begun: int = 0
  listener: Callable[[], None] | None = dataclasses.field(
    default=None, repr=False, compare=False
  )

  def count_positions(self, needed: int, *, fed: int) -> None:
    """Counts those of a pass."""
    self.needed += needed
    self.fed += fed

  def count_windows(self, *, begun: int = 0, scored: int = 0) -> None:
    """Counts windows; those of finished work are forgotten."""
    self.windows_begun += begun
    self.windows += scored
    if self.windows == self.windows_begun:
      self.windows = self.windows_begun = 0
    if scored and self.listener:
      self.listener()

  @property
  def padding_share(self) -> float:
    """Share of the positions fed that were padding."""
    return 1 - self.needed / self.fed if self.fed else 0.0
