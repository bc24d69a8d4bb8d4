"""Sums of a document's losses, taken where its log-probs are: on the devices.

`scorer` brings a log-prob per target to the host, and whatever is asked is
summed there. Where sums are all that is wanted, `eval_step` adds them up first.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from longctx_jax.model import defaults, log_probs, row_parts, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper import intervals
from longctx_jax.runtime.progress import Usage, heartbeat
from longctx_jax.scoring import buckets

# Key tokens of two regions stand further apart than this: see `intervals`.
_REGION_TARGETS = 17


@dataclasses.dataclass(frozen=True)
class SumJob:
  """One document to sum over.

  Attributes:
    key: anything that tells the document apart; comes back with the result.
    ids: what the model reads, int32 [n], n >= 2.
    key_mask: the key targets, bool [n - 1].
    expected: log-probs to compare with, float32 [n - 1], nats; NaN where there
      is none.
  """

  key: Any
  ids: np.ndarray
  key_mask: np.ndarray
  expected: np.ndarray


@dataclasses.dataclass(frozen=True)
class Sums:
  """What a document's log-probs add up to, nats.

  Attributes:
    nll_sum: over all targets.
    region_nll_sums: over the key targets of each key region.
    gap_sum: of abs(log-prob - expected), where something is expected.
    fault: the first target whose log-prob is no finite number, and that
      log-prob; None where all are.
  """

  nll_sum: float
  region_nll_sums: tuple[float, ...]
  gap_sum: float
  fault: tuple[int, float] | None = None


@dataclasses.dataclass(frozen=True)
class Summed:
  """A document that is done: the job as it came, and its sums."""

  job: SumJob
  sums: Sums


def sum_on_host(
  log_probs: Float[np.ndarray, " T"],
  key_mask: Bool[np.ndarray, " T"],
  expected: Float[np.ndarray, " T"],
) -> Sums:
  """The definition: the sums of a document in float64."""
  bad = ~np.isfinite(log_probs)
  if bad.any():
    t = int(bad.argmax())
    return Sums(0.0, (), 0.0, (t, float(log_probs[t])))
  nll = -np.asarray(log_probs, np.float64)
  regions = intervals.region_labels(key_mask)
  known = np.isfinite(expected)
  gaps = np.abs(nll + np.asarray(expected, np.float64))
  return Sums(
    nll_sum=float(nll.sum()),
    region_nll_sums=tuple(np.bincount(regions, weights=nll[key_mask]).tolist()),
    gap_sum=float(gaps[known].sum()),
  )


def make_eval_step(
  model: LoadedModel, *, chunk: int = 1024, backend: str = "auto"
) -> Callable[[nnx.State, Mapping[str, Array]], dict[str, Array]]:
  """Makes `eval_step(params, batch)` -> sums per row; pure, to be jitted.

  The batch, as `sharding.row_sharding` splits it: `ids` int32 [B, T + 1] and
  `lengths` [B] of them; `key` bool [B, T]; `ends` int32 [B, R], the last key
  target of each region, or any later one; `expected` float32 [B, T], NaN where
  nothing is.

  A sum is a pair of float32, to be added in float64: the sum as float32 gives
  it, and what that left out. So it is exact to some 1e-12 of itself however
  long the row is; float32 alone depends on the order, and added one by one is
  off by 2e-6 at 32,768 losses.

  Returns of each row: `nll`, `key_nll`, `gap` [2, B] and the running sum of the
  key losses at `ends`, `region_nll` [2, B, R]; `tokens` and `key_tokens` [B];
  `fault` [B], the first target that is not finite, or T, and its log-prob
  `fault_value` [B].
  """
  backend = defaults.attention_backend(
    backend,
    model.config,
    dtype=model.dtype,
    in_parts=model.mesh.shape[row_parts.AXIS] > 1,
  )

  def eval_step(params, batch):
    ids, lengths = batch["ids"], batch["lengths"]
    transformer = nnx.merge(model.graphdef, params)
    hidden = transformer(
      row_parts.split(ids[:, :-1]),
      lengths=row_parts.repeat(lengths),
      in_parts=True,
      backend=backend,
    )
    found = log_probs.target_log_probs(
      hidden,
      transformer.head(),
      row_parts.split(ids[:, 1:]),
      softcap=model.config.softcap,
      chunk=chunk,
    )
    # Small from here on: each device adds up whole rows.
    found = sharding.constrain(row_parts.join(found), sharding.ROW_AXES, None)
    count = found.shape[1]
    places = jnp.arange(count)[None]
    scored = places < lengths[:, None] - 1
    key = batch["key"] & scored
    bad = scored & ~jnp.isfinite(found)
    fault = jnp.where(bad, places, count).min(1)
    at = jnp.minimum(fault, count - 1)[:, None]
    gaps = jnp.abs(found - batch["expected"])
    running_key = _running_sums(jnp.where(key, -found, 0.0))
    regions = [
      jnp.take_along_axis(part, batch["ends"], axis=1) for part in running_key
    ]
    return {
      "nll": _sums(jnp.where(scored, -found, 0.0)),
      "key_nll": jnp.stack([part[:, -1] for part in running_key]),
      "region_nll": jnp.stack(regions),
      "gap": _sums(jnp.where(scored & ~jnp.isnan(gaps), gaps, 0.0)),
      "tokens": scored.sum(1),
      "key_tokens": key.sum(1),
      "fault": fault,
      "fault_value": jnp.take_along_axis(found, at, axis=1)[:, 0],
    }

  return eval_step


_Pair = tuple[Float[Array, "*S"], Float[Array, "*S"]]


def _add(first: _Pair, second: _Pair) -> _Pair:
  """Adds two sums; what the rounding of the first part loses is kept.

  Knuth, The Art of Computer Programming 2, section 4.2.2, theorem B.
  """
  high = first[0] + second[0]
  other = high - first[0]
  lost = (first[0] - (high - other)) + (second[0] - other)
  return high, first[1] + second[1] + lost


def _running_sums(x: Float[Array, "B T"]) -> _Pair:
  """The sum of each row up to and with each place."""
  return jax.lax.associative_scan(_add, (x, jnp.zeros_like(x)), axis=1)


def _sums(x: Float[Array, "B T"]) -> Float[Array, "2 B"]:
  """The sum of each row, by halves."""
  width = 1 << (x.shape[1] - 1).bit_length()
  x = jnp.pad(x, ((0, 0), (0, width - x.shape[1])))
  pair = x, jnp.zeros_like(x)
  while width > 1:
    width //= 2
    pair = _add(
      tuple(part[:, :width] for part in pair),
      tuple(part[:, width:] for part in pair),
    )
  return jnp.stack(pair)[..., 0]


@dataclasses.dataclass
class Summer:
  """The compiled eval step of one model, on documents of any length.

  Attributes:
    model: what scores.
    step: see `make_eval_step`; jitted.
    usage: counts so far.
  """

  model: LoadedModel
  step: Any
  usage: Usage
  compiled: dict[int, Any] = dataclasses.field(default_factory=dict)

  def sum(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """Sums of documents, as their batch is full.

    Args:
      jobs: each a `SumJob`. Anything else passes through, in its place.

    Yields:
      `Summed` of the jobs, and what passed through.
    """
    rows = sharding.row_ways(self.model.mesh)
    waiting: dict[int, list[SumJob]] = {}
    # The devices have the next batch while the host reads the sums of one.
    under_way: collections.deque[tuple[list[SumJob], Any]] = collections.deque()
    for job in jobs:
      if not isinstance(job, SumJob):
        yield job
        continue
      length = buckets.row_length(len(job.ids) - 1, self.model.mesh)
      batch = waiting.setdefault(length, [])
      batch.append(job)
      if len(batch) == rows:
        del waiting[length]
        under_way.append(self._start(length, rows, batch))
        if len(under_way) > 1:
          yield from self._finish(*under_way.popleft())
    for length, batch in waiting.items():
      under_way.append(self._start(length, rows, batch))
      yield from self._finish(*under_way.popleft())
    for batch, out in under_way:
      yield from self._finish(batch, out)

  def _finish(
    self, jobs: list[SumJob], out: dict[str, jax.Array]
  ) -> Iterator[Summed]:
    """The sums of a batch, once the devices have them."""
    found = jax.device_get(out)
    tokens = sum(len(job.ids) - 1 for job in jobs)
    self.usage.tokens += tokens
    self.usage.needed += tokens
    for row, job in enumerate(jobs):
      yield Summed(job, _sums_of(found, row, job))

  def _start(
    self, length: int, rows: int, jobs: list[SumJob]
  ) -> tuple[list[SumJob], dict[str, jax.Array]]:
    """Hands a batch to the devices; compilation is timed apart."""
    batch = _batch_of(jobs, length, rows)
    self.usage.fed += rows * length
    split = sharding.row_sharding(self.model.mesh)
    placed = sharding.place_rows(batch, split)
    with jax.set_mesh(self.model.mesh):
      if length not in self.compiled:
        start = time.monotonic()
        precision = defaults.matmul_precision(self.model.dtype)
        with (
          heartbeat(f"the eval step of {length:,} targets", doing="compiling"),
          jax.default_matmul_precision(precision),
        ):
          lowered = self.step.lower(self.model.params, placed)
          self.compiled[length] = lowered.compile()
        self.usage.compilations += 1
        self.usage.compile_seconds += time.monotonic() - start
      return jobs, self.compiled[length](self.model.params, placed)


def _region_ends(key_mask: Bool[np.ndarray, " T"]) -> np.ndarray:
  """The last key target of each region."""
  labels = intervals.region_labels(key_mask)
  last = np.append(np.diff(labels) > 0, True)[: len(labels)]
  return np.flatnonzero(key_mask)[last]


def _batch_of(
  jobs: list[SumJob], length: int, rows: int
) -> dict[str, np.ndarray]:
  regions = -(-length // _REGION_TARGETS)
  batch = {
    "ids": np.zeros((rows, length + 1), np.int32),
    "lengths": np.zeros(rows, np.int32),
    "key": np.zeros((rows, length), bool),
    "ends": np.zeros((rows, regions), np.int32),
    "expected": np.full((rows, length), np.nan, np.float32),
  }
  for row, job in enumerate(jobs):
    count = len(job.ids)
    batch["ids"][row, :count] = job.ids
    batch["lengths"][row] = count
    batch["key"][row, : count - 1] = job.key_mask
    ends = _region_ends(job.key_mask)
    batch["ends"][row, : len(ends)] = ends
    batch["expected"][row, : count - 1] = job.expected
  return batch


def _sums_of(out: Mapping[str, np.ndarray], row: int, job: SumJob) -> Sums:
  count = len(job.ids) - 1
  regions = intervals.count_regions(job.key_mask)
  if out["fault"][row] < count:
    return Sums(
      0.0, (), 0.0, (int(out["fault"][row]), float(out["fault_value"][row]))
    )

  def total(name: str) -> np.ndarray:
    return out[name][:, row].astype(np.float64).sum(0)

  running = total("region_nll")[:regions]
  return Sums(
    nll_sum=float(total("nll")),
    region_nll_sums=tuple(np.diff(running, prepend=0.0).tolist()),
    gap_sum=float(total("gap")),
  )


def make_summer(
  model: LoadedModel,
  *,
  chunk: int = 1024,
  backend: str = "auto",
  usage: Usage | None = None,
) -> Summer:
  """Makes the jitted eval step of a model.

  Args:
    model: what scores.
    chunk: positions whose logits are held at a time.
    backend: attention backend; "auto" takes the one of this machine.
    usage: counts what is done; default: new ones.
  """
  # Sums are small and leave for the host at once: replicated.
  whole = jax.sharding.NamedSharding(model.mesh, jax.sharding.PartitionSpec())
  step = jax.jit(
    make_eval_step(model, chunk=chunk, backend=backend), out_shardings=whole
  )
  return Summer(model=model, step=step, usage=usage or Usage())
