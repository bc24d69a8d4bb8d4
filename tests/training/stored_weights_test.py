"""Weights of an evaluator with its own tokenizer, and stores that don't fit."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import manifests

from longctx_jax import testing
from longctx_jax.key_tokens import record
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.text import chunks, corpus
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import data, stored_weights

ALPHA, BETA, GAMMA = 2.0, -2.0, 5.0
T = 30
TOKENIZER = TextTokenizer(testing.byte_tokenizer(add_bos=True), name="bytes")
TEXTS = ["naïve 🙂 text that is cut into chunks " * 2, "another one"]


def brute_force(weights, spans, offsets):
  """The definition: every token against every span."""
  found = []
  for a, b in offsets:
    over = [
      w for w, (s, e) in zip(weights, spans, strict=True)
      if max(a, s) < min(b, e)
    ]  # fmt: skip
    found.append(max(over, default=1.0))
  return np.array(found, np.float32)


ranges = st.lists(
  st.tuples(st.integers(0, 20), st.integers(0, 6)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
  ),
  max_size=12,
)


@given(st.data(), ranges, ranges)
def test_a_target_takes_the_largest_weight_that_it_overlaps(
  draw, spans, offsets
):
  weights = draw.draw(
    st.lists(
      st.sampled_from([1.0, 1.5, 2.0, 5.0]),
      min_size=len(spans),
      max_size=len(spans),
    )
  )
  np.testing.assert_array_equal(
    stored_weights.largest_overlapping(weights, spans, offsets),
    brute_force(weights, spans, offsets),
  )


def test_the_example():
  found = stored_weights.largest_overlapping(
    [2, 5], [[0, 3], [3, 6]], [[0, 3], [2, 4], [6, 9]]
  )
  assert found.tolist() == [2, 5, 1]


def words(text):
  """Offsets of an evaluator that reads words with the space before them."""
  return np.array([m.span() for m in re.finditer(r" ?[^ ]+| $", text)])


def chunks_of_texts(chunk_len=T):
  return [
    chunk
    for i, text in enumerate(TEXTS)
    for chunk in chunks.cut_document(
      corpus.Document(f"d{i}", i, text, None, {}),
      TOKENIZER,
      chunk_len=chunk_len,
    )
  ]


def evaluator_row(chunk, manifest, seed):
  """Random log-probs of every word but the first, some not scored."""
  rng = np.random.default_rng(seed)
  offsets = words(chunk.text)[1:]
  short = rng.normal(-4, 3, len(offsets))
  short[:2] = np.nan
  return record.make_key_tokens(
    doc_id=chunk.doc_id,
    doc_index=chunk.doc_index,
    text_sha256=corpus.text_sha256(chunk.text),
    n_chars=len(chunk.text),
    n_tokens=len(offsets),
    n_tokens_full=len(offsets),
    n_eligible=len(offsets),
    offsets=offsets,
    long_log_probs=-np.abs(rng.normal(0, 2, len(offsets))),
    short_log_probs=short,
    manifest=manifest,
  )


@pytest.fixture
def make_store(tmp_path):
  """Scores the chunks; `changes` replace fields of the manifest."""

  def make(name="keys", kept=slice(None), **changes):
    fields = {
      "short_len": 8, "stride": 4, "alpha": ALPHA, "beta": BETA,
      "chunk_len": T, "chunk_tokenizer": TOKENIZER.fingerprint, **changes,
    }  # fmt: skip
    manifest = manifests.make(**fields)
    folder = tmp_path / name / "key_tokens"
    writer = writer_lib.open_writer(folder, manifest)
    rows = [
      evaluator_row(chunk, manifest, seed)
      for seed, chunk in enumerate(chunks_of_texts())
    ]
    writer.write(rows[kept])
    return str(folder.parent)

  return make


def hashes():
  return {c.doc_id: corpus.text_sha256(c.text) for c in chunks_of_texts()}


def open_weights(path, found=None, **changes):
  options = dict(
    form="hard", chunk_len=T, tokenizer_fingerprint=TOKENIZER.fingerprint,
    windows=None, thresholds=Thresholds(ALPHA, BETA), gamma=GAMMA,
  )  # fmt: skip
  return stored_weights.open_weights(
    store_lib.read_store(f"{path}/key_tokens"),
    hashes() if found is None else found,
    **options | changes,
  )


@pytest.mark.parametrize(
  ("form", "thresholds"),
  [("hard", (ALPHA, BETA)), ("hard", (0.5, -4.0)), ("soft", (ALPHA, BETA))],
)
def test_weights_are_the_definition_of_their_form(make_store, form, thresholds):
  """Another tokenizer: words of the evaluator, bytes of the model."""
  alpha, beta = thresholds
  path = make_store()
  store = store_lib.read_store(f"{path}/key_tokens")
  weights = open_weights(path, form=form, thresholds=Thresholds(*thresholds))
  values = set()
  for chunk in chunks_of_texts():
    keys = store.get(chunk.doc_id)
    expected = []
    for long, short in zip(
      keys.long_log_probs, keys.short_log_probs, strict=True
    ):
      if np.isnan(short):
        expected.append(1.0)
      elif form == "hard":
        key = long - short > alpha and long > beta
        expected.append(GAMMA if key else 1.0)
      else:
        expected.append(min(max(np.exp(float(long - short)), 1.0), GAMMA))
    found = weights.of(chunk.doc_id, chunk.offsets[1:])
    np.testing.assert_allclose(
      found, brute_force(expected, keys.offsets, chunk.offsets[1:]), rtol=1e-6
    )
    values |= set(found.tolist())
  assert {1.0, GAMMA} <= values and (len(values) > 2) == (form == "soft")


def test_a_ratio_of_800_nats_is_gamma(make_store):
  store = store_lib.read_store(f"{make_store()}/key_tokens")
  chunk = chunks_of_texts()[0]
  keys = dataclasses.replace(
    store.get(chunk.doc_id),
    long_log_probs=np.full(5, -1.0),
    short_log_probs=np.array([-801.0, -np.inf, np.nan, 0.0, -1.0]),
    offsets=np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]),
  )
  weights = dataclasses.replace(
    open_weights(make_store("again"), form="soft"),
    _store=dataclasses.replace(store, _load=lambda doc_id: keys),
  )
  found = weights.of(chunk.doc_id, keys.offsets)
  assert found.tolist() == [GAMMA, GAMMA, 1, 1, 1]


@pytest.mark.parametrize("packing", [False, True])
def test_batches_carry_the_weights_of_their_targets(
  tmp_path, make_store, packing
):
  path = tmp_path / "a.jsonl"
  rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS)]
  path.write_text("\n".join(map(json.dumps, rows)))
  config = data.DataConfig(
    sources=(str(path),),
    seq_len=T,
    batch_size=1,
    cache_dir=str(tmp_path / "cache"),
    packing=packing,
    epochs=1,
    key_tokens=make_store(),
    windows=Windows(8, 4),
  )
  pipeline = data.open_training_data(config, TOKENIZER)
  weights = open_weights(config.key_tokens)
  expected = {
    chunk.ids[1:].tobytes(): weights.of(chunk.doc_id, chunk.offsets[1:])
    for chunk in chunks_of_texts()
  }
  seen = 0
  for batch in pipeline.iterator():
    assert "window_start" not in batch
    (targets,), (mask,), (found,) = (
      batch[name] for name in ("targets", "loss_mask", "weights")
    )
    assert (found[mask == 0] == 1).all()
    for part in np.split(np.arange(T), np.flatnonzero(mask == 0)):
      part = part[mask[part] == 1]
      if len(part):
        np.testing.assert_array_equal(
          found[part], expected[targets[part].tobytes()]
        )
        seen += 1
  assert seen == len(expected)


def test_a_store_that_was_made_anew_is_other_data(tmp_path, make_store):
  """By another evaluator, or other windows; its name and place may change."""
  path = tmp_path / "a.jsonl"
  rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(TEXTS)]
  path.write_text("\n".join(map(json.dumps, rows)))

  def open_data(store):
    config = data.DataConfig(
      sources=(str(path),),
      seq_len=T,
      batch_size=1,
      cache_dir=str(tmp_path / "cache"),
      key_tokens=store,
    )
    return data.open_training_data(config, TOKENIZER).iterator

  state = open_data(make_store(checksum="1234"))().get_state()
  same = make_store(
    "moved", checksum="1234", evaluator="./E", versions={"a": 1}
  )
  open_data(same)(state)
  for name, changes, message in (
    (
      "other",
      dict(checksum="5678"),
      "weights.checksum was '1234' and is '5678'",
    ),
    ("wider", dict(checksum="1234", stride=8), "weights.stride was 4 and is 8"),
  ):
    with pytest.raises(ValueError, match=message):
      open_data(make_store(name, **changes))(state)


@pytest.mark.parametrize(
  ("stored", "asked", "message"),
  [
    (
      dict(chunk_len=None, chunk_tokenizer=None),
      {},
      "the key-token store cuts documents otherwise: chunk_len was not there "
      f"and is {T}; chunk_tokenizer was not there and is "
      f"{TOKENIZER.fingerprint!r}. Score with --chunk_len {T} and "
      "--chunk_tokenizer of the model in training",
    ),
    (
      dict(chunk_len=31),
      {},
      "the key-token store cuts documents otherwise: chunk_len was 31 and is "
      f"{T}. Score with --chunk_len {T} and --chunk_tokenizer of the model in "
      "training",
    ),
    (
      {},
      dict(windows=Windows(16, 4)),
      "the key-token store was scored with other windows: short_len was 8 and "
      "is 16. Set the loss to the store's, or score again",
    ),
    (
      {},
      dict(windows=Windows(8, 8)),
      "the key-token store was scored with other windows: stride was 4 and is "
      "8. Set the loss to the store's, or score again",
    ),
    (
      dict(detail="keys"),
      dict(thresholds=Thresholds(1.0, -2.0)),
      "the key-token store was made with alpha=2.0, beta=-2.0 and can't be "
      "read with alpha=1.0, beta=-2.0: it holds the log-probs of those key "
      "tokens only (detail=keys), so thresholds can rise but not fall. Use its "
      "thresholds or score again with detail=tokens.",
    ),
    (
      dict(detail="scores"),
      {},
      "the key-token store holds scores and no key tokens (detail=scores). "
      "Score again with detail=tokens or detail=keys.",
    ),
    (
      dict(detail="keys"),
      dict(form="soft"),
      "soft weights need the log-probs of all tokens, and the key-token store "
      "was made with detail=keys. Use stored_form=hard, or score again with "
      "detail=tokens",
    ),
    ({}, dict(form="mild"), "stored_form='mild' is not one of hard, soft"),
    ({}, dict(gamma=0.5), "gamma=0.5: stored weights are from 1 to gamma"),
  ],
)
def test_a_store_that_does_not_fit_is_refused(
  make_store, stored, asked, message
):
  path = make_store(**stored)
  with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
    open_weights(path, **asked)


def test_chunks_that_are_missing_or_changed_are_named(make_store):
  path = make_store(kept=slice(2, None))
  found = hashes()
  missing, changed = list(found)[:2], list(found)[3]
  found[changed] = corpus.text_sha256("another text")
  with pytest.raises(ValueError) as error:
    open_weights(path, found)
  assert str(error.value) == (
    "the key-token store doesn't belong to this data: "
    f"2 of {len(found)} chunks ({missing[0]!r}, {missing[1]!r}) are missing in "
    f"it; 1 of {len(found)} chunks ({changed!r}) had another text when it was "
    "scored. Score the data that is trained on"
  )


def test_a_store_may_hold_more_and_other_windows_where_none_are_named(
  make_store,
):
  path = make_store()
  some = dict(list(hashes().items())[1:3])
  open_weights(path, some, windows=Windows(8, 4))
  open_weights(path, some)


def test_an_evaluator_that_finds_nothing_is_told_of(make_store, caplog):
  """Its weights stay at 1, which is cross-entropy."""
  path = make_store()
  with caplog.at_level("INFO"):
    open_weights(path)
  assert "% of the evaluator's tokens weigh more than 1" in caplog.text
  assert "plain cross-entropy" not in caplog.text
  with caplog.at_level("WARNING"):
    open_weights(path, thresholds=Thresholds(100.0, BETA))
  assert "training with its weights is plain cross-entropy" in caplog.text
