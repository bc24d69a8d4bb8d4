"""Documents cut into chunks: the one place that says where.

Scoring (`scripts/score.py --chunk_len`) and training cut by this module, so
that weights found by the one belong to the rows of the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from longctx_jax.text.corpus import Corpus, Document
from longctx_jax.text.tokenizer import TextTokenizer


@dataclasses.dataclass(frozen=True, eq=False)
class Chunk:
  """A piece of a document.

  Attributes:
    doc_id: that of the document, "#" and the number of the chunk.
    doc_index: that of the document.
    text: its characters; None where the document came as ids without a text.
    ids: int32 [n].
    offsets: int64 [n, 2], the characters of each id within `text`, (0, 0) for
      ids without characters; None without a text.
  """

  doc_id: str
  doc_index: int
  text: str | None
  ids: np.ndarray
  offsets: np.ndarray | None


class ChunkedCorpus:
  """A corpus whose documents are the chunks of another's, as texts.

  Attributes:
    facts: what determines the cuts, for the manifest of a key-token store.
  """

  def __init__(self, corpus: Corpus, tokenizer: TextTokenizer, chunk_len: int):
    """Cuts documents as they are read; see `cut_document`."""
    self._corpus = corpus
    self._tokenizer = tokenizer
    self._chunk_len = chunk_len
    self._documents = self._chunks = 0
    self.facts = {
      "chunk_len": chunk_len,
      "chunk_tokenizer": tokenizer.fingerprint,
    }

  @property
  def count(self) -> int:
    """Chunks; estimated from the documents that were cut so far."""
    mean = self._chunks / self._documents if self._documents else 1
    return round(self._corpus.count * mean)

  def __iter__(self) -> Iterator[Document]:
    self._documents = self._chunks = 0
    for document in self._corpus:
      pieces = [document]
      if not document.error:
        pieces = self._cut(document)
      self._documents += 1
      self._chunks += len(pieces)
      yield from pieces

  def _cut(self, document: Document) -> list[Document]:
    try:
      cuts = cut_document(document, self._tokenizer, chunk_len=self._chunk_len)
      return [
        dataclasses.replace(
          document, doc_id=chunk.doc_id, text=chunk.text, ids=None
        )
        for chunk in cuts
      ]
    except ValueError as error:
      return [dataclasses.replace(document, text=None, error=str(error))]


def check_chunk_len(chunk_len: int) -> None:
  """Raises ValueError unless chunk_len is at least 1."""
  if chunk_len < 1:
    raise ValueError(f"chunk_len={chunk_len}: a chunk holds at least 1 target")


def cut(
  n: int, chunk_len: int, offsets: np.ndarray | None = None
) -> np.ndarray:
  """Cuts n ids into chunks of chunk_len + 1, which hold chunk_len targets.

  No id is left out or repeated. The last chunk holds the rest, and a chunk may
  be some ids shorter where a cut would divide a character: a text can only be
  cut between characters.

  Args:
    n: number of ids.
    chunk_len: targets of a chunk, the `seq_len` of training.
    offsets: int [n, 2], the characters of each id; None to cut by number alone.

  Returns:
    int64 [C + 1]: chunk k holds ids [bounds[k], bounds[k + 1]). C is at least
    1: an empty document is one empty chunk.

  Raises:
    ValueError: see `check_chunk_len`; or chunk_len + 1 ids share characters
      with the next.
  """
  check_chunk_len(chunk_len)
  places = np.arange(n + 1)
  if offsets is not None:
    begun, closed = _characters_around(offsets)
    places = places[closed <= begun]
  bounds = [0]
  while bounds[-1] < n:
    fitting = np.searchsorted(places, bounds[-1] + chunk_len + 1, side="right")
    bounds.append(int(places[fitting - 1]))
    if bounds[-1] == bounds[-2]:
      raise ValueError(
        f"ids {bounds[-1]} to {bounds[-1] + chunk_len} share their characters "
        f"with the next, so that chunk_len={chunk_len} leaves no place to cut"
      )
  return np.array(bounds if n else [0, 0], np.int64)


def cut_document(
  document: Document, tokenizer: TextTokenizer | None, *, chunk_len: int
) -> Iterator[Chunk]:
  """Cuts a document that can be read.

  Args:
    document: its text is tokenized with the special tokens that the tokenizer
      adds by default; ids are taken as they are.
    tokenizer: whose ids are counted; None where the document holds ids, which
      then come without a text.
    chunk_len: targets of a chunk.

  Yields:
    Its chunks, in order: ids and texts joined are those of the document.

  Raises:
    ValueError: see `cut`, and `TextTokenizer.encode`.
  """
  if tokenizer is None:
    text, ids, offsets = None, document.ids, None
  elif document.text is None:
    text, encoding = tokenizer.align(document.ids)
    ids, offsets = encoding.ids, encoding.offsets
  else:
    text = document.text
    encoding = tokenizer.encode(text, add_special_tokens=True)
    ids, offsets = encoding.ids, encoding.offsets
  bounds = cut(len(ids), chunk_len, offsets)
  if text is not None:
    cuts = _characters_around(offsets)[1][bounds]
    # Characters that no id covers go with those behind, or at last before them.
    cuts[0], cuts[-1] = 0, len(text)
  for k, (start, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
    yield Chunk(
      doc_id=f"{document.doc_id}#{k}",
      doc_index=document.doc_index,
      text=None if text is None else text[cuts[k] : cuts[k + 1]],
      ids=ids[start:end],
      offsets=None if text is None else _within(offsets[start:end], cuts[k]),
    )


def _characters_around(
  offsets: Int[np.ndarray, "n 2"],
) -> tuple[Int[np.ndarray, " n+1"], Int[np.ndarray, " n+1"]]:
  """Where characters begin after, and end before, each of n + 1 places."""
  start, end = np.asarray(offsets, np.int64).reshape(-1, 2).T
  wide = start < end
  closed = np.maximum.accumulate(np.where(wide, end, 0))
  far = np.iinfo(np.int64).max
  begun = np.minimum.accumulate(np.where(wide, start, far)[::-1])[::-1]
  return np.append(begun, far), np.append(0, closed)


def _within(offsets: Int[np.ndarray, "n 2"], first: int) -> np.ndarray:
  wide = offsets[:, :1] < offsets[:, 1:]
  return np.where(wide, offsets - first, 0)
