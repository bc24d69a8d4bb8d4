"""The scorer against the paper's definition: no batch, bucket or window plan.

Float32 against float64; the tolerance is 1e-5 nats throughout.
"""

import dataclasses

import jax
import numpy as np
import pytest
from support import definition
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.model import sharding
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import device, progress
from longctx_jax.scoring import buckets
from longctx_jax.scoring import scorer as scorer_lib

K, D = 48, 16
BOS = 256
# Nothing to score short, the edges of the first windows (cases C1: 49, 65 and
# 81 leave one id to the last window), the edges of buckets, several windows.
LENGTHS = (2, 48, 49, 64, 65, 66, 81, 128, 129, 130, 200)


def random_ids(n, *, seed=0, prefix_len=0):
  """Ids [n], the prefix among them; every document ends in the pad id, 0."""
  ids = np.random.default_rng([n, seed]).integers(0, 256, n).astype(np.int32)
  ids[-3:] = 0
  ids[:prefix_len] = BOS
  return ids


def jobs_of(lengths, prefix_len=0):
  return [
    scorer_lib.Job(n, random_ids(n, prefix_len=prefix_len), prefix_len)
    for n in lengths
  ]


def by_key(scores):
  """Key -> scores; a document that comes back twice is an error."""
  found = {}
  for one in scores:
    assert one.job.key not in found
    found[one.job.key] = one
  return found


def renewed(scorer, **changes):
  """The same compiled passes with counts of their own."""
  return dataclasses.replace(scorer, usage=progress.Usage(), **changes)


@pytest.fixture(scope="module")
def model():
  return testing.tiny_model(mesh=one_device_mesh())


@pytest.fixture(scope="module")
def scorer(model):
  return scorer_lib.make_scorer(model, Windows(K, D), window_batch=5)


@pytest.fixture(scope="module")
def scored(scorer):
  return {
    prefix_len: by_key(scorer.score(jobs_of(LENGTHS, prefix_len)))
    for prefix_len in (0, 1)
  }


def test_the_definition_is_that_of_the_model(model):
  ids = random_ids(61)
  np.testing.assert_allclose(
    model.logits(ids[None])[0], definition.logits(model, ids), atol=1e-5
  )


@pytest.mark.parametrize("prefix_len", [0, 1])
@pytest.mark.parametrize("n", LENGTHS)
def test_scores_are_the_papers(model, scored, n, prefix_len):
  """Cases C1, J1, B6; windows of all lengths were pooled."""
  ids = random_ids(n, prefix_len=prefix_len)
  got = scored[prefix_len][n]
  assert got.long.dtype == got.short.dtype == np.float32
  np.testing.assert_array_equal(got.job.ids, ids)
  np.testing.assert_allclose(
    got.long, definition.log_probs(model, ids), atol=1e-5, rtol=0
  )
  short = definition.short_log_probs(
    model, ids, short_len=K, stride=D, prefix_len=prefix_len
  )
  np.testing.assert_allclose(got.short, short, atol=1e-5, rtol=0)


@pytest.mark.parametrize("prefix_len", [0, 1])
def test_the_first_window_is_the_long_pass_to_the_bit(scored, prefix_len):
  """Cases C9: lsd is exactly 0 where both contexts are the same."""
  for n, got in scored[prefix_len].items():
    text_id = np.arange(1, n) - prefix_len
    unscored, first = text_id < K, (text_id >= K) & (text_id < K + D)
    assert np.isnan(got.short[unscored]).all()
    np.testing.assert_array_equal(got.short[first], got.long[first])
    later = text_id >= K + D
    assert np.isfinite(got.short[later]).all()
    assert (got.short != got.long)[later].sum() >= 0.9 * later.sum()


def test_order_of_documents_changes_nothing(scorer, scored):
  """Cases J4, with windows in other places of their batches."""
  again = by_key(scorer.score(jobs_of(LENGTHS[::-1], 1)))
  assert again.keys() == scored[1].keys()
  for n, got in again.items():
    np.testing.assert_array_equal(got.long, scored[1][n].long)
    np.testing.assert_allclose(got.short, scored[1][n].short, atol=1e-5)


def test_a_run_repeats_to_the_bit(scorer, scored):
  again = by_key(scorer.score(jobs_of(LENGTHS)))
  assert again.keys() == scored[0].keys()
  for n, got in again.items():
    np.testing.assert_array_equal(got.long, scored[0][n].long)
    np.testing.assert_array_equal(got.short, scored[0][n].short)


def test_what_needs_no_pass_passes_through_at_once(scorer):
  for score in (scorer.score, scorer.score_long):
    stream = iter(["a", *jobs_of([200]), "b"])
    first, *others = score(stream)
    assert first == "a" and "b" in others and len(others) == 2
    # Before anything that comes later is asked for.
    stream = iter(["a", *jobs_of([200])])
    assert next(score(stream)) == "a" and next(stream).key == 200


