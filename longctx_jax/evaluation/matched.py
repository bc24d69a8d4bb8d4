"""Key tokens and the documents they were found in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from longctx_jax.key_tokens import record, slices, span_file
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.runtime import settings
from longctx_jax.text.corpus import Corpus, Document

_SLICES = "slices:"
_SPANS = "spans:"
_THRESHOLDS = ("alpha", "beta")


def open_keys(
  config: ConfigDict, corpus: Corpus, named: Mapping[str, Any] | None
) -> KeyTokenStore:
  """The key tokens that the config names, under its thresholds.

  `config.key_tokens` is a workdir that was scored, its key_tokens folder, or
  "slices:FOLDER" for the reference's slice files, or "spans:FILE". Windows,
  protocol and evaluator are the store's; so are the thresholds, unless they
  were named.

  Args:
    config: as configs/longppl.py.
    corpus: the documents.
    named: manifest fields that the user named: thresholds are taken from here,
      the others must agree. None where the config itself names them: its
      thresholds are taken.

  Raises:
    ValueError: thresholds that the store cannot be read with, or a manifest
      that differs from `named`; the fields are given with both values.
    FileNotFoundError: no store there.
  """
  if config.key_tokens.startswith(_SLICES):
    folder = config.key_tokens.removeprefix(_SLICES)
    store = slices.read_slice_store(folder, corpus)
  elif config.key_tokens.startswith(_SPANS):
    file = config.key_tokens.removeprefix(_SPANS)
    store = span_file.read_span_store(file, corpus)
  else:
    store = store_lib.read_store(config.key_tokens)
  asked = {name: config.longppl[name] for name in _THRESHOLDS}
  named = asked if named is None else named
  stored = store.manifest.to_json()
  stated = {n: stored[n] for n in named if n in stored and n not in _THRESHOLDS}
  different = [
    f"{name} is {there} there and {here} here"
    for name, there, here in settings.differences(
      stated, {name: named[name] for name in stated}
    )
  ]
  if different:
    raise ValueError(
      f"{config.key_tokens} was made with other settings: "
      f"{'; '.join(different)}. Leave them out, or score again"
    )
  kept = {name: stored[name] for name in _THRESHOLDS}
  taken = kept | {name: named[name] for name in _THRESHOLDS if name in named}
  return store.with_thresholds(taken["alpha"], taken["beta"])


@dataclasses.dataclass(frozen=True)
class Matched:
  """Pairs of key tokens and document; made by `match` or `intersect`.

  Iterated once for each model: texts are read each time, and hashed no more.

  Attributes:
    store: the key tokens, of no other documents.
    corpus: holds these documents.
  """

  store: KeyTokenStore
  corpus: Corpus

  def __len__(self) -> int:
    return len(self.store)

  def __iter__(self) -> Iterator[tuple[KeyTokens, Document]]:
    for document in self.corpus:
      if document.doc_id in self.store.hashes:
        keys = self.store.get(document.doc_id)
        # Where it stands now: the corpus may have grown since it was scored.
        yield dataclasses.replace(keys, doc_index=document.doc_index), document


def match(store: KeyTokenStore, corpus: Corpus) -> Matched:
  """Checks that the documents are those of the key tokens, by id and hash.

  Raises:
    ValueError: they are not; see `store.match_documents`.
  """
  store_lib.match_documents(store, corpus)
  return Matched(store, corpus)


def intersect(store: KeyTokenStore, corpus: Corpus) -> Matched:
  """The documents that are in both, by id and hash; the log counts the others.

  Raises:
    ValueError: there is none, or the store holds no key tokens.
  """
  record.require_spans(store.manifest)
  known, shared, changed = store.hashes, {}, 0
  n_documents = 0
  for document in corpus:
    n_documents += 1
    digest = store_lib.document_sha256(document)
    if document.doc_id in known and known[document.doc_id] == digest:
      shared[document.doc_id] = digest
    else:
      changed += document.doc_id in known
  if not shared:
    raise ValueError(
      f"none of {n_documents} documents is among the {len(known)} that the key "
      "tokens are of: score this corpus, or name the one that was scored"
    )
  logging.info(
    "%d documents are in the corpus and in the key tokens; left out: %d only "
    "in the corpus, %d only in the key tokens, %d with another text",
    len(shared),
    n_documents - len(shared) - changed,
    len(known) - len(shared) - changed,
    changed,
  )
  ordered = {
    doc_id: digest for doc_id, digest in known.items() if doc_id in shared
  }
  return Matched(dataclasses.replace(store, hashes=ordered), corpus)
