"""Scores a corpus with an evaluator into a key-token store."""

from __future__ import annotations

import collections
import pathlib
import time
from collections.abc import Iterator

from absl import logging
from ml_collections import ConfigDict

from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime.progress import Progress
from longctx_jax.scoring import finder, protocol
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.scoring.setup import (
  check_config,
  cut_corpus,
  load_model,
  make_scorer,
  max_length_of,
  open_corpus,
)
from longctx_jax.text.chunks import ChunkedCorpus
from longctx_jax.text.corpus import Corpus, Document

# Characters per token of English text: for the estimate of the store's size.
_CHARS_PER_TOKEN = 4
_SAMPLED_DOCUMENTS = 16


def score_corpus(
  config: ConfigDict,
  *,
  workdir: str | pathlib.Path,
  overwrite: bool = False,
  evaluator: LoadedModel | None = None,
) -> store_lib.KeyTokenStore:
  """Scores the corpus into `workdir`/key_tokens; goes on where a run ended.

  Args:
    config: as configs/longppl.py.
    workdir: holds everything that the run writes.
    overwrite: start anew over a store with other settings.
    evaluator: already loaded; default: loads `config.evaluator`.

  Returns:
    The finished store.

  Raises:
    ValueError: bad settings, or a store that was made with others; before any
      document is scored.
  """
  check_config(config)
  corpus = open_corpus(config)
  if not config.evaluator and evaluator is None:
    raise ValueError("no evaluator is named: give the model to score with")
  model = evaluator or load_model(config, config.evaluator)
  manifest = finder.make_manifest(
    model,
    short_len=config.longppl.short_len,
    stride=config.longppl.stride,
    alpha=config.longppl.alpha,
    beta=config.longppl.beta,
    protocol_name=config.longppl.protocol,
    max_length=max_length_of(config, model),
    over_length=config.data.over_length,
    detail=config.scoring.detail,
  )
  documents = cut_corpus(config, corpus, model)
  if isinstance(documents, ChunkedCorpus):
    manifest |= documents.facts
  if config.data.over_length == "error":
    # The one policy that stops a run does so before anything is scored.
    for document in documents:
      _prepare(document, model, manifest)
  folder = pathlib.Path(workdir) / "key_tokens"
  writer = store_lib.open_writer(folder, manifest, overwrite=overwrite)
  _log_size(documents, manifest)
  scorer = make_scorer(config, model)
  progress = Progress("score", documents.count, scorer.usage)
  pending: list[KeyTokens] = []
  last_write = time.monotonic()
  for row in _score(documents, writer, scorer, manifest, progress):
    pending.append(row)
    progress.total = documents.count
    progress.advance()
    # A part holds what came in half a minute: a kill loses no more.
    if time.monotonic() - last_write >= config.scoring.flush_seconds:
      writer.write(pending)
      pending, last_write = [], time.monotonic()
  writer.write(pending)
  progress.finish()
  # A store of log-probs may have been started under other thresholds.
  store = store_lib.read_store(folder).with_thresholds(
    config.longppl.alpha, config.longppl.beta
  )
  _log_outcome(store)
  return store


def _score(
  corpus: Corpus | ChunkedCorpus,
  writer: store_lib.StoreWriter,
  scorer: scorer_lib.Scorer,
  manifest: dict,
  progress: Progress,
) -> Iterator[KeyTokens]:
  """Rows of the documents that the store lacks, as they are finished."""
  waiting: dict[str, tuple[Document, protocol.Prepared]] = {}
  checked = manifest["protocol"] != "paper"

  def jobs():
    nonlocal checked
    for document in corpus:
      digest = store_lib.document_sha256(document)
      if writer.is_done(document.doc_id, digest):
        progress.skip()
        continue
      prepared = _prepare(document, scorer.model, manifest)
      if prepared.reason:
        yield finder.key_tokens_of(document, prepared, None, manifest)
        continue
      if not checked:
        protocol.check_bos(scorer, document.text)
        checked = True
      waiting[document.doc_id] = document, prepared
      yield scorer_lib.Job(document.doc_id, prepared.ids, prepared.prefix_len)

  for row in scorer.score(jobs()):
    if isinstance(row, scorer_lib.Scores):
      document, prepared = waiting.pop(row.job.key)
      row = finder.key_tokens_of(document, prepared, row, manifest)
    yield row


def _prepare(document, model, manifest):
  if document.error:
    logging.warning("document %r: %s", document.doc_id, document.error)
    return protocol.unscorable("failed")
  try:
    return protocol.prepare(
      document.text,
      model.tokenizer,
      protocol=manifest["protocol"],
      is_evaluator=True,
      max_length=manifest["max_length"],
      over_length=manifest["over_length"],
    )
  except protocol.OverLength as error:
    raise protocol.OverLength(f"{document.doc_id!r}: {error}") from error


def _log_size(corpus, manifest):
  """Projects the store's size from the first documents' lengths."""
  sample = [
    len(document.text or "")
    for document, _ in zip(corpus, range(_SAMPLED_DOCUMENTS), strict=False)
  ]
  tokens = sum(sample) / max(len(sample), 1) / _CHARS_PER_TOKEN
  size = store_lib.projected_bytes(
    corpus.count,
    min(tokens, manifest["max_length"]),
    manifest["detail"],
  )
  logging.info(
    "%s documents, about %s tokens each: the store takes up to %.1f MB (%s)",
    f"{corpus.count:,}",
    f"{tokens:,.0f}",
    size / 1e6,
    manifest["detail"],
  )


def _log_outcome(store):
  counts: collections.Counter[str] = collections.Counter()
  shortest = 0
  for row in store:
    counts[row.reason or "with key tokens"] += 1
    if row.reason == "too_short":
      shortest = max(shortest, row.n_tokens + 1)
  logging.info(
    "documents: %s",
    ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())),
  )
  if counts["too_short"] == len(store):
    logging.warning(
      "%s",
      protocol.explain_too_short(
        shortest,
        short_len=store.manifest["short_len"],
        stride=store.manifest["stride"],
      ),
    )
