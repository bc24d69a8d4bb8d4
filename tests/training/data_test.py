"""The pipeline: every chunk once an epoch, exact to resume anywhere."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax import testing
from longctx_jax.paper.windows import Windows
from longctx_jax.text import corpus, token_cache
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import data

T, K, D = 64, 16, 8
TOKENIZER = TextTokenizer(testing.byte_tokenizer(), name="bytes")
TEXTS = [testing.synthetic_document(i, num_words=3 + 5 * i) for i in range(11)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("data")
  rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS)]
  (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
  return folder


@pytest.fixture
def config(folder):
  return data.DataConfig(
    sources=(str(folder / "a.jsonl"),),
    seq_len=T,
    batch_size=4,
    cache_dir=str(folder / "cache"),
  )


def open_data(config, process=(0, 1), **changes):
  return data.open_training_data(
    dataclasses.replace(config, **changes),
    TOKENIZER,
    share=process[0],
    shares=process[1],
  )


def documents_of(batch):
  """The documents of a batch, as bytes of their ids, in order."""
  for b, inputs in enumerate(batch["inputs"]):
    ids = np.append(inputs, batch["targets"][b, -1])
    mask = batch["loss_mask"][b]
    starts = [0]
    if "segment_ids" in batch:
      segment = batch["segment_ids"][b]
      starts = np.flatnonzero(np.diff(segment, prepend=0) & (segment > 0))
    for start in starts:
      scored = itertools.takewhile(bool, mask[start:])
      yield ids[start : start + 1 + len(list(scored))].tobytes()


def assert_same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    assert a[name].dtype == b[name].dtype
    np.testing.assert_array_equal(a[name], b[name], name)


@pytest.mark.parametrize("packing", [False, True])
def test_an_epoch_trains_on_each_chunk_once(config, packing):
  """Cases I1, I5: weight count = sum(n_i - 1), whatever shares a row."""
  pipeline = open_data(config, packing=packing, batch_size=1, epochs=1)
  batches = list(pipeline.iterator())
  cache = token_cache.open_cache(
    config.cache_dir,
    corpus.open_corpus(config.sources),
    TOKENIZER,
    chunk_len=T,
  )
  chunks = [cache.read(i)[0].tobytes() for i in range(len(cache))]
  found = [one for batch in batches for one in documents_of(batch)]
  assert sorted(found) == sorted(chunks)
  count = sum(batch["loss_mask"].sum() for batch in batches)
  assert count == (cache.lengths - 1).sum()
  assert len(batches) < len(chunks) if packing else len(batches) == len(chunks)
  assert ("segment_ids" in batches[0]) == packing


def test_epochs_differ_in_order_and_seeds_do(config):
  pipeline = open_data(config, batch_size=1, epochs=2)
  count = len(pipeline.rows)
  order = [int(pipeline.row_numbers(step)[0]) for step in range(2 * count)]
  assert sorted(order[:count]) == sorted(order[count:]) == list(range(count))
  assert order[:count] != order[count:]
  other = open_data(config, batch_size=1, epochs=2, seed=1)
  assert [int(other.row_numbers(s)[0]) for s in range(count)] != order[:count]


def test_packing_depends_on_the_seed(config):
  first, second = (open_data(config, packing=True, seed=s) for s in (0, 1))
  assert [r.tolist() for r in first.rows] != [r.tolist() for r in second.rows]


@given(st.integers(0, 9), st.sampled_from([1, 2, 4]), st.booleans())
@settings(deadline=None, max_examples=12)
def test_resuming_is_exact_on_any_number_of_processes(
  folder, stop, count, packing
):
  """Case H5: stopped anywhere, also mid-epoch, in a pass of 2.5 epochs."""
  config = data.DataConfig(
    sources=(str(folder / "a.jsonl"),),
    seq_len=T,
    batch_size=4,
    cache_dir=str(folder / "cache"),
    packing=packing,
    windows=Windows(K, D),
  )
  whole = open_data(config).iterator()
  expected = [next(whole) for _ in range(stop + 3)]
  stopped = open_data(config, process=(1, 2)).iterator()
  for _ in range(stop):
    next(stopped)
  state = json.loads(json.dumps(stopped.get_state()))
  resumed = [
    open_data(config, process=(p, count)).iterator(state) for p in range(count)
  ]
  for batch in expected[stop:]:
    parts = [next(iterator) for iterator in resumed]
    joined = {
      name: np.concatenate([part[name] for part in parts]) for name in batch
    }
    assert_same(joined, batch)


def test_a_state_can_be_set_back(config):
  iterator = open_data(config).iterator()
  next(iterator)
  state = iterator.get_state()
  expected = [next(iterator) for _ in range(3)]
  iterator.set_state(state)
  for batch in expected:
    assert_same(next(iterator), batch)


def test_a_step_is_all_of_its_accumulated_parts(config):
  """Case H6: 4 parts of 3 rows; after step 3 comes part 12."""
  parts, step = 4, 3
  small = open_data(config, batch_size=3)
  large = open_data(config, batch_size=3 * parts)
  iterator = large.iterator()
  for _ in range(step):
    next(iterator)
  resumed = large.iterator(iterator.get_state())
  first = {name: array[:3] for name, array in next(resumed).items()}
  assert_same(first, small.batch(step * parts))


def test_a_copy_of_the_data_elsewhere_goes_on(tmp_path, config):
  state = open_data(config).iterator().get_state()
  copy = shutil.copy(config.sources[0], tmp_path / "b.jsonl")
  moved = open_data(
    config, sources=(str(copy),), cache_dir=str(tmp_path / "cache")
  )
  moved.iterator(state)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(seed=1), "seed was 0 and is 1"),
    (dict(batch_size=2), "batch_size was 4 and is 2"),
    (dict(packing=True), "packing was False and is True"),
    (dict(min_tokens=200), "content was '"),
    (dict(seq_len=32), "seq_len was 64 and is 32"),
  ],
)
def test_a_state_of_other_data_is_refused(config, changes, message):
  state = open_data(config).iterator().get_state()
  with pytest.raises(
    ValueError, match=f"was written with other data: .*{message}"
  ):
    open_data(config, **changes).iterator(state)


def test_windows_are_planned_for_the_loss_and_only_then(config):
  plain = open_data(config).batch(0)
  assert "window_start" not in plain
  batch = open_data(config, packing=True, windows=Windows(K, D)).batch(0)
  for b, positions in enumerate(batch["positions"]):
    segments = batch["segment_ids"][b]
    scored = np.zeros(T + 1, int)
    for first, last in zip(
      batch["score_start"][b], batch["score_end"][b], strict=True
    ):
      scored[first:last] += 1
    # Ids after window 0 of their document, each once.
    late = (positions + 1 >= K + D) & (batch["loss_mask"][b] > 0)
    np.testing.assert_array_equal(scored[1:], late, f"{segments}")


def test_lengths_are_there_where_asked_for(config):
  pipeline = data.open_training_data(config, TOKENIZER, with_lengths=True)
  batch = pipeline.batch(0)
  real = batch["loss_mask"].sum(axis=1) + 1
  np.testing.assert_array_equal(batch["lengths"], real)


def test_short_documents_and_chunks_are_left_out(config):
  pipeline = open_data(config, min_tokens=200, min_chunk=40, epochs=1)
  long = [text for text in TEXTS if len(text.encode()) >= 200]
  lengths = [
    len(TOKENIZER.encode(text, add_special_tokens=True).ids) for text in long
  ]
  expected = sum((n // (T + 1)) + (n % (T + 1) >= 40) for n in lengths)
  assert len(pipeline.rows) == expected < sum(-(-n // (T + 1)) for n in lengths)
  with pytest.raises(
    ValueError, match="none of .* chunks is left: min_tokens="
  ):
    open_data(config, min_tokens=10**6)


def test_an_endless_run_needs_no_whole_epoch_for_a_step(config):
  many = 3 * len(open_data(config).rows)
  iterator = open_data(config, batch_size=many).iterator()
  assert next(iterator)["inputs"].shape == (many, T)
  with pytest.raises(ValueError, match="1 epochs of .* rows are less than one"):
    open_data(config, batch_size=many, epochs=1)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(seq_len=0), "seq_len=0 is not from 1 to"),
    (dict(batch_size=0), "batch_size=0 is not from 1 to"),
    (dict(min_chunk=1), "min_chunk=1 is not from 2 to 65"),
    (dict(min_chunk=66), "min_chunk=66 is not from 2 to 65"),
    (dict(seed=-1), "seed=-1 is not from 0 to 4294967295"),
    (dict(epochs=-1), "epochs=-1 is not from 0 to"),
    (dict(cache_dir=""), "cache_dir is empty"),
  ],
)
def test_settings_that_no_run_can_have_are_refused(config, changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(config, **changes)


def test_rows_must_divide_among_processes(config):
  with pytest.raises(ValueError, match="batch_size=4 doesn't divide among 3"):
    open_data(config, process=(0, 3))


def test_the_length_comes_from_the_config(tmp_path, config):
  """Case B5: a file by the name of arxiv is cut as any other."""
  copy = shutil.copy(config.sources[0], tmp_path / "arxiv.jsonl")
  renamed = open_data(config, sources=(str(copy),))
  assert_same(renamed.batch(0), open_data(config).batch(0))