def test_the_long_pass_alone_gives_the_same_bits(scorer, scored):
  alone = by_key(scorer.score_long(jobs_of(LENGTHS)))
  assert alone.keys() == scored[0].keys()
  for n, got in alone.items():
    np.testing.assert_array_equal(got.long, scored[0][n].long)
    assert np.isnan(got.short).all()


def test_tables_go_by_the_real_length_of_a_pass():
  """Cases F5: up to 100 ids the short table, beyond them the long one.

  Buckets hold 128 positions and windows 64: padding decides nothing.
  """
  table = RopeConfig(
    "longrope",
    10000.0,
    original_max_position=100,
    short_factor=(1.0,) * 4,
    long_factor=(1.0, 2.0, 5.0, 9.0),
    attention_factor=1.1,
  )
  config = testing.tiny_config(ropes=(table,))
  model = testing.tiny_model(config, mesh=one_device_mesh())
  scorer = scorer_lib.make_scorer(model, Windows(K, D), window_batch=2)
  found = by_key(scorer.score(jobs_of((100, 101))))

  def log_probs(model, ids):
    logits = np.asarray(model.logits(ids[None])[0], np.float64)[:-1]
    normaliser = np.log(np.exp(logits).sum(-1))
    return logits[np.arange(len(ids) - 1), ids[1:]] - normaliser

  short_only = dataclasses.replace(table, long_factor=table.short_factor)
  short_model = testing.tiny_model(
    testing.tiny_config(ropes=(short_only,)), mesh=one_device_mesh()
  )
  for n, got in found.items():
    ids = random_ids(n)
    np.testing.assert_allclose(got.long, log_probs(model, ids), atol=1e-5)
    as_short = np.abs(got.long - log_probs(short_model, ids)).max()
    assert as_short > 1e-2 if n > 100 else as_short < 1e-5
    # The window that starts at id 16 scores ids 64 to 79.
    window = log_probs(short_model, ids[16:80])[K - 1 :]
    np.testing.assert_allclose(got.short[63:79], window, atol=1e-5)


@pytest.mark.parametrize("window_batch", [1, 2])
def test_window_batch_changes_nothing(scorer, scored, window_batch):
  """Cases J4: 1, 2, and the 5 of the other tests."""
  other = renewed(scorer, window_batch=window_batch)
  for n, got in by_key(other.score(jobs_of((66, 130, 200)))).items():
    np.testing.assert_array_equal(got.long, scored[0][n].long)
    np.testing.assert_allclose(got.short, scored[0][n].short, atol=1e-5)


def test_buckets_change_nothing(scorer, scored, monkeypatch):
  """Cases J4: more padding, same values."""
  monkeypatch.setattr(buckets, "bucket_length", lambda n: 256)
  for n, got in by_key(scorer.score(jobs_of(LENGTHS))).items():
    np.testing.assert_allclose(got.long, scored[0][n].long, atol=1e-5)
    np.testing.assert_allclose(got.short, scored[0][n].short, atol=1e-5)


@pytest.mark.parametrize(
  ("sizes", "window_batch"),
  [
    ({"data": 2}, 5),
    ({"data": 3}, 1),
    ({"fsdp": 4}, 2),
    ({"data": 2, "fsdp": 2, "tensor": 2}, 1),
    ({"context": 2}, 5),
    ({"data": 2, "context": 4}, 1),
    ({"fsdp": 2, "tensor": 2, "context": 2}, 2),
  ],
)
def test_devices_change_nothing(scored, sizes, window_batch):
  """Cases H3, J4: five documents, each once, on 2, 3, 4 and 8 devices."""
  count = int(np.prod(list(sizes.values())))
  mesh = sharding.make_mesh(sizes, jax.devices()[:count])
  config = testing.tiny_config(vocab_size=264)
  scorer = scorer_lib.make_scorer(
    testing.tiny_model(config, mesh=mesh),
    Windows(K, D),
    window_batch=window_batch,
  )
  lengths = (2, 66, 81, 128, 129)
  found = by_key(scorer.score(jobs_of(lengths)))
  assert sorted(found) == sorted(lengths)
  one = testing.tiny_model(config, mesh=one_device_mesh())
  for n, got in found.items():
    ids = random_ids(n)
    short = definition.short_log_probs(one, ids, short_len=K, stride=D)
    np.testing.assert_allclose(
      got.long, definition.log_probs(one, ids), atol=1e-5, rtol=0
    )
    np.testing.assert_allclose(got.short, short, atol=1e-5, rtol=0)


