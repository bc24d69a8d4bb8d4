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

from longctx_jax.model import (
  attention,
  defaults,
  log_probs,
  row_parts,
  sharding,
)
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import device
from longctx_jax.runtime.arrivals import Arrivals
from longctx_jax.runtime.progress import Usage, heartbeat
from longctx_jax.scoring.jobs import Job, Scores
from longctx_jax.scoring.stream import Stream

__all__ = ["Job", "Scores", "Scorer", "make_scorer"]


@dataclasses.dataclass
class Scorer:
  """The compiled passes of one model; made by `make_scorer`.

  Attributes:
    model: what scores.
    windows: of the short contexts.
    long_batch: rows per long pass.
    window_batch: windows per short pass.
    usage: counts so far.
    plans: whether the documents of a long pass are chosen among many, and not
      by their own length alone: its rows then are seldom padded, and the shape
      that a document is scored in depends on the others.
    align: where documents may start in rows that they share, a multiple of
      it; 0 is in rows of their own.
  """

  model: LoadedModel
  windows: Windows
  long_batch: int
  window_batch: int
  usage: Usage
  long_pass: Any
  window_pass: Any
  compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)
  plans: bool = False
  align: int = 0

  def score_long(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """Long pass only; documents come back as their batch is full.

    Batches are made of the jobs in their order, and the next ones are handed
    to the devices before the results of the last are read. All of it happens
    in the thread that iterates.

    Args:
      jobs: each a `Job`. Anything else passes through, in its place: a
        document that needs no pass is not kept waiting for those that do.

    Yields:
      `Scores` of each, and what passed through.

    Raises:
      ValueError: for a document with fewer than two ids.
    """
    with Arrivals(self.usage) as arrivals:
      yield from Stream(self, self._call, arrivals, with_windows=False).score(
        jobs
      )

  def score(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """Long pass and windows; windows of several documents share a batch.

    A document comes back when its last window is done, so in another order
    than it came. Arguments and results as in `score_long`.
    """
    with Arrivals(self.usage) as arrivals:
      yield from Stream(self, self._call, arrivals, with_windows=True).score(
        jobs
      )

  def rows(self, count: int, most: int) -> int:
    """Rows of a batch that `count` are there for: fewer where that is faster.

    Devices that share their cores are slowed down by one that has only
    padding; without it, they have its cores.

    Args:
      count: documents, or windows, each with a row of its own.
      most: rows of a whole batch.
    """
    mesh = self.model.mesh
    if not sharding.has_copies_on_cores(mesh):
      return most
    per_device = most // sharding.batch_ways(mesh)
    return min(most, -(-count // per_device) * per_device)

  def windows_at_once(self, jobs: int) -> int:
    """Windows of a batch, where these are all the documents there are.

    With fewer documents than devices that share their cores, one device with
    all cores is faster than several that wait for each other.
    """
    few = jobs < self.long_batch and sharding.has_copies_on_cores(
      self.model.mesh
    )
    return self.window_batch // self.long_batch if few else self.window_batch

  def _call(self, function, kind, ids, lengths, layout=None):
    """Hands a pass to the devices of the mesh; compilation is timed apart.

    The rows' real lengths, of all ids, go in beside the padded ids: RoPE
    tables may depend on them. Shared rows have a layout in their place.
    """
    is_window = function is self.window_pass
    most = self.window_batch if is_window else self.long_batch
    mesh, params = self.model.mesh, self.model.params
    if len(ids) < most:
      ways = sharding.batch_ways(mesh)
      mesh = sharding.first_devices(mesh, len(ids) * ways // most)
      params = sharding.copies_on(params, mesh)
    if layout is None:
      lengths = np.array(lengths, np.int32)
      rest = (np.pad(lengths, (0, len(ids) - len(lengths))),)
    else:
      rest = layout.lengths, layout.positions, layout.segment_ids
    # Windows stay whole; the rows of a long pass may be split among devices.
    split = sharding.batch_sharding if is_window else sharding.row_sharding
    inputs = sharding.place_rows((ids, *rest), split(mesh))
    key = (kind, ids.shape)
    if key not in self.compiled:
      if not self.compiled:
        _log_copies(self.model)
      static = (kind,) if is_window else ()
      with jax.set_mesh(mesh):
        self.compiled[key] = self._compile(function, params, inputs, static)
    return self.compiled[key](params, *inputs)

  def _compile(self, function, params, inputs, static):
    start = time.monotonic()
    precision = defaults.matmul_precision(self.model.dtype)
    what = "windows" if static else "texts"
    name = f"the pass over {what} of up to {inputs[0].shape[1]:,} ids"
    with (
      heartbeat(name, doing="compiling"),
      jax.default_matmul_precision(precision),
    ):
      compiled = function.lower(params, *inputs, *static).compile()
    self.usage.compilations += 1
    self.usage.compile_seconds += time.monotonic() - start
    _require_memory(compiled, inputs[0].sharding.mesh, name)
    return compiled


def _require_memory(compiled: Any, mesh: jax.sharding.Mesh, name: str) -> None:
  """Raises ValueError for a program that the devices have no memory for."""
  memory = compiled.memory_analysis()
  own = mesh.local_mesh.devices.flat
  limit = device.memory_bytes(own[0])
  if memory is None or not limit:
    return
  if own[0].platform == "cpu":
    limit //= len(own)  # They share it.
  needed = sum(
    getattr(memory, f"{part}_size_in_bytes")
    for part in ("argument", "temp", "output")
  )
  if needed > limit:
    raise ValueError(
      f"{name} takes {needed / 2**30:.1f} GiB on each device, which has "
      f"{limit / 2**30:.1f}: set --max_length lower, --config.scoring.chunk "
      "lower, or take a --config.mesh of more devices"
    )


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
  window_batch = defaults.window_batch(window_batch, length=windows.length)

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
  def long_pass(params, ids, lengths, positions=None, segment_ids=None):
    inputs, targets = map(row_parts.split, (ids[:, :-1], ids[:, 1:]))
    rows = {}
    if segment_ids is None:
      lengths = row_parts.repeat(lengths)
    else:  # Shared rows: all three by position.
      lengths, positions, segment_ids = map(
        row_parts.split, (lengths, positions, segment_ids)
      )
      rows = dict(positions=positions, segment_ids=segment_ids)
    found = log_probs_of(
      params, inputs, lengths, targets, in_parts=True, **rows
    )
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

  rows = sharding.row_ways(model.mesh)
  return Scorer(
    model=model,
    windows=windows,
    long_batch=rows,
    window_batch=window_batch * sharding.batch_ways(model.mesh),
    usage=Usage(),
    long_pass=long_pass,
    window_pass=window_pass,
    # Copies on cores take fewer rows where fewer documents wait.
    plans=rows > 1 and not sharding.has_copies_on_cores(model.mesh),
    align=0 if model.config.sink_len else attention.alignment(backend),
  )
