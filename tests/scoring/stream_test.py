"""Laws of batches: a document's scores are its own, whatever is beside it."""

import dataclasses

import jax
import numpy as np
import pytest
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.model import attention, sharding
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import progress
from longctx_jax.scoring import rows as rows_lib
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.scoring import stream as stream_lib

K, D = 48, 16


def make_jobs(count, *, seed=0, most=600):
  rng = np.random.default_rng(seed)
  lengths = np.clip(rng.lognormal(5, 0.9, count), 2, most).astype(int)
  return [
    scorer_lib.Job(i, rng.integers(0, 256, n).astype(np.int32))
    for i, n in enumerate(lengths)
  ]


def shared(scorer, *, rows=None, **changes):
  """The same passes, whose rows several documents share."""
  return dataclasses.replace(
    scorer,
    usage=progress.Usage(),
    plans=True,
    align=attention.alignment("blockwise"),
    long_batch=rows or scorer.long_batch,
    **changes,
  )


def by_key(scores):
  found = {}
  for one in scores:
    assert one.job.key not in found
    found[one.job.key] = one
  return found


@pytest.fixture(scope="module")
def scorer():
  table = RopeConfig("dynamic", 10000.0, factor=2.0, original_max_position=150)
  config = testing.tiny_config(ropes=(table,))
  model = testing.tiny_model(config, mesh=one_device_mesh())
  return scorer_lib.make_scorer(model, Windows(K, D), window_batch=5)


@pytest.fixture(scope="module")
def alone(scorer):
  """Each document in a stream of its own; tables depend on its length."""
  found = {}
  for job in make_jobs(30):
    (found[job.key],) = scorer.score([job])
  return found


def assert_same_bits(found, alone):
  for key, got in found.items():
    np.testing.assert_array_equal(got.long, alone[key].long)
    np.testing.assert_allclose(got.short, alone[key].short, atol=1e-5)


def assert_equal(found, alone):
  for key, got in found.items():
    np.testing.assert_allclose(got.long, alone[key].long, atol=1e-5)
    np.testing.assert_allclose(got.short, alone[key].short, atol=1e-5)


@pytest.mark.parametrize(
  ("rows", "order"),
  [
    (1, "as it comes"),
    (1, "reversed"),
    (1, "shuffled"),
    (2, "as it comes"),
    (5, "shuffled"),
  ],
)
def test_neighbours_in_a_row_change_nothing(scorer, alone, rows, order):
  """In a batch of one row, as each device has it, not a bit.

  Tables that depend on the length of a document go by its own.
  """
  jobs = make_jobs(30)
  if order == "reversed":
    jobs = jobs[::-1]
  elif order == "shuffled":
    np.random.default_rng(1).shuffle(jobs)
  packed = shared(scorer, rows=rows)
  found = by_key(packed.score(jobs))
  assert sorted(found) == sorted(alone)
  (assert_same_bits if rows == 1 else assert_equal)(found, alone)
  # Most rows were shared.
  lengths = [len(job.ids) for job in jobs]
  batches = rows_lib.batches(lengths, rows=rows, align=packed.align)
  assert rows * len(list(batches)) <= len(jobs) / 2


def test_what_is_scored_after_a_restart_has_the_same_bits(scorer, alone):
  """Other neighbours: half of the documents were finished before."""
  jobs = make_jobs(30)
  assert_same_bits(by_key(shared(scorer).score(jobs[::2])), alone)
  assert_same_bits(by_key(shared(scorer).score(jobs[1::2])), alone)


@pytest.mark.parametrize("most", [3, 8])
def test_no_more_jobs_wait_than_are_allowed(scorer, alone, monkeypatch, most):
  monkeypatch.setattr(stream_lib, "_MOST_JOBS", most)
  read, finished = 0, {}

  def jobs():
    nonlocal read
    for job in make_jobs(30):
      read += 1
      yield job

  for one in shared(scorer).score_long(jobs()):
    finished[one.job.key] = one
    # Those of the batches under way beside those that wait.
    assert read - len(finished) <= 4 * (most + 1)
  assert sorted(finished) == sorted(alone)
  for key, one in finished.items():
    np.testing.assert_array_equal(one.long, alone[key].long)


@pytest.mark.parametrize("fault", ["segments", "positions", "lengths"])
def test_a_wrong_layout_is_seen(scorer, alone, monkeypatch, fault):
  """Planted: what the law above would not forgive."""
  lay_out, layout_align = rows_lib.lay_out, 128

  def wrong(*given, **options):
    layout = lay_out(*given, **options)
    if fault == "segments":
      return dataclasses.replace(layout, segment_ids=0 * layout.segment_ids)
    if fault == "positions":
      # They start anew in each block of a document.
      anew = layout.positions % layout_align
      return dataclasses.replace(layout, positions=anew)
    longest = np.full_like(layout.lengths, layout.lengths.max())
    return dataclasses.replace(layout, lengths=longest)

  monkeypatch.setattr(rows_lib, "lay_out", wrong)
  found = by_key(shared(scorer, rows=2).score_long(make_jobs(30)))
  gaps = [
    np.abs(one.long - alone[key].long).max() for key, one in found.items()
  ]
  assert max(gaps) > 1e-3


@pytest.mark.parametrize(
  ("sizes", "window_batch"),
  [({"fsdp": 2}, 1), ({"fsdp": 4}, 2), ({"fsdp": 4, "tensor": 2}, 5)],
)
def test_shared_rows_on_several_devices_change_nothing(sizes, window_batch):
  count = int(np.prod(list(sizes.values())))
  mesh = sharding.make_mesh(sizes, jax.devices()[:count])
  config = testing.tiny_config(vocab_size=264)
  one = scorer_lib.make_scorer(
    testing.tiny_model(config, mesh=one_device_mesh()), Windows(K, D)
  )
  several = scorer_lib.make_scorer(
    testing.tiny_model(config, mesh=mesh),
    Windows(K, D),
    window_batch=window_batch,
  )
  assert several.plans and several.align == 128 and not one.plans
  jobs = make_jobs(12, seed=3, most=250)
  expected = by_key(one.score(jobs))
  found = by_key(several.score(jobs))
  assert sorted(found) == sorted(expected)
  for key, got in found.items():
    np.testing.assert_allclose(got.long, expected[key].long, atol=1e-5)
    np.testing.assert_allclose(got.short, expected[key].short, atol=1e-5)


def test_an_error_of_the_stream_comes_after_what_the_devices_have(scorer):
  def jobs():
    yield from make_jobs(4)
    raise ValueError("line 5 is damaged")

  found = []
  with pytest.raises(ValueError, match="line 5 is damaged"):
    for one in scorer.score_long(jobs()):
      found.append(one.job.key)
  assert sorted(found) == [0, 1, 2, 3]


def test_the_next_batch_is_handed_over_before_the_last_is_read(scorer):
  """Two are under way when the first result is asked for."""
  handed, calls = [], []

  def call(function, kind, ids, lengths):
    handed.append(max(lengths))
    return scorer_lib.Scorer._call(scorer, function, kind, ids, lengths)

  class Arrival:
    def __init__(self, result):
      self._result = result

    def wait(self):
      calls.append(len(handed))
      return np.asarray(self._result)

  class Arrivals:
    def expect(self, result, **_):
      return Arrival(result)

  stream = stream_lib.Stream(scorer, call, Arrivals(), with_windows=False)
  assert len(list(stream.score(make_jobs(6)))) == 6
  assert calls == [3, 4, 5, 6, 6, 6]
