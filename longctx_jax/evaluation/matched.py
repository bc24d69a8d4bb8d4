"""Key tokens and the documents they were found in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from absl import logging

from longctx_jax.key_tokens import record
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.text.corpus import Corpus, Document


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
        yield self.store.get(document.doc_id), document


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