def test_a_hundred_lengths_compile_once_per_bucket(model, caplog):
  """Cases E7, counted by the scorer and by JAX."""
  scorer = scorer_lib.make_scorer(model, Windows(K, K), window_batch=8)
  lengths = np.random.default_rng(0).integers(2, 386, 200).tolist()

  def compiled(lengths):
    caplog.clear()
    jobs = [
      scorer_lib.Job(i, random_ids(n, seed=i)) for i, n in enumerate(lengths)
    ]
    with jax.log_compiles():
      assert len(by_key(scorer.score(jobs))) == len(lengths)
    return [
      record.getMessage()
      for record in caplog.records
      if "Finished XLA compilation" in record.getMessage()
    ]

  # 128, 256 and 384 positions, and the windows.
  assert {buckets.bucket_length(n) for n in range(1, 385)} == {128, 256, 384}
  first = compiled(lengths[:100])
  assert scorer.usage.compilations == 4
  assert len(first) == 4
  assert scorer.usage.compile_seconds > 0
  assert not compiled(lengths[100:])
  assert scorer.usage.compilations == 4


def test_usage_is_counted_as_by_hand(scorer):
  """One document of 100 ids in the bucket of 128.

  Windows start at 0 (not run), 16, 32 and 48; they feed 63, 63 and 51 ids in
  rows of 63, of which the batch has five.
  """
  fresh = renewed(scorer)
  assert fresh.usage.padding_share == 0.0
  list(fresh.score(jobs_of([100])))
  assert fresh.usage.tokens == 99
  assert fresh.usage.needed == 99 + 63 + 63 + 51
  assert fresh.usage.fed == 128 + 5 * 63
  assert fresh.usage.padding_share == pytest.approx(1 - 276 / 443)
  assert fresh.usage.compilations == 0


@pytest.mark.parametrize("n", [0, 1])
def test_a_document_without_a_target_is_refused(scorer, n):
  job = scorer_lib.Job("tiny", np.zeros(n, np.int32))
  with pytest.raises(ValueError, match="'tiny' has no target"):
    list(scorer.score([job]))


def test_prefixes_of_two_lengths_are_refused(scorer):
  jobs = jobs_of([81]) + jobs_of([129], prefix_len=1)
  with pytest.raises(ValueError, match="same prefix_len"):
    list(scorer.score(jobs))


def test_copies_on_cores_give_the_same_bits_and_feed_no_padding(caplog):
  """On 1 and 2 devices; the third document and the fifth window are alone."""
  config = testing.tiny_config(vocab_size=264)
  jobs = jobs_of((100, 101, 102))
  found, scorers = [], []
  for count in (1, 2):
    mesh = sharding.make_mesh({"data": count}, jax.devices()[:count])
    model = testing.tiny_model(config, mesh=mesh)
    made = scorer_lib.make_scorer(model, Windows(K, D), window_batch=1)
    scorers.append(made)
    with caplog.at_level("INFO"):
      found.append(by_key(scorers[-1].score(jobs)))
  (said,) = (text for text in caplog.messages if "copy of the weights" in text)
  assert said == "2 CPU devices, a copy of the weights on each: 2 x 0.00 GiB"
  for n, one in found[0].items():
    np.testing.assert_array_equal(one.long, found[1][n].long)
    np.testing.assert_array_equal(one.short, found[1][n].short)
  windows = K + D
  # The last window takes the program of all devices, which is there.
  assert set(scorers[1].compiled) == {
    ("long", (2, 129)), ("long", (1, 129)), (0, (2, windows)),
  }  # fmt: skip
  assert scorers[1].usage.fed == 3 * 128 + 10 * (windows - 1)
  # Where it is not there, one device has all cores.
  alone = renewed(scorers[1], compiled={})
  (scores,) = alone.score(jobs_of([65]))
  assert set(alone.compiled) == {("long", (1, 129)), (0, (1, windows))}
  assert np.isfinite(scores.short[K - 1 :]).all()
  # Also for many windows: devices that share cores wait for each other.
  few = renewed(scorers[1], compiled={})
  (scores,) = few.score(jobs_of([102]))
  assert set(few.compiled) == {("long", (1, 129)), (0, (1, windows))}
  np.testing.assert_array_equal(scores.short, found[0][102].short)


def test_a_pass_that_the_devices_have_no_memory_for_is_refused(
  scorer, monkeypatch
):
  """Before it runs; with what it needs, what there is, and what to set."""
  monkeypatch.setattr(device, "memory_bytes", lambda _: 1 << 16)
  small = renewed(scorer, compiled={})
  message = r"^the pass over texts of up to 129 ids takes .* set --max_length"
  with pytest.raises(ValueError, match=message):
    list(small.score(jobs_of([100])))
  assert small.usage.fed == 0
