"""Scores documents: a long pass each, and pooled windows of short context."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx

from longctx_jax.model import defaults, log_probs, row_parts, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime.progress import Usage, heartbeat
from longctx_jax.scoring import buckets


@dataclasses.dataclass(frozen=True)
class Job:
  """One document to score.

  Attributes:
    key: anything that tells the document apart; comes back with the result.
    ids: what the model reads, int32 [n], n >= 2.
    prefix_len: leading ids (BOS) that are repeated in front of every window
      and count neither in short_len nor as text.
  """

  key: Any
  ids: np.ndarray
  prefix_len: int = 0


@dataclasses.dataclass(frozen=True)
class Scores:
  """Log-probs of a document's targets, float32 [n - 1], in nats.

  `short` is NaN where no window scores the target, and equals `long` in the
  first window, whose context is the full one.
  """

  job: Job
  long: np.ndarray
  short: np.ndarray


@dataclasses.dataclass
class Scorer:
  """The compiled passes of one model; made by `make_scorer`.

  Attributes:
    model: what scores.
    windows: of the short contexts.
    long_batch: documents per long pass.
    window_batch: windows per short pass.
    usage: counts so far.
  """

  model: LoadedModel
  windows: Windows
  long_batch: int
  window_batch: int
  usage: Usage
  long_pass: Any
  window_pass: Any
  compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)

  def score_long(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """Long pass only; documents come back as their batch is full.

    Args:
      jobs: each a `Job`. Anything else passes through, in its place: a
        document that needs no pass is not kept waiting for those that do.

    Yields:
      `Scores` of each, and what passed through.

    Raises:
      ValueError: for a document with fewer than two ids.
    """
    waiting: dict[int, list[Job]] = {}
    for job in jobs:
      if not isinstance(job, Job):
        yield job
        continue
      if len(job.ids) < 2:
        raise ValueError(f"document {job.key!r} has no target to score")
      bucket = buckets.row_length(len(job.ids) - 1, self.model.mesh)
      batch = waiting.setdefault(bucket, [])
      batch.append(job)
      if len(batch) == self.long_batch:
        yield from self._run_long(bucket, waiting.pop(bucket))
    for bucket, batch in waiting.items():
      yield from self._run_long(bucket, batch)

  def score(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """Long pass and windows; windows of several documents share a batch.

    A document comes back when its last window is done, so in another order
    than it came. Arguments and results as in `score_long`.
    """
    pool: list[tuple[Scores, int, np.ndarray]] = []
    open_windows: dict[int, int] = {}

    def run(batch):
      for scores in self._run_windows(batch):
        open_windows[id(scores)] -= 1
        if not open_windows[id(scores)]:
          del open_windows[id(scores)]
          yield scores

    for scores in self.score_long(jobs):
      is_scored = isinstance(scores, Scores)
      own = list(self._cut_windows(scores)) if is_scored else []
      if not own:
        yield scores
        continue
      open_windows[id(scores)] = len(own)
      self.usage.count_windows(begun=len(own))
      pool += own
      while len(pool) >= self.window_batch:
        batch, pool = pool[: self.window_batch], pool[self.window_batch :]
        yield from run(batch)
    if pool:
      yield from run(pool)

  def _run_long(self, bucket, jobs):
    rows = self._rows(len(jobs), self.long_batch)
    ids = np.zeros((rows, bucket + 1), np.int32)
    for row, job in enumerate(jobs):
      ids[row, : len(job.ids)] = job.ids
    lengths = [len(job.ids) for job in jobs]
    name = f"a text of {max(lengths):,} ids"
    with heartbeat(name, doing="reading", announced=False):
      out = self._call(self.long_pass, "long", ids, lengths)
    counts = [len(job.ids) - 1 for job in jobs]
    self.usage.tokens += sum(counts)
    self.usage.needed += sum(counts)
    self.usage.fed += rows * bucket
    for row, (job, count) in enumerate(zip(jobs, counts, strict=True)):
      long = np.array(out[row, :count])
      yield Scores(job, long, np.full_like(long, np.nan))

  def _cut_windows(self, scores):
    """(scores, first target, window ids) of each window after the first.

    The first window's values are the long pass's own: they are filled in.
    """
    job = scores.job
    prefix, text = job.ids[: job.prefix_len], job.ids[job.prefix_len :]
    plan = self.windows.plan(len(text))
    for start, first, end in zip(
      plan.start, plan.score_start, plan.score_end, strict=True
    ):
      # Text id j is target j + prefix_len - 1.
      first, end = first + job.prefix_len - 1, end + job.prefix_len - 1
      if start == 0:
        scores.short[first:end] = scores.long[first:end]
        continue
      span = text[start : start + self.windows.length]
      yield scores, first, np.concatenate([prefix, span])

  def _run_windows(self, batch):
    prefix_len = batch[0][0].job.prefix_len
    length = prefix_len + self.windows.length
    rows = self.window_batch
    # A window is over sooner than another program is compiled.
    if (prefix_len, (rows, length)) not in self.compiled:
      rows = self._rows(len(batch), rows)
    ids = np.zeros((rows, length), np.int32)
    for row, (scores, _, span) in enumerate(batch):
      if scores.job.prefix_len != prefix_len:
        raise ValueError("all jobs of a scorer have the same prefix_len")
      ids[row, : len(span)] = span
      self.usage.needed += len(span) - 1
    self.usage.fed += rows * (length - 1)
    lengths = [len(span) for _, _, span in batch]
    out = self._call(self.window_pass, prefix_len, ids, lengths)
    self.usage.count_windows(scored=len(batch))
    for row, (scores, first, span) in enumerate(batch):
      count = len(span) - prefix_len - self.windows.short_len
      scores.short[first : first + count] = out[row, :count]
      yield scores

  def _rows(self, count, most):
    """Rows of a batch that `count` are there for: fewer where that is faster.

    Devices that share their cores are slowed down by one that has only
    padding; without it, they have its cores.
    """
    if not sharding.has_copies_on_cores(self.model.mesh):
      return most
    per_device = most // self.long_batch
    return -(-count // per_device) * per_device

  def _call(self, function, kind, ids, lengths):
    """Runs a pass on the mesh; compilation is timed apart.

    The rows' real lengths, of all ids, go in beside the padded ids: RoPE
    tables may depend on them.
    """
    most = self.long_batch if kind == "long" else self.window_batch
    mesh, params = self.model.mesh, self.model.params
    if len(ids) < most:
      mesh = sharding.first_devices(mesh, len(ids) * self.long_batch // most)
      params = sharding.copies_on(params, mesh)
    lengths = np.pad(np.array(lengths, np.int32), (0, len(ids) - len(lengths)))
    # Windows stay whole; the rows of a long pass may be split among devices.
    whole = function is self.window_pass
    split = sharding.batch_sharding if whole else sharding.row_sharding
    inputs = sharding.place_rows((ids, lengths), split(mesh))
    key = (kind, ids.shape)
    with jax.set_mesh(mesh):
      if key not in self.compiled:
        if not self.compiled:
          _log_copies(self.model)
        start = time.monotonic()
        static = (kind,) if whole else ()
        precision = defaults.matmul_precision(self.model.dtype)
        what = "windows" if static else "texts"
        name = f"the pass over {what} of up to {ids.shape[1]:,} ids"
        with (
          heartbeat(name, doing="compiling"),
          jax.default_matmul_precision(precision),
        ):
          lowered = function.lower(params, *inputs, *static)
          self.compiled[key] = lowered.compile()
        self.usage.compilations += 1
        self.usage.compile_seconds += time.monotonic() - start
      return np.asarray(self.compiled[key](params, *inputs))


def _log_copies(model: LoadedModel) -> None:
  """Says what it costs that each of several CPU devices has all weights."""
  count = model.mesh.size
  if count > 1 and sharding.has_copies_on_cores(model.mesh):
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    logging.info(
      "%d CPU devices, a copy of the weights on each: %d x %.2f GiB",
      count,
      count,
      size / 2**30,
    )


def make_scorer(
  model: LoadedModel,
  windows: Windows,
  *,
  window_batch: int = 0,
  chunk: int = 1024,
  backend: str = "auto",
) -> Scorer:
  """Makes the jitted long pass and window pass of a model.

  Args:
    model: what scores.
    windows: of the short contexts.
    window_batch: windows per device and pass; 0: `defaults.window_batch`.
    chunk: positions whose logits are held at a time.
    backend: attention backend; "auto" takes the one of this machine.
  """
  backend = defaults.attention_backend(
    backend,
    model.config,
    dtype=model.dtype,
    in_parts=model.mesh.shape[row_parts.AXIS] > 1,
  )
  window_batch = defaults.window_batch(window_batch)

  def log_probs_of(params, ids, lengths, targets, **rows):
    transformer = nnx.merge(model.graphdef, params)
    hidden = transformer(ids, lengths=lengths, backend=backend, **rows)
    return log_probs.target_log_probs(
      hidden,
      transformer.head(),
      targets,
      softcap=model.config.softcap,
      chunk=chunk,
    )

  # Log-probs are small and leave for the host at once: replicated.
  whole = jax.sharding.PartitionSpec()

  @functools.partial(jax.jit, out_shardings=whole)
  def long_pass(params, ids, lengths):
    inputs, targets = map(row_parts.split, (ids[:, :-1], ids[:, 1:]))
    lengths = row_parts.repeat(lengths)
    found = log_probs_of(params, inputs, lengths, targets, in_parts=True)
    return row_parts.join(found)

  @functools.partial(jax.jit, static_argnums=3, out_shardings=whole)
  def window_pass(params, ids, lengths, prefix_len):
    first = prefix_len + windows.short_len
    return log_probs_of(
      params,
      ids[:, :-1],
      lengths,
      ids[:, first:],
      score_rows=(first - 1, first + windows.stride - 1),
    )

  return Scorer(
    model=model,
    windows=windows,
    long_batch=sharding.row_ways(model.mesh),
    window_batch=window_batch * sharding.batch_ways(model.mesh),
    usage=Usage(),
    long_pass=long_pass,
    window_pass=window_pass,
  )
