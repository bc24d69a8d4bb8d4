"""What training data holds, and what is odd about it: said at the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from absl import logging

from longctx_jax.paper.windows import Windows
from longctx_jax.text import chunks
from longctx_jax.text.corpus import Corpus, text_sha256
from longctx_jax.text.token_cache import TokenCache
from longctx_jax.text.tokenizer import TextTokenizer


def select(cache: TokenCache, *, min_tokens: int, min_chunk: int) -> np.ndarray:
  """Numbers of the chunks that are long enough; ValueError where none is.

  Args:
    cache: all chunks.
    min_tokens: ids that the document of a chunk has at least.
    min_chunk: ids that a chunk has at least.
  """
  kept = np.flatnonzero(
    (cache.document_lengths >= min_tokens) & (cache.lengths >= min_chunk)
  )
  if not len(kept):
    raise ValueError(
      f"none of {len(cache):,} chunks is left: min_tokens={min_tokens}, the "
      f"longest document has {cache.document_lengths.max():,} ids; "
      f"min_chunk={min_chunk}, the longest chunk has {cache.lengths.max():,}"
    )
  return kept


def log(
  cache: TokenCache,
  kept: np.ndarray,
  rows: Sequence[np.ndarray],
  *,
  seq_len: int,
  batch_size: int,
  n_documents: int,
) -> None:
  """Logs what is trained on, what is left out, and BOS within texts.

  Args:
    cache: all chunks.
    kept: numbers of those that are trained on.
    rows: numbers of the chunks of each row.
    seq_len: T, targets of a row.
    batch_size: rows of a step.
    n_documents: of the corpus.
  """
  ids = cache.lengths[kept].sum()
  steps = len(rows) / batch_size
  logging.info(
    "data: %s ids in %s rows of %s, %.1f %% of them padding; %s of %s chunks "
    "are too short; %s",
    f"{ids:,}",
    f"{len(rows):,}",
    f"{seq_len + 1:,}",
    100 - 100 * ids / (len(rows) * (seq_len + 1)),
    f"{len(cache) - len(kept):,}",
    f"{len(cache):,}",
    f"an epoch is {steps:,.1f} steps"
    if steps >= 1
    else f"a step is {1 / steps:,.1f} epochs",
  )
  names = [doc_id.rpartition("#")[0] for doc_id in cache.doc_ids]
  unread = n_documents - len(set(names))
  if unread:
    logging.warning(
      "%s of %s documents are left out: they hold no ids, or can't be read",
      f"{unread:,}",
      f"{n_documents:,}",
    )
  with_bos = {names[chunk] for chunk in kept if cache.bos_counts[chunk]}
  if with_bos:
    logging.warning(
      "%s of %s documents hold a BOS in their text, %s in all, beside the one "
      "that the tokenizer puts first: the model learns to go on after it. "
      "Remove it from the texts",
      f"{len(with_bos):,}",
      f"{len({names[chunk] for chunk in kept}):,}",
      f"{cache.bos_counts[kept].sum():,}",
    )


def require_known_ids(
  cache: TokenCache, kept: np.ndarray, vocab_size: int
) -> None:
  """Raises ValueError for an id that the model has no embedding for."""
  largest = kept[cache.largest[kept].argmax()]
  if cache.largest[largest] >= vocab_size:
    raise ValueError(
      f"{cache.doc_ids[largest]!r} holds id {cache.largest[largest]}, and the "
      f"model has {vocab_size} embeddings: the ids are not of its tokenizer"
    )


def require_short_contexts(
  cache: TokenCache, rows: Sequence[np.ndarray], windows: Windows
) -> None:
  """Logs in how many rows LongCE can weigh a target; ValueError for none.

  Args:
    cache: all chunks.
    rows: numbers of the chunks of each row.
    windows: of the short contexts.
  """
  length = windows.length
  able = sum(bool((cache.lengths[row] > length).any()) for row in rows)
  text = (
    f"{able:,} of {len(rows):,} rows have a target past K + d = {length:,} ids "
    "of its document"
  )
  if not able:
    raise ValueError(
      f"{text}: all weights would be 1, and LongCE cross-entropy. Lower "
      "loss.short_len and loss.stride, or take longer documents"
    )
  logging.info("data: %s", text)


def count_known(
  documents: Corpus,
  digests: Sequence[str],
  tokenizer: TextTokenizer,
  *,
  seq_len: int,
) -> int:
  """Documents all of whose chunks are trained on.

  Args:
    documents: texts; those that can't be read don't count.
    digests: of the chunks that are trained on, as `TokenCache.digests`.
    tokenizer: whose ids the cuts count.
    seq_len: T, targets of a chunk.
  """
  trained = set(digests)
  known = 0
  for document in documents:
    if document.text:
      pieces = chunks.cut_document(document, tokenizer, chunk_len=seq_len)
      known += trained.issuperset(text_sha256(one.text) for one in pieces)
  return known
