"""Key tokens that were found elsewhere: a file of spans, a line a document."""

import dataclasses
import json
import os
import pathlib
from typing import Any

import numpy as np

from longctx_jax.key_tokens import record, slices, store
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.runtime import failures
from longctx_jax.text import corpus as corpus_lib

_FIELDS = ("doc_id", "text_sha256", "spans")


def read_span_store(
  path: str | os.PathLike, corpus: corpus_lib.Corpus
) -> store.KeyTokenStore:
  """Reads a file of spans as the key tokens of a corpus.

  Args:
    path: JSON lines with `doc_id`, `text_sha256` and `spans`, pairs of half-
      open characters. The evaluator is called by the file.
    corpus: documents with their texts.

  Returns:
    A store of spans, held in memory; thresholds are fixed.

  Raises:
    FileNotFoundError: no such file.
    ValueError: a line that is none, a document twice or missing, another text,
      or a span that is empty or outside it; the first is named.
  """
  path = pathlib.Path(path)
  lines: dict[str, dict[str, Any]] = {}
  with failures.reading(path):
    content = path.read_text("utf-8")
  for number, line in enumerate(content.splitlines(), 1):
    if line.strip():
      row = _parse(line, f"{path}, line {number}")
      if str(row["doc_id"]) in lines:
        raise ValueError(f"{path}: document {str(row['doc_id'])!r} twice")
      lines[str(row["doc_id"])] = row
  manifest = dataclasses.replace(
    slices.PUBLISHED, evaluator=path.stem, source=f"spans:{path}"
  )
  rows = {
    document.doc_id: _read_document(path, lines, document, manifest)
    for document in corpus
  }
  hashes = {doc_id: row.text_sha256 for doc_id, row in rows.items()}
  return store.KeyTokenStore(manifest, hashes, rows.__getitem__)


def _parse(line: str, where: str) -> dict[str, Any]:
  try:
    row = json.loads(line)
  except ValueError as error:
    raise ValueError(f"{where} is not JSON: {error}") from error
  if not isinstance(row, dict) or any(name not in row for name in _FIELDS):
    raise ValueError(f"{where} lacks one of {', '.join(_FIELDS)}")
  return row


def _read_document(
  path: pathlib.Path,
  lines: dict[str, dict[str, Any]],
  document: corpus_lib.Document,
  manifest: Manifest,
) -> KeyTokens:
  where = f"{path}: document {document.doc_id!r}"
  digest, text = store.document_sha256(document), document.text or ""
  spans = np.zeros((0, 2), np.int64)
  reason = "failed" if document.error else "" if text else "empty"
  if not reason:
    if document.doc_id not in lines:
      raise ValueError(f"{where} has no line")
    row = lines[document.doc_id]
    if row["text_sha256"] != digest:
      raise ValueError(f"{where}: the spans are of another text (text_sha256)")
    spans = _pairs(row["spans"], len(text), where)
    reason = "" if len(spans) else "no_key_tokens"
  return record.of_spans(
    document, spans, manifest, text_sha256=digest, reason=reason
  )


def _pairs(values: Any, length: int, where: str) -> np.ndarray:
  try:
    given = np.array(values if values else np.zeros((0, 2)))
    spans = given.astype(np.int64).reshape(-1, 2)
    if (spans != given.reshape(-1, 2)).any():
      raise ValueError("no integers")
  except (TypeError, ValueError) as error:
    raise ValueError(
      f"{where}: spans are pairs of integers: {error}"
    ) from error
  bad = (
    (spans[:, 0] < 0) | (spans[:, 1] <= spans[:, 0]) | (spans[:, 1] > length)
  )
  if bad.any():
    raise ValueError(
      f"{where}: span {spans[bad.argmax()].tolist()} is empty or outside the "
      f"text of {length:,} characters"
    )
  return spans
