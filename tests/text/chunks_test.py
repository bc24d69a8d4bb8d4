"""Cutting documents: nothing lost, nothing repeated, characters whole."""

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax import testing
from longctx_jax.text import chunks
from longctx_jax.text.corpus import Document
from longctx_jax.text.tokenizer import TextTokenizer

TOKENIZER = TextTokenizer(testing.byte_tokenizer(add_bos=True), name="bytes")


def document(text=None, ids=None):
  return Document("d", 3, text, ids, {})


def cut(text, chunk_len):
  return list(
    chunks.cut_document(document(text), TOKENIZER, chunk_len=chunk_len)
  )


@given(st.text("aé🙂 \n", max_size=60), st.integers(3, 30))
@settings(deadline=None)
def test_chunks_joined_are_the_document(text, chunk_len):
  encoding = TOKENIZER.encode(text, add_special_tokens=True)
  found = cut(text, chunk_len)
  assert "".join(chunk.text for chunk in found) == text
  ids = np.concatenate([chunk.ids for chunk in found])
  np.testing.assert_array_equal(ids, encoding.ids)
  assert [c.doc_id for c in found] == [f"d#{k}" for k in range(len(found))]
  lengths = [len(chunk.ids) for chunk in found]
  assert max(lengths) <= chunk_len + 1
  # Only a character that would be divided makes a chunk shorter: 4 bytes.
  assert min(lengths[:-1], default=chunk_len) > chunk_len + 1 - 4
  first = 0
  for chunk in found:
    for (start, end), (was_start, was_end) in zip(
      chunk.offsets, encoding.offsets[first:], strict=False
    ):
      piece = chunk.text[start:end]
      assert piece == text[was_start:was_end]
    first += len(chunk.ids)


@given(st.integers(0, 70), st.integers(1, 20))
def test_ids_without_a_text_are_cut_by_number(n, chunk_len):
  ids = np.arange(n, dtype=np.int32)
  found = list(
    chunks.cut_document(document(ids=ids), None, chunk_len=chunk_len)
  )
  np.testing.assert_array_equal(np.concatenate([c.ids for c in found]), ids)
  assert all(len(c.ids) == chunk_len + 1 for c in found[:-1])
  assert all(c.text is None and c.offsets is None for c in found)


def test_ids_with_their_tokenizer_are_cut_as_the_text_that_they_spell():
  text = "naïve 🙂 text" * 3
  ids = TOKENIZER.encode(text, add_special_tokens=False).ids
  found = list(chunks.cut_document(document(ids=ids), TOKENIZER, chunk_len=10))
  assert "".join(chunk.text for chunk in found) == text
  np.testing.assert_array_equal(np.concatenate([c.ids for c in found]), ids)


def test_an_empty_document_is_one_empty_chunk():
  assert chunks.cut(0, 5).tolist() == [0, 0]


def test_a_gap_between_tokens_and_a_special_at_the_end_cut_nothing_off():
  # Tokens without the space between them, then a special without characters.
  offsets = np.array([[0, 2], [3, 5], [6, 8], [0, 0]])
  assert chunks.cut(4, 1, offsets).tolist() == [0, 2, 4]


def test_a_character_longer_than_a_chunk_is_named():
  with pytest.raises(ValueError, match="ids 0 to 1 share their characters"):
    chunks.cut(4, 1, np.array([[0, 1]] * 4))
  with pytest.raises(ValueError, match="chunk_len=0: a chunk holds at least 1"):
    chunks.cut(4, 0)


def test_characters_that_no_token_covers_are_in_a_chunk_all_the_same():
  words = tokenizers.Tokenizer(
    tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a")
  )
  words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  text = "  a  b b\n a b  "
  found = list(
    chunks.cut_document(
      document(text), TextTokenizer(words, name="words"), chunk_len=1
    )
  )
  assert [chunk.text for chunk in found] == ["  a  b", " b\n a", " b  "]
  assert found[1].offsets.tolist() == [[1, 2], [4, 5]]


class Documents:
  """A corpus of these documents."""

  def __init__(self, *found):
    self.found = found
    self.count = len(found)

  def __iter__(self):
    return iter(self.found)


def test_a_chunked_corpus_gives_the_same_chunks_and_hands_errors_on():
  failed = Document("bad", 4, None, None, {}, "null")
  corpus = chunks.ChunkedCorpus(
    Documents(document("abcdefgh" * 4), failed), TOKENIZER, 9
  )
  assert corpus.count == 2
  found = list(corpus)
  expected = cut("abcdefgh" * 4, 9)
  assert [d.text for d in found] == [*(c.text for c in expected), None]
  assert [d.doc_id for d in found] == ["d#0", "d#1", "d#2", "d#3", "bad"]
  assert [d.doc_index for d in found] == [3, 3, 3, 3, 4]
  assert found[-1].error == "null" and corpus.count == 5
  assert corpus.facts == {
    "chunk_len": 9,
    "chunk_tokenizer": TOKENIZER.fingerprint,
  }


def test_a_document_that_cannot_be_cut_is_an_error_of_its_own():
  odd = document(ids=np.array([9999], np.int32))
  (found,) = chunks.ChunkedCorpus(Documents(odd), TOKENIZER, 9)
  assert found.text is None and "9999 is not in its vocabulary" in found.error
