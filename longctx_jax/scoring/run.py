"""Scores a corpus with an evaluator into a key-token store."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import time

from absl import logging
from ml_collections import ConfigDict

from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime.progress import Progress
from longctx_jax.scoring import finder as finder_lib
from longctx_jax.scoring import protocol, setup
from longctx_jax.text.chunks import ChunkedCorpus

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
  setup.check_config(config)
  corpus = setup.open_corpus(config)
  if not config.evaluator and evaluator is None:
    raise ValueError("no evaluator is named: give the model to score with")
  model = evaluator or setup.load_model(config, config.evaluator)
  manifest = finder_lib.make_manifest(
    model,
    windows=setup.windows_of(config),
    thresholds=setup.thresholds_of(config),
    protocol=config.longppl.protocol,
    max_length=setup.max_length_of(config, model),
    over_length=config.data.over_length,
    detail=config.scoring.detail,
  )
  documents = setup.cut_corpus(config, corpus, model)
  if isinstance(documents, ChunkedCorpus):
    manifest = dataclasses.replace(manifest, **documents.facts)
  if config.data.over_length == "error":
    # The one policy that stops a run does so before anything is scored.
    for document in documents:
      finder_lib.prepare(document, model.tokenizer, manifest)
  folder = pathlib.Path(workdir) / "key_tokens"
  writer = store_lib.open_writer(folder, manifest, overwrite=overwrite)
  _log_size(documents, writer.manifest)
  scorer = setup.make_scorer(config, model)
  # Under the store's own thresholds, whose scores need the ids.
  finder = finder_lib.Finder(scorer, writer.manifest)
  progress = Progress("score", documents.count, scorer.usage)
  pending: list[KeyTokens] = []
  last_write = time.monotonic()

  def missing():
    checked = False
    for document in documents:
      digest = store_lib.document_sha256(document)
      if writer.is_done(document.doc_id, digest):
        progress.skip()
        continue
      if not checked:
        finder.check_bos(documents)
        checked = True
      yield document

  for row in finder.find(missing()):
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


def _log_size(corpus, manifest):
  """Projects the store's size from the first documents' lengths."""
  sample = [
    len(document.text or "")
    for document, _ in zip(corpus, range(_SAMPLED_DOCUMENTS), strict=False)
  ]
  tokens = sum(sample) / max(len(sample), 1) / _CHARS_PER_TOKEN
  size = store_lib.projected_bytes(
    corpus.count,
    min(tokens, manifest.max_length),
    manifest.detail,
  )
  logging.info(
    "%s documents, about %s tokens each: the store takes up to %.1f MB (%s)",
    f"{corpus.count:,}",
    f"{tokens:,.0f}",
    size / 1e6,
    manifest.detail,
  )


def _log_outcome(store):
  counts: collections.Counter[str] = collections.Counter()
  longest = 0
  for row in store:
    counts[row.reason or "with key tokens"] += 1
    if row.reason == "too_short":
      n_text = row.n_tokens + 1 - store.manifest.prefix_len
      longest = max(longest, n_text)
  logging.info(
    "documents: %s",
    ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items())),
  )
  if counts["too_short"] == len(store):
    logging.warning(
      "%s",
      protocol.explain_too_short(longest, store.manifest.windows),
    )
