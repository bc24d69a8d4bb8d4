"""Scores a corpus with an evaluator into a key-token store."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Iterator, Sequence

from absl import logging
from ml_collections import ConfigDict

from longctx_jax.key_tokens import card
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime import files, workers
from longctx_jax.runtime.progress import Progress
from longctx_jax.runtime.shards import WHOLE, Shard
from longctx_jax.scoring import finder as finder_lib
from longctx_jax.scoring import look_ahead, outcome, setup
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
  shard: Shard = WHOLE,
  prune: bool = False,
) -> store_lib.KeyTokenStore:
  """Scores the corpus into `workdir`/key_tokens; goes on where a run ended.

  Documents that failed or have another text than the one scored are scored
  again. What is finished is written also where the run ends with an error.

  Args:
    config: as configs/longppl.py.
    workdir: holds everything that the run writes.
    overwrite: start anew over a store with other settings.
    evaluator: already loaded; default: loads `config.evaluator`.
    shard: of the documents, the only ones that are scored: other processes
      score the others into the same store, at the same time or not.
    prune: remove documents that are no longer in the corpus.

  Returns:
    The finished store.

  Raises:
    InUse: another process scores these documents.
    ValueError: bad settings, two documents of one id, none that can be read,
      or a store that was made with other settings: before any document is
      scored. Or none that could be scored, or one that is missing at the end.
  """
  setup.check_config(config)
  check_scope(config, shard, overwrite, prune)
  corpus = setup.open_corpus(config).shard(shard)
  if not config.evaluator and evaluator is None:
    raise ValueError("no evaluator is named: give the model to score with")
  folder = pathlib.Path(workdir) / "key_tokens"
  longest = _survey(corpus)
  with contextlib.ExitStack() as held:
    is_new = not folder.exists()
    if not is_new:
      # Whoever comes second hears of it before a model is loaded.
      held.enter_context(writer_lib.claimed(folder, shard))
    model = evaluator or setup.load_model(config, config.evaluator)
    documents = setup.cut_corpus(config, corpus, model)
    manifest = _manifest_of(config, model, documents)
    if config.data.over_length == "error":
      # The one policy that stops a run does so before anything is scored.
      for document in documents:
        finder_lib.prepare(document, model.tokenizer, manifest)
    if is_new:
      # Not before: a run that is refused leaves no folder.
      held.enter_context(writer_lib.claimed(folder, shard))
      if overwrite and folder.exists():
        raise files.InUse(
          f"another process has scored into {folder} since this one began: "
          "--overwrite would remove what nobody has seen"
        )
    writer = writer_lib.open_writer(
      folder, manifest, shard=shard, overwrite=overwrite
    )
    _log_size(documents, writer.manifest)
    # A cut one is as long as others.
    first = None if config.data.chunk_len else longest
    wanted = _score(config, documents, writer, model, first)
    writer.tidy()
    if prune:
      gone = writer.prune(wanted)
      logging.info("%d documents of before pruned", len(gone))
    store = store_lib.read_store(folder)
  return finish(config, store, wanted, workdir)


def finish(
  config: ConfigDict,
  store: store_lib.KeyTokenStore,
  wanted: Sequence[str],
  workdir: str | pathlib.Path,
) -> store_lib.KeyTokenStore:
  """The store under the config's thresholds; says what became of documents.

  Raises:
    ValueError: one of the wanted documents is missing, or none was scored.
  """
  outcome.require_all(store, wanted)
  # A store of log-probs may have been started under other thresholds.
  store = store.with_thresholds(config.longppl.alpha, config.longppl.beta)
  outcome.report(store, wanted)
  card.write(workdir)
  return store


def check_scope(
  config: ConfigDict, shard: Shard, overwrite: bool, prune: bool
) -> None:
  """Raises ValueError where a part of the documents would undo the others."""
  part = f"--shard {shard}" if shard.count > 1 else ""
  if overwrite and part:
    raise ValueError(
      f"--overwrite with {part} would remove what other shards wrote: take "
      "another --workdir, or remove the store first"
    )
  if tuple(config.data.row_range) != (0, 0):
    part = part or "--row_range"
  if prune and part:
    raise ValueError(
      f"--prune with {part} would remove the documents of the other rows: "
      "prune in a run over the whole corpus"
    )


def _survey(corpus: Corpus) -> Document | None:
  """Reads the documents once, before a model is loaded for them.

  Returns:
    The one with most characters; None where there is none.

  Raises:
    ValueError: two documents of one id, or none that can be read.
  """
  count, errors, longest = 0, [], None
  for document in corpus:
    count += 1
    if longest is None or _chars(document) > _chars(longest):
      longest = document
    if document.error:
      errors.append(f"{document.doc_id!r}: {document.error}")
  if count and len(errors) == count:
    raise ValueError(f"none of {count:,} documents can be read: {errors[0]}")
  return longest


def _chars(document: Document) -> int:
  return len(document.text or "")


def _manifest_of(
  config: ConfigDict, model: LoadedModel, documents: Corpus | ChunkedCorpus
) -> Manifest:
  manifest = finder_lib.make_manifest(
    model,
    windows=setup.windows_of(config),
    thresholds=setup.thresholds_of(config),
    protocol=config.longppl.protocol,
    max_length=setup.max_length_of(config, model),
    over_length=config.data.over_length,
    detail=config.scoring.detail,
  )
  if isinstance(documents, ChunkedCorpus):
    manifest = dataclasses.replace(manifest, **documents.facts)
  return manifest


def _score(
  config: ConfigDict,
  documents: Corpus | ChunkedCorpus,
  writer: writer_lib.StoreWriter,
  model: LoadedModel,
  longest: Document | None,
) -> list[str]:
  """Scores what the store lacks; the ids of all documents.

  The longest of them is scored first: what it needs of the devices' memory is
  known before anything is scored. Others are, in each look-ahead.
  """
  scorer = setup.make_scorer(config, model)
  # Under the store's own thresholds, whose scores need the ids.
  finder = finder_lib.Finder(scorer, writer.manifest)
  progress = Progress("score", documents.count, scorer.usage)
  wanted: list[str] = []
  changed: list[str] = []

  def missing() -> Iterator[Document]:
    ahead = ""
    if longest is not None:
      digest = store_lib.document_sha256(longest)
      if not writer.is_done(longest.doc_id, digest):
        ahead = longest.doc_id
        if writer.is_changed(ahead, digest):
          changed.append(ahead)
        yield longest
    for document in documents:
      doc_id, digest = document.doc_id, store_lib.document_sha256(document)
      wanted.append(doc_id)
      if ahead and doc_id == ahead:
        continue
      if writer.is_done(doc_id, digest):
        progress.skip()
        continue
      if writer.is_changed(doc_id, digest):
        changed.append(doc_id)
      yield document

  unread = missing()
  first = next(unread, None)
  if first is not None:
    finder.check_bos(documents)
    unread = look_ahead.longest_first(
      itertools.chain([first], unread), size=_chars
    )
  pending: list[KeyTokens] = []
  last_write = time.monotonic()
  with (
    contextlib.closing(finder.find(unread, ahead=True)) as rows,
    workers.Writer(writer.write, limit=1) as writing,
  ):
    try:
      for row in rows:
        pending.append(row)
        progress.total = documents.count
        progress.advance()
        # A part holds what came in half a minute: a kill loses no more.
        if time.monotonic() - last_write >= config.scoring.flush_seconds:
          writing.put(pending)
          pending, last_write = [], time.monotonic()
    finally:
      # An interrupted run keeps what it finished.
      writing.put(pending)
  progress.finish()
  if changed:
    logging.info(
      "%d documents have another text than the one scored (%r first): scored "
      "again",
      len(changed),
      changed[0],
    )
  return wanted


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
