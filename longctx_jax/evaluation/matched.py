"""Key tokens and the documents they were found in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.text.corpus import Corpus, Document


@dataclasses.dataclass(frozen=True)
class Matched:
  """Pairs of key tokens and document; made by `match`.

  Iterated once for each model: texts are read each time, and hashed no more.

  Attributes:
    store: the key tokens.
    corpus: their documents.
  """

  store: KeyTokenStore
  corpus: Corpus

  def __len__(self) -> int:
    return len(self.store)

  def __iter__(self) -> Iterator[tuple[KeyTokens, Document]]:
    for document in self.corpus:
      yield self.store.get(document.doc_id), document


def match(store: KeyTokenStore, corpus: Corpus) -> Matched:
  """Checks that the documents are those of the key tokens, by id and hash.

  Raises:
    ValueError: they are not; see `store.match_documents`.
  """
  store_lib.match_documents(store, corpus)
  return Matched(store, corpus)
