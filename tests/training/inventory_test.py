"""What is said of training data, and what of it is refused."""

import json

import pytest

from longctx_jax import testing
from longctx_jax.paper.windows import Windows
from longctx_jax.text import corpus
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import data, inventory

T = 64
TOKENIZER = TextTokenizer(testing.byte_tokenizer(add_bos=True), name="bytes")


def open_data(folder, rows, *, tokenizer=TOKENIZER, vocab_size=0, **fields):
  path = folder / "a.jsonl"
  path.write_text("\n".join(map(json.dumps, rows)))
  config = data.DataConfig(
    sources=(str(path),),
    seq_len=T,
    cache_dir=str(folder / "cache"),
    **{"batch_size": 8} | fields,
  )
  return data.open_training_data(config, tokenizer, vocab_size=vocab_size)


def texts(*found):
  return [{"id": f"d{i}", "text": text} for i, text in enumerate(found)]


def test_a_step_of_several_epochs_says_so(tmp_path, caplog):
  with caplog.at_level("INFO"):
    open_data(tmp_path, texts("a", "b", "c"))
    open_data(tmp_path, texts("a", "b", "c"), batch_size=2)
  assert "a step is 2.7 epochs" in caplog.text
  assert "an epoch is 1.5 steps" in caplog.text


def test_a_bos_within_a_text_is_counted(tmp_path, caplog):
  """Also where it begins a later chunk; the tokenizer's own doesn't count."""
  bos = testing.BOS
  open_data(tmp_path, texts("plain", "x" * T), min_chunk=2)
  assert "BOS" not in caplog.text
  for _ in range(2):  # Tokenised, and read again.
    caplog.clear()
    open_data(
      tmp_path, texts("plain", f"{bos}{bos}x", "x" * T + bos + "y"), min_chunk=2
    )
    assert "2 of 3 documents hold a BOS in their text, 3 in all" in caplog.text


def test_documents_that_cannot_be_read_are_counted(tmp_path, caplog):
  for _ in range(2):
    caplog.clear()
    open_data(tmp_path, [*texts("abc"), {"id": "bad", "text": None}])
    assert "1 of 2 documents are left out" in caplog.text


def test_ids_beyond_the_vocabulary_are_refused(tmp_path):
  """JAX would take the last embedding, without a word."""
  rows = [{"id": "a", "ids": [1, 2]}, {"id": "b", "ids": [3] * T + [9, 8]}]
  options = dict(tokenizer=None, ids_column="ids")
  with pytest.raises(ValueError, match="'b#0' holds id 9, .* has 9 embeddings"):
    open_data(tmp_path, rows, vocab_size=9, **options)
  open_data(tmp_path, rows, vocab_size=10, **options)


def test_other_ids_of_the_same_lengths_are_other_data(tmp_path):
  options = dict(tokenizer=None, ids_column="ids")
  rows = [{"id": "a", "ids": [1, 2, 3]}]
  state = open_data(tmp_path, rows, **options).iterator().get_state()
  rows[0]["id"] = "by another name"
  open_data(tmp_path, rows, **options).iterator(state)
  rows[0]["ids"][1] = 7
  with pytest.raises(ValueError, match="other data: content was '"):
    open_data(tmp_path, rows, **options).iterator(state)


def test_rows_with_short_contexts_are_counted_and_none_is_refused(
  tmp_path, caplog
):
  """With its BOS the second has 33 ids: one target past K + d."""
  rows = texts("x" * 31, "x" * 32, "x" * 40)
  window = dict(windows=Windows(24, 8))
  with caplog.at_level("INFO"):
    open_data(tmp_path, rows, **window)
  assert "2 of 3 rows have a target past K + d = 32 ids" in caplog.text
  with pytest.raises(
    ValueError, match=r"^0 of 1 rows have a target past K \+ d"
  ):
    open_data(tmp_path, rows[:1], **window)


def test_documents_that_are_trained_on_are_known(tmp_path):
  """By their chunks, whatever they are called; a beginning is not enough."""
  long = testing.synthetic_document(0, num_words=60)
  digests = open_data(tmp_path, texts(long, "short")).digests
  path = tmp_path / "held_out.jsonl"
  found = texts("new", long, long[:200], "short", long + "!")
  path.write_text("\n".join(map(json.dumps, found)))
  documents = corpus.open_corpus(str(path))
  known = inventory.count_known(documents, digests, TOKENIZER, seq_len=T)
  assert known == 2
