"""Work beside the main thread: what comes next is read, what is done written.

Only the main thread speaks to the devices: what it does there depends on the
items and their order, never on when they came.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

# What a worker that is told to stop gets to come to its end, in seconds: it
# may wait for a network, and whoever pressed Ctrl-C should not.
_PATIENCE = 5.0


def read_ahead(
  items: Iterable[T], *, limit: int, weigh: Callable[[T], int] = lambda _: 1
) -> Iterator[T]:
  """The same items in the same order, read by a thread of its own.

  It starts with the first item that is asked for. An error of `items` comes
  after those before it. To be closed where it is not read to its end.

  Args:
    items: read in the thread, closed there.
    limit: weight that may wait; the item that reaches it is the last one read.
      0 is no thread: each item is read when it is asked for.
    weigh: of an item, at least 0.
  """
  if not limit:
    with contextlib.closing(item for item in items) as stream:
      yield from stream
    return
  reader = _Reader(items, limit, weigh)
  try:
    yield from reader.read()
  finally:
    reader.stop()


class _Reader(Generic[T]):
  """The thread of `read_ahead`, and what it has read."""

  def __init__(self, items: Iterable[T], limit: int, weigh: Callable[[T], int]):
    self._items, self._limit, self._weigh = items, limit, weigh
    self._waiting: collections.deque[tuple[T, int]] = collections.deque()
    self._weight = 0
    self._is_over = self._is_stopped = False
    self._error: BaseException | None = None
    self._changed = threading.Condition()
    self._thread = threading.Thread(target=self._fill, daemon=True)

  def read(self) -> Iterator[T]:
    self._thread.start()
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._waiting or self._is_over)
        if not self._waiting:
          break
        item, weight = self._waiting.popleft()
        self._weight -= weight
        self._changed.notify_all()
      yield item
    if self._error is not None:
      raise self._error

  def stop(self) -> None:
    with self._changed:
      self._is_stopped = True
      self._changed.notify_all()
    if self._thread.ident is not None:
      self._thread.join(_PATIENCE)

  def _fill(self) -> None:
    # Whatever `items` raises belongs to whoever reads them.
    try:
      with contextlib.closing(item for item in self._items) as stream:
        while self._has_room():
          try:
            item = next(stream)
          except StopIteration:
            break
          self._put(item, self._weigh(item))
    except BaseException as error:  # noqa: BLE001
      self._error = error
    finally:
      with self._changed:
        self._is_over = True
        self._changed.notify_all()

  def _has_room(self) -> bool:
    with self._changed:
      self._changed.wait_for(
        lambda: (
          self._is_stopped or not self._waiting or self._weight < self._limit
        )
      )
      return not self._is_stopped

  def _put(self, item: T, weight: int) -> None:
    with self._changed:
      self._waiting.append((item, weight))
      self._weight += weight
      self._changed.notify_all()


class Writer:
  """Calls of one function, one after the other, in a thread of its own.

  A context: at its end every call was made, after an error and an interrupt
  too, so that what is finished is kept. What a call raises comes up at the
  next `put`, or at the end, and no further call is made.
  """

  def __init__(self, write: Callable[..., None], *, limit: int):
    """Starts no thread yet.

    Args:
      write: what is called.
      limit: calls that may wait; `put` waits where there are more.
    """
    self._write, self._limit = write, limit
    self._waiting: collections.deque[tuple[Any, ...]] = collections.deque()
    self._is_over = False
    self._error: BaseException | None = None
    self._changed = threading.Condition()
    self._thread = threading.Thread(target=self._empty, daemon=True)

  def put(self, *arguments: Any) -> None:
    """Has the function called with these arguments."""
    with self._changed:
      self._changed.wait_for(
        lambda: self._error or len(self._waiting) < self._limit
      )
      if self._error is not None:
        raise self._error
      self._waiting.append(arguments)
      self._changed.notify_all()
    if self._thread.ident is None:
      self._thread.start()

  def _empty(self) -> None:
    while True:
      with self._changed:
        self._changed.wait_for(lambda: self._waiting or self._is_over)
        if not self._waiting:
          return
        arguments = self._waiting[0]
      try:
        self._write(*arguments)
      except BaseException as error:  # noqa: BLE001  raised by `put` and the end
        with self._changed:
          self._error = error
          self._waiting.clear()
          self._changed.notify_all()
        return
      with self._changed:
        self._waiting.popleft()
        self._changed.notify_all()

  def __enter__(self) -> Writer:
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    with self._changed:
      self._is_over = True
      self._changed.notify_all()
    if self._thread.ident is not None:
      self._thread.join()
    # The error that ends the context came first, or is this one.
    if self._error is not None and kind is None:
      raise self._error
