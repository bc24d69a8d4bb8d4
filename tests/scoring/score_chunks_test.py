"""score --chunk_len: rows for training, cut as training cuts."""

import json
import re

import numpy as np
import pytest
from support.tiny_runs import (
  ALPHA,
  BETA,
  D,
  K,
  make_config,
  make_texts,
  passed,
  save_models,
  write_jsonl,
)

from longctx_jax import testing
from longctx_jax.evaluation import run
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import run as run_lib
from longctx_jax.text import chunks, corpus
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import data

T = 100
TEXTS = make_texts(3)
BYTES = TextTokenizer(testing.byte_tokenizer(), name="bytes")

pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  save_models(folder, ["m0"])
  # Its tokenizer adds a BOS, so that its chunks hold one byte less.
  testing.RandomSource(testing.tiny_config(), seed=1).save(
    folder / "m1", add_bos=True
  )
  return folder


@pytest.fixture
def config(tmp_path, models):
  path = write_jsonl(tmp_path / "corpus.jsonl", TEXTS)
  return make_config(
    data__sources=(path,), data__chunk_len=T, evaluator=str(models / "m0")
  )


def cut(i, tokenizer=BYTES):
  document = corpus.Document(f"d{i}", i, TEXTS[i], None, {})
  return list(chunks.cut_document(document, tokenizer, chunk_len=T))


def train_config(tmp_path, config, **changes):
  return data.DataConfig(
    sources=config.data.sources,
    seq_len=T,
    batch_size=1,
    cache_dir=str(tmp_path / "cache"),
    epochs=1,
    thresholds=Thresholds(ALPHA, BETA),
    windows=Windows(K, D),
    **changes,
  )


def test_a_row_is_a_chunk_scored_as_a_document_of_its_own(tmp_path, config):
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  expected = [chunk for i in range(3) for chunk in cut(i)]
  assert list(store.hashes) == [chunk.doc_id for chunk in expected]
  assert len(expected) > 6
  assert store.manifest.chunk_len == T
  assert store.manifest.chunk_tokenizer == BYTES.fingerprint
  path = tmp_path / "chunks.jsonl"
  path.write_text(
    "\n".join(json.dumps({"id": c.doc_id, "text": c.text}) for c in expected)
  )
  config.data.sources, config.data.chunk_len = (str(path),), 0
  alone = run_lib.score_corpus(config, workdir=tmp_path / "alone")
  for a, b in zip(store, alone, strict=True):
    assert (a.doc_id, a.text_sha256) == (b.doc_id, b.text_sha256)
    for name in ("offsets", "long_log_probs", "short_log_probs", "spans"):
      np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_chunks_of_a_document_stay_in_order_beyond_the_tenth(tmp_path, config):
  config.data.chunk_len = 15
  config.longppl.update(short_len=4, stride=4)
  config.data.row_range = (0, 1)
  store = run_lib.score_corpus(config, workdir=tmp_path)
  assert list(store.hashes) == [f"d0#{k}" for k in range(len(store))]
  assert len(store) > 10


def test_a_run_goes_on_with_the_same_cuts_only(tmp_path, config, scorers):
  config.data.row_range = (0, 2)
  run_lib.score_corpus(config, workdir=tmp_path / "w")
  config.data.row_range = (0, 0)
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert passed(scorers[-1:]) == sum(len(chunk.ids) - 1 for chunk in cut(2))
  assert len({row.doc_index for row in store}) == 3
  config.data.chunk_len = T + 1
  with pytest.raises(ValueError, match="chunk_len was 100 and is 101"):
    run_lib.score_corpus(config, workdir=tmp_path / "w")
  config.data.chunk_len = 0
  with pytest.raises(ValueError, match="chunk_len was 100 and is not there"):
    run_lib.score_corpus(config, workdir=tmp_path / "w")


