"""LongPPL from log-probs that another engine computed, read from Parquet."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int

from longctx_jax.evaluation import passes, results
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.matched import Matched
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.runtime import failures, urls

COLUMNS = ("doc_id", "token_start", "token_end", "log_prob")
# Longest first token: a text that begins later was cut at its front.
_FIRST_TOKEN_CHARS = 256
_LISTS = (
  pa.types.is_list,
  pa.types.is_large_list,
  pa.types.is_fixed_size_list,
  pa.types.is_null,
)


@dataclasses.dataclass(frozen=True)
class ForeignLogProbs:
  """A Parquet file with a row per document; made by `open_log_probs`.

  Attributes:
    name: of the model in the results.
    path: the file.
  """

  name: str
  path: str

  def sha256(self) -> str:
    """Hash of the file: what its numbers belong to."""
    with open(self.path, "rb") as file:
      return hashlib.file_digest(file, "sha256").hexdigest()

  def rows(self) -> dict[str, dict[str, Any]]:
    """doc_id -> row.

    Raises:
      ValueError: a document in two rows.
    """
    found: dict[str, dict[str, Any]] = {}
    with failures.reading(self.path):
      for batch in pq.ParquetFile(self.path).iter_batches(
        columns=list(COLUMNS)
      ):
        for row in batch.to_pylist():
          doc_id = str(row["doc_id"])
          if doc_id in found:
            raise ValueError(f"{self.path}: document {doc_id!r} twice")
          found[doc_id] = row
    return found


def open_log_probs(path: str | pathlib.Path, name: str) -> ForeignLogProbs:
  """Checks that the file has the columns of `COLUMNS`.

  Raises:
    FileNotFoundError: no such file.
    ValueError: no name, or a missing column; those there are, are listed.
  """
  if not name:
    raise ValueError(f"{path}: name the model that the log-probs are of")
  path = urls.fetched(path)
  with failures.reading(path):
    schema = pq.read_schema(path)
  there = schema.names
  missing = [column for column in COLUMNS if column not in there]
  if missing:
    raise ValueError(
      f"{path}: missing columns {', '.join(missing)}; it has: "
      f"{', '.join(there)}. Expected doc_id and, as lists aligned with the "
      "scored targets, token_start, token_end (characters) and log_prob (nats)"
    )
  for column in COLUMNS[1:]:
    kind = schema.field(column).type
    if not any(is_kind(kind) for is_kind in _LISTS):
      raise ValueError(
        f"{path}: column {column} holds {kind}; expected a list for each "
        "document, a value for each target"
      )
  # A hub id names a file of results as it does for a model that is loaded.
  return ForeignLogProbs(name.replace("/", "--"), str(path))


def check_log_probs(
  doc_id: str, text: str, log_probs: Any, offsets: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Log-probs from elsewhere as arrays, if they fit the text.

  Raises:
    ValueError: other lengths, a log-prob that is not a number or above 0, or
      offsets that are unordered or outside the text; the first fault is named.
  """
  try:
    log_probs = np.asarray(log_probs, np.float64)
    given = np.asarray(offsets)
    offsets = given.astype(np.int64).reshape(-1, 2)
    if given.size and (given != offsets.reshape(given.shape)).any():
      raise ValueError("an offset is no integer")
  except (TypeError, ValueError, OverflowError) as error:
    raise ValueError(
      f"document {doc_id!r}: log-probs are numbers, offsets pairs of integers: "
      f"{error}"
    ) from error
  if len(log_probs) != len(offsets) or not len(log_probs):
    raise ValueError(
      f"document {doc_id!r}: {len(log_probs)} log-probs and {len(offsets)} "
      "offsets; there must be one of each per target"
    )
  # Rounding may leave a certain token a hair above 0.
  bad = ~np.isfinite(log_probs) | (log_probs > 1e-3)
  if bad.any():
    t = int(bad.argmax())
    raise ValueError(
      f"document {doc_id!r}: log-prob {log_probs[t]} at target {t} is not the "
      "logarithm of a probability (nats)"
    )
  starts, ends = offsets[:, 0], offsets[:, 1]
  bad = (starts < 0) | (ends < starts) | (ends > len(text))
  bad[1:] |= np.diff(starts) < 0
  if bad.any():
    t = int(bad.argmax())
    raise ValueError(
      f"document {doc_id!r}: offsets {offsets[t].tolist()} at target {t} are "
      f"unordered or outside the text of {len(text)} characters"
    )
  return np.minimum(log_probs, 0.0), offsets


def result_from_log_probs(
  keys: KeyTokens, text: str, log_probs: Any, offsets: Any
) -> DocumentResult:
  """A document under a model whose log-probs were computed elsewhere.

  Args:
    keys: of the document.
    text: the document.
    log_probs: log P(target | full context) [T], nats; not read where there is
      nothing to evaluate.
    offsets: characters of the targets [T, 2].

  Raises:
    ValueError: see `check_log_probs`.
  """
  if keys.reason in passes.UNREADABLE:
    return passes.unscored(keys, text, keys.reason)
  log_probs, offsets = check_log_probs(keys.doc_id, text, log_probs, offsets)
  # What the evaluator did not read of a document counts for nobody.
  kept = offsets[:, 1] <= keys.n_chars
  if not kept.any():
    raise ValueError(
      f"document {keys.doc_id!r}: all {len(offsets)} offsets lie behind the "
      f"{keys.n_chars} characters that the evaluator read: the log-probs are "
      "of another part of the text"
    )
  offsets, log_probs = offsets[kept], log_probs[kept]
  read = read_by_another(text[: keys.n_chars], offsets)
  return passes.document_result(keys, text, offsets, log_probs, read=read)


def read_by_another(
  text: str, offsets: Int[np.ndarray, "T 2"]
) -> tuple[int, int]:
  """Characters that an engine read, as far as its log-probs show it.

  The first token has none, and spaces at the end may belong to no token.
  """
  start, end = int(offsets[:, 0].min()), int(offsets[:, 1].max())
  if start <= _FIRST_TOKEN_CHARS:
    start = 0
  return start, end if text[end:].strip() else len(text)


def evaluate_log_probs(
  foreign: ForeignLogProbs, matched: Matched
) -> ModelResult:
  """The result on documents and their key tokens.

  Raises:
    ValueError: a document without a row, or arrays that do not fit its text;
      see `check_log_probs`.
  """
  rows = foreign.rows()
  found, scores = [], []
  for keys, document in matched:
    scores.append(keys.scores)
    if keys.reason in passes.UNREADABLE:
      found.append(passes.unscored(keys, document.text or "", keys.reason))
      continue
    if keys.doc_id not in rows:
      raise ValueError(f"{foreign.path}: no row for document {keys.doc_id!r}")
    row = rows[keys.doc_id]
    starts, ends = row["token_start"] or [], row["token_end"] or []
    if len(starts) != len(ends):
      raise ValueError(
        f"{foreign.path}: document {keys.doc_id!r}: {len(starts)} token_start "
        f"and {len(ends)} token_end; there must be one of each per target"
      )
    found.append(
      result_from_log_probs(
        keys,
        document.text,
        row["log_prob"] or [],
        np.stack([starts, ends], axis=1),
      )
    )
  return results.summarise(
    found,
    protocol_name=matched.store.manifest.protocol,
    self_evaluated=passes.has_evaluators_name(
      matched.store.manifest, foreign.name
    ),
    scores=scores,
    name=foreign.name,
    keys=matched.store.manifest,
    model={"log_probs": foreign.path, "checksum": foreign.sha256()},
  )
