"""Reading ahead and writing behind, step by step: no test waits for a time."""

import threading

import pytest

from longctx_jax.runtime import workers


class Source:
  """Counts to `stop`; says how far it was read, and whether it was closed."""

  def __init__(self, stop, error=None):
    self.read, self.threads, self.is_closed = 0, set(), threading.Event()
    self._stop, self._error = stop, error

  def __iter__(self):
    try:
      for i in range(self._stop):
        self.read = i + 1
        self.threads.add(threading.get_ident())
        yield i
      if self._error:
        raise self._error
    finally:
      self.is_closed.set()


def test_items_come_in_their_order_from_another_thread():
  source = Source(1000)
  assert list(workers.read_ahead(source, limit=7)) == list(range(1000))
  assert source.threads and threading.get_ident() not in source.threads
  assert source.is_closed.is_set()


def test_nothing_is_read_before_it_is_asked_for():
  source = Source(5)
  items = workers.read_ahead(source, limit=2)
  assert source.read == 0
  items.close()
  assert source.read == 0


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (3, 3), (10, 10)])
def test_no_more_is_held_than_the_limit(limit, most):
  """Of items that weigh 1; one that is heavier alone is held alone."""
  source, furthest = Source(200), 0
  for item in workers.read_ahead(source, limit=limit):
    furthest = max(furthest, source.read - (item + 1))
  # One more may be read while the one before is being handed over.
  assert furthest <= most + 1
  assert limit == 1 or furthest > 0
  heavy = Source(200)
  for item in workers.read_ahead(heavy, limit=5, weigh=lambda _: 100):
    assert heavy.read - (item + 1) <= 2


def test_an_error_comes_after_what_was_read_and_is_itself():
  error = ValueError("line 4 is damaged")
  items = workers.read_ahead(Source(3, error), limit=10)
  assert [next(items) for _ in range(3)] == [0, 1, 2]
  with pytest.raises(ValueError, match="line 4 is damaged") as raised:
    next(items)
  assert raised.value is error


def test_closing_ends_the_thread_and_closes_the_source():
  source = Source(10**9)
  before = threading.active_count()
  items = workers.read_ahead(source, limit=2)
  assert next(items) == 0
  items.close()
  assert source.is_closed.is_set() and threading.active_count() == before


def test_calls_are_made_in_order_by_one_thread():
  calls = []
  with workers.Writer(
    lambda *given: calls.append((given, threading.get_ident())), limit=2
  ) as writer:
    for i in range(100):
      writer.put(i, "a")
  assert [given for given, _ in calls] == [(i, "a") for i in range(100)]
  assert len({thread for _, thread in calls}) == 1
  assert calls[0][1] != threading.get_ident()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_what_was_put_is_written_whatever_ends_the_run(error):
  written, free = [], threading.Event()

  def write(item):
    free.wait()
    written.append(item)

  with pytest.raises(error), workers.Writer(write, limit=5) as writer:
    for i in range(4):
      writer.put(i)
    assert not written
    free.set()
    raise error
  assert written == [0, 1, 2, 3]


def test_what_a_write_raises_comes_up_and_ends_the_writing():
  """In the next `put` or, after the last one, at the end."""
  full, written = OSError(28, "No space left on device"), []

  def write(item):
    written.append(item)
    if item == 1:
      raise full

  for last in (1, 10**6):
    written.clear()
    with pytest.raises(OSError) as raised, workers.Writer(write, limit=1) as w:
      for i in range(last + 1):
        w.put(i)
    assert raised.value is full and written == [0, 1]
