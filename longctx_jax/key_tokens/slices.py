"""The reference's published key tokens: a folder of slice files, spans only."""

import dataclasses
import os
import pathlib
import re

import numpy as np
from absl import logging

from longctx_jax.key_tokens import record, store
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.paper import spans as spans_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import urls
from longctx_jax.text import corpus as corpus_lib

_SLICES = re.compile(r"slice_([0-9]+)\.txt")


# What the published files were made with; they don't say so themselves.
PUBLISHED = Manifest(
  evaluator="",
  protocol="paper",
  windows=Windows(4096, 1024),
  thresholds=Thresholds(2.0, -2.0),
  detail="spans",
)


# What a tokenizer of Llama 2 decodes its BOS to.
_BOS_TEXT = "<s>"


def read_slice_store(
  folder: str | os.PathLike, corpus: corpus_lib.Corpus
) -> store.KeyTokenStore:
  """Reads slice files as the key tokens of a corpus.

  `slice_i.txt` belongs to the document with doc_index i. Nothing in the files
  ties them to a text, so all that can be checked is that documents and files
  come in equal number and that every span lies inside its text. No log-probs
  are stored: the thresholds are those of the paper, and fixed.

  Args:
    folder: with the slice files of one evaluator, after which it is named.
    corpus: documents with their texts; token ids must be decoded first
      (`Corpus.decoded`), special tokens kept and spaces not cleaned up.

  Returns:
    A store of spans, held in memory.

  Raises:
    FileNotFoundError: no slice files there.
    ValueError: a document without a file or a file without a document, a span
      that ends behind its text, token ids; see also `spans.read_slices`.
  """
  folder = urls.fetched(folder, files=("slice_*.txt",))
  inside = folder.iterdir() if folder.is_dir() else ()
  matches = ((path, _SLICES.fullmatch(path.name)) for path in inside)
  files = {int(match[1]): path for path, match in matches if match}
  if not files:
    raise FileNotFoundError(
      f"{folder} holds no slice files (slice_0.txt, ...)."
    )
  _require_equal_number(folder, set(files), corpus)
  manifest = dataclasses.replace(
    PUBLISHED, evaluator=folder.name, source=f"slices:{folder}"
  )
  rows: dict[str, KeyTokens] = {}
  with_bos: list[str] = []
  for document in corpus:
    path = files[document.doc_index]
    rows[document.doc_id] = _read_document(path, document, manifest)
    if (document.text or "").startswith(_BOS_TEXT):
      with_bos.append(document.doc_id)
  if with_bos:
    logging.warning(
      "%d texts start with %r (%r first). Their spans are right only if the "
      "slices were cut from texts that do too, else off by %d characters.",
      len(with_bos),
      _BOS_TEXT,
      with_bos[0],
      len(_BOS_TEXT),
    )
  hashes = {doc_id: row.text_sha256 for doc_id, row in rows.items()}
  return store.KeyTokenStore(manifest, hashes, rows.__getitem__)


def _require_equal_number(
  folder: pathlib.Path, numbers: set[int], corpus: corpus_lib.Corpus
) -> None:
  missing = set(range(corpus.start, corpus.stop)) - numbers
  extra = {number for number in numbers if number >= corpus.total}
  if missing or extra:
    fault = "is missing" if missing else "has no document"
    raise ValueError(
      f"slice_{min(missing or extra)}.txt {fault}: {folder} holds "
      f"{len(numbers)} slice files, the corpus {corpus.total} documents. They "
      "belong together by number: take the documents that the files were made "
      f"for, in that order (--row_range 0:{len(numbers)} if they come first)."
    )


def _read_document(
  path: pathlib.Path, document: corpus_lib.Document, manifest: Manifest
) -> KeyTokens:
  text_sha256 = store.document_sha256(document)
  spans = spans_lib.read_slices(path)
  reason = "" if len(spans) else "no_key_tokens"
  if document.error:
    spans, reason = spans[:0], "failed"
  else:
    _require_inside(path, spans, document.text)
  return record.of_spans(
    document, spans, manifest, text_sha256=text_sha256, reason=reason
  )


def _require_inside(path: pathlib.Path, spans: np.ndarray, text: str) -> None:
  outside = spans[spans[:, 1] > len(text)]
  if not len(outside):
    return
  hint, shifted = "", spans - len(_BOS_TEXT)
  if text.startswith(_BOS_TEXT):
    hint = f" The text starts with {_BOS_TEXT!r}: did theirs?"
  elif shifted.min() >= 0 and shifted.max() <= len(text):
    hint = (
      f" Moved by {len(_BOS_TEXT)} characters all spans fit, as if cut from a "
      f"text that starts with {_BOS_TEXT!r}: decode with special tokens kept."
    )
  raise ValueError(
    f"{path}: span {outside[0].tolist()} ends behind the text, which has "
    f"{len(text)} characters. Likely causes: the documents stand in another "
    "order, or were filtered or cut otherwise, than when the slices were made; "
    "another revision of the data set; ids decoded with another tokenizer, "
    f"without special tokens or with spaces cleaned up.{hint}"
  )
