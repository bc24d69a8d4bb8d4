"""One stream of documents through the passes of a scorer."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from longctx_jax.model import row_parts
from longctx_jax.runtime.arrivals import Arrival, Arrivals
from longctx_jax.scoring import buckets
from longctx_jax.scoring import rows as rows_lib
from longctx_jax.scoring.jobs import Job, Scores

# Passes that the devices have beside the one whose result is read next: while
# they run, the host makes records of the last and batches of the next.
_AHEAD = 2
# Where batches are planned, this many jobs or ids wait for it at most.
_MOST_JOBS, _MOST_IDS = 4096, 1 << 24
_ANY = 0


@dataclasses.dataclass
class _Open:
  """A document under way: its scores, and the passes that they still lack."""

  scores: Scores
  passes: int


class Stream:
  """One stream of jobs through the passes of a scorer.

  What is handed to the devices, and in which order, follows from the jobs
  alone: several processes that see the same jobs run the same programs.
  """

  def __init__(
    self,
    scorer: Any,
    call: Callable[..., Any],
    arrivals: Arrivals,
    *,
    with_windows: bool,
  ):
    """Takes what runs the passes, and what waits for them.

    Args:
      scorer: a `Scorer`.
      call: hands one of its passes to the devices.
      arrivals: of their results.
      with_windows: whether short contexts are scored too.
    """
    self._scorer = scorer
    self._call = call
    self._arrivals = arrivals
    self._with_windows = with_windows
    self._jobs = 0
    self._window_batch = scorer.window_batch
    # Of each length of rows, or of all where batches are planned.
    self._waiting: dict[int, list[Job]] = {}
    self._waiting_ids = 0
    self._pool: list[tuple[_Open, int, np.ndarray]] = []
    # Results that come, and what makes scores of them; the oldest first.
    self._under_way: collections.deque[
      tuple[Arrival, Callable[[np.ndarray], Iterator[Scores]]]
    ] = collections.deque()

  def score(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """Scores of the jobs, and what passes through; see `Scorer`."""
    stream = iter(jobs)
    while True:
      try:
        job = next(stream)
      except StopIteration:
        break
      except Exception:
        # What the devices have is finished, and kept.
        yield from self._take(leave=0)
        raise
      if isinstance(job, Job):
        yield from self._add(job)
      else:
        yield job
    self._window_batch = self._scorer.windows_at_once(self._jobs)
    while self._waiting.get(_ANY):
      yield from self._start_planned()
    for bucket, batch in self._waiting.items():
      if batch:
        yield from self._start_long(bucket, batch)
    yield from self._drain(least=1)
    yield from self._take(leave=0)

  def _add(self, job: Job) -> Iterator[Scores]:
    if len(job.ids) < 2:
      raise ValueError(f"document {job.key!r} has no target to score")
    self._jobs += 1
    if self._scorer.plans:
      waiting = self._waiting.setdefault(_ANY, [])
      waiting.append(job)
      self._waiting_ids += len(job.ids)
      if len(waiting) >= _MOST_JOBS or self._waiting_ids >= _MOST_IDS:
        yield from self._start_planned()
      return
    mesh = self._scorer.model.mesh
    bucket = buckets.row_length(len(job.ids) - 1, mesh)
    batch = self._waiting.setdefault(bucket, [])
    batch.append(job)
    if len(batch) == self._scorer.long_batch:
      yield from self._start_long(bucket, self._waiting.pop(bucket))

  def _take(self, *, leave: int) -> Iterator[Scores]:
    """The scores that all but the newest `leave` results finish."""
    while len(self._under_way) > leave:
      arrival, finish = self._under_way.popleft()
      yield from finish(arrival.wait())

  def _start(
    self, function, kind, ids, lengths, finish, **layout
  ) -> Iterator[Scores]:
    started = time.monotonic()
    compiling = self._scorer.usage.compile_seconds
    result = self._call(function, kind, ids, lengths, **layout)
    started += self._scorer.usage.compile_seconds - compiling
    name = f"a text of {max(lengths):,} ids"
    arrival = self._arrivals.expect(result, name=name, started=started)
    self._under_way.append((arrival, finish))
    yield from self._take(leave=_AHEAD)

  def _start_planned(self) -> Iterator[Scores]:
    """The batch that begins with the longest document that waits."""
    scorer, jobs = self._scorer, self._waiting[_ANY]
    lengths = [len(job.ids) for job in jobs]
    batch = rows_lib.plan(
      lengths,
      rows=scorer.long_batch,
      align=scorer.align,
      parts=scorer.model.mesh.shape[row_parts.AXIS],
    )
    taken = {place.index for place in batch.places}
    self._waiting[_ANY] = [job for i, job in enumerate(jobs) if i not in taken]
    self._waiting_ids -= sum(lengths[i] for i in taken)
    places = [(jobs[p.index], p.row, p.start) for p in batch.places]
    layout = {}
    if scorer.align:
      layout["layout"] = rows_lib.lay_out(
        batch, lengths, rows=scorer.long_batch
      )
    shape = scorer.long_batch, batch.length
    yield from self._start_rows(shape, places, **layout)

  def _start_long(self, bucket: int, jobs: list[Job]) -> Iterator[Scores]:
    """Documents that each have a row of their own."""
    places = [(job, row, 0) for row, job in enumerate(jobs)]
    rows = self._scorer.rows(len(jobs), self._scorer.long_batch)
    yield from self._start_rows((rows, bucket), places)

  def _start_rows(
    self, shape: tuple[int, int], places: list[tuple[Job, int, int]], **layout
  ) -> Iterator[Scores]:
    """A long pass, and the windows that fill a batch after it."""
    scorer = self._scorer
    rows, length = shape
    ids = np.zeros((rows, length + 1), np.int32)
    opened = []
    for job, row, start in places:
      ids[row, start : start + len(job.ids)] = job.ids
      opened.append((self._open(job), row, start))
    lengths = [len(job.ids) for job, _, _ in places]

    def finish(out: np.ndarray) -> Iterator[Scores]:
      needed = sum(lengths) - len(lengths)
      scorer.usage.tokens += needed
      scorer.usage.count_positions(needed, fed=ids[:, 1:].size)
      for one, row, start in opened:
        count = len(one.scores.long)
        one.scores.long[:] = out[row, start : start + count]
        self._fill_first_window(one.scores)
        yield from self._count(one)

    kind = "shared" if layout else "long"
    yield from self._start(
      scorer.long_pass, kind, ids, lengths, finish, **layout
    )
    yield from self._drain(least=self._window_batch)

  def _drain(self, *, least: int) -> Iterator[Scores]:
    """The windows of the pool, while there are `least` for a batch."""
    while len(self._pool) >= least:
      batch = self._pool[: self._window_batch]
      self._pool = self._pool[self._window_batch :]
      yield from self._start_windows(batch)

  def _open(self, job: Job) -> _Open:
    """A document without scores; its windows go into the pool."""
    long = np.full(len(job.ids) - 1, np.nan, np.float32)
    opened = _Open(Scores(job, long, long.copy()), passes=1)
    if self._with_windows:
      own = [(opened, *window) for window in self._cut_windows(job)]
      opened.passes += len(own)
      self._scorer.usage.count_windows(begun=len(own))
      self._pool += own
    return opened

  def _count(self, opened: _Open) -> Iterator[Scores]:
    """Counts a pass of a document, which is scored after its last one."""
    opened.passes -= 1
    if not opened.passes:
      yield opened.scores

  def _fill_first_window(self, scores: Scores) -> None:
    """The first window's values are the long pass's own."""
    if not self._with_windows:
      return
    windows, first = self._scorer.windows, scores.job.prefix_len - 1
    first += windows.short_len
    end = first + windows.stride
    scores.short[first:end] = scores.long[first:end]

  def _cut_windows(self, job: Job) -> Iterator[tuple[int, np.ndarray]]:
    """(first target, ids) of each window after the first."""
    windows = self._scorer.windows
    prefix, text = job.ids[: job.prefix_len], job.ids[job.prefix_len :]
    plan = windows.plan(len(text))
    for start, first in zip(plan.start, plan.score_start, strict=True):
      if start:
        span = text[start : start + windows.length]
        # Text id j is target j + prefix_len - 1.
        yield first + job.prefix_len - 1, np.concatenate([prefix, span])

  def _start_windows(
    self, batch: list[tuple[_Open, int, np.ndarray]]
  ) -> Iterator[Scores]:
    scorer = self._scorer
    prefix_len = batch[0][0].scores.job.prefix_len
    length = prefix_len + scorer.windows.length
    rows = scorer.window_batch
    # A window is over sooner than another program is compiled.
    is_new = (prefix_len, (rows, length)) not in scorer.compiled
    if is_new or self._window_batch < rows:
      rows = scorer.rows(len(batch), rows)
    ids = np.zeros((rows, length), np.int32)
    for row, (opened, _, span) in enumerate(batch):
      if opened.scores.job.prefix_len != prefix_len:
        raise ValueError("all jobs of a scorer have the same prefix_len")
      ids[row, : len(span)] = span
    lengths = [len(span) for _, _, span in batch]

    def finish(out: np.ndarray) -> Iterator[Scores]:
      needed = sum(lengths) - len(lengths)
      scorer.usage.count_positions(needed, fed=ids[:, 1:].size)
      scorer.usage.count_windows(scored=len(batch))
      for row, (opened, first, span) in enumerate(batch):
        count = len(span) - prefix_len - scorer.windows.short_len
        opened.scores.short[first : first + count] = out[row, :count]
        yield from self._count(opened)

    yield from self._start(scorer.window_pass, prefix_len, ids, lengths, finish)