@pytest.mark.parametrize("name", ["m0", "m1"])
def test_training_reads_what_was_scored_for_it(tmp_path, config, models, name):
  """With the evaluator's tokenizer and with another."""
  config.data.chunk_tokenizer = str(models / name)
  run_lib.score_corpus(config, workdir=tmp_path / "w")
  tokenizer = TextTokenizer.from_folder(models / name)
  pipeline = data.open_training_data(
    train_config(tmp_path, config, key_tokens=str(tmp_path / "w")), tokenizer
  )
  store = store_lib.read_store(tmp_path / "w" / "key_tokens")
  store = store.with_thresholds(ALPHA, BETA)
  heavy = {True: 0, False: 0}
  for batch in pipeline.iterator():
    (targets,), (weights,), (mask,) = (
      batch[name] for name in ("targets", "weights", "loss_mask")
    )
    (chunk,) = [
      chunk for i in range(3) for chunk in cut(i, tokenizer)
      if chunk.ids[1:].tolist() == targets[mask == 1].tolist()
    ]  # fmt: skip
    key = store.get(chunk.doc_id)
    covered = {
      character for span in key.spans.tolist() for character in range(*span)
    }
    for (start, end), weight in zip(
      chunk.offsets[1:].tolist(), weights[mask == 1], strict=True
    ):
      over = bool(covered & set(range(start, end)))
      assert weight == (5.0 if over else 1.0)
      heavy[over] += 1
  assert heavy[True] > 5 and heavy[False] > 5


def test_training_refuses_a_store_of_other_cuts(tmp_path, config, models):
  config.data.chunk_tokenizer = str(models / "m1")
  run_lib.score_corpus(config, workdir=tmp_path / "w")
  with pytest.raises(
    ValueError, match="cuts documents otherwise: chunk_tokenizer was "
  ):
    data.open_training_data(
      train_config(tmp_path, config, key_tokens=str(tmp_path / "w")), BYTES
    )


def test_token_ids_are_cut_as_they_are(tmp_path, config):
  """Encoding their text again would give other ids."""
  ids = [BYTES.encode(t, add_special_tokens=False).ids.tolist() for t in TEXTS]
  ids = [[256, *one] for one in ids]  # A BOS that this tokenizer never adds.
  config.data.sources = (write_jsonl(tmp_path / "ids.jsonl", TEXTS, ids=ids),)
  config.data.ids_column = "ids"
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  pipeline = data.open_training_data(
    train_config(
      tmp_path, config, ids_column="ids", key_tokens=str(tmp_path / "w")
    ),
    BYTES,
  )
  assert len(pipeline.rows) == len(store) == 9
  count = sum(batch["loss_mask"].sum() for batch in pipeline.iterator())
  assert count == sum(map(len, ids)) - len(store)


def test_every_document_has_a_row_also_one_that_cannot_be_cut(tmp_path, config):
  path = tmp_path / "odd.jsonl"
  rows = [{"id": "empty", "text": ""}, {"id": "null", "text": None}]
  rows.append({"id": "whole", "text": make_texts(1)[0]})
  path.write_text("\n".join(map(json.dumps, rows)))
  config.data.sources = (str(path),)
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  reasons = {row.doc_id: row.reason for row in store}
  assert reasons["empty#0"] == "empty" and reasons["null"] == "failed"
  assert reasons["whole#0"] == ""


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    (dict(chunk_len=-1), "chunk_len=-1: a chunk holds at least 1 target"),
    (
      dict(chunk_len=0, chunk_tokenizer="m"),
      "chunk_tokenizer='m' without chunk_len",
    ),
  ],
)
def test_cuts_that_no_run_can_have_are_refused(
  tmp_path, config, scorers, fields, message
):
  config.data.update(fields)
  with pytest.raises(ValueError, match=re.escape(message)):
    run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert not scorers and not (tmp_path / "w").exists()


def test_models_are_not_evaluated_on_chunks(tmp_path, config):
  with pytest.raises(ValueError, match="chunk_len=100: documents are cut for"):
    run.evaluate(config, workdir=tmp_path)
