"""The key-token store, to be read: a row per document, and no text.

See `folder` for its files and `writer` for how they are written. It is written
to a folder that is local, or mounted: object stores have no rename. It is read
from there, or from a URL.
"""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import record
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.runtime import urls
from longctx_jax.text import corpus as corpus_lib

_CACHED_GROUPS = 32


# Projected bytes: a scored token at most; a key token, whose offsets leap; the
# share of key tokens at loose thresholds; a row beside its arrays; a schema.
_TOKEN_BYTES, _KEY_BYTES, _KEY_SHARE = 8, 16, 0.05


_ROW_BYTES, _SCHEMA_BYTES = 512, 8192


_NAMED_IDS = 5
# Of a store, in a workdir or by itself.
_FILES = ("key_tokens/*.parquet", "key_tokens*.json", "part-*.parquet")


@dataclasses.dataclass(frozen=True, repr=False)
class KeyTokenStore:
  """Key tokens by document, each loaded when it is asked for.

  Iterating goes by `doc_index`.

  Attributes:
    manifest: how the key tokens were made.
    hashes: doc_id -> text_sha256, by `doc_index`.
  """

  manifest: Manifest
  hashes: dict[str, str] = dataclasses.field(repr=False)
  _load: Callable[[str], KeyTokens] = dataclasses.field(repr=False)

  def __repr__(self) -> str:
    windows = self.manifest.windows
    return (
      f"KeyTokenStore({len(self):,} documents, by {self.manifest.evaluator}, "
      f"K={windows.short_len}, d={windows.stride})"
    )

  def __len__(self) -> int:
    return len(self.hashes)

  def __iter__(self) -> Iterator[KeyTokens]:
    return map(self._load, self.hashes)

  def get(self, doc_id: str) -> KeyTokens:
    """The key tokens of one document; ValueError for an unknown id."""
    if doc_id not in self.hashes:
      raise ValueError(f"the key-token store holds no document {doc_id!r}.")
    return self._load(doc_id)

  def with_thresholds(self, alpha: float, beta: float) -> "KeyTokenStore":
    """The same store under other thresholds; no model is needed.

    Raises:
      ValueError: see `record.restated`.
    """
    load = self._load
    return dataclasses.replace(
      self,
      manifest=record.restated(self.manifest, Thresholds(alpha, beta)),
      _load=lambda doc_id: load(doc_id).with_thresholds(alpha, beta),
    )


def folder_of(place: str | os.PathLike) -> pathlib.Path:
  """The folder of a store, which a workdir has in it; of a URL, a copy."""
  folder = urls.fetched(place, files=_FILES)
  nested = folder / "key_tokens"
  return nested if nested.is_dir() else folder


def read_store(folder: str | os.PathLike) -> KeyTokenStore:
  """Opens a store; arrays are read when a document is asked for.

  Args:
    folder: the store, or the workdir of the run that scored it; a path, or a
      URL, as hf://datasets/OWNER/NAME.

  Raises:
    FileNotFoundError: no manifest there.
    ValueError: a damaged part or manifest, or one document in two rows.
  """
  folder = folder_of(folder)
  manifest = folder_lib.read_manifest(folder)
  if manifest is None:
    raise FileNotFoundError(
      f"{folder} is no key-token store: it has no "
      f"{folder_lib.manifest_path(folder).name}. Score first."
    )
  index = folder_lib.read_rows(folder).by_id
  read_group = functools.lru_cache(_CACHED_GROUPS)(parts_lib.read_group)

  def load(doc_id: str) -> KeyTokens:
    row = index[doc_id]
    table = read_group(row.path, row.group)
    if not parts_lib.is_row(table, row):
      raise ValueError(
        f"{row.path} was written anew while it was read: run again when "
        "nothing scores into the store."
      )
    return parts_lib.row_key_tokens(table, row.row, manifest)

  hashes = {doc_id: row.text_sha256 for doc_id, row in index.items()}
  return KeyTokenStore(manifest, hashes, load)


def match_documents(
  store: KeyTokenStore, corpus: Iterable[corpus_lib.Document]
) -> Iterator[tuple[KeyTokens, corpus_lib.Document]]:
  """Pairs key tokens with their documents: by id and hash, never by order.

  The whole corpus is checked before the first pair, so it is read twice.

  Args:
    store: the key tokens.
    corpus: documents with their texts; token ids must be decoded first
      (`Corpus.decoded`). Read twice, so no iterator.

  Returns:
    Pairs in the order of the corpus. A document that can't be read comes with
    key tokens of reason "failed".

  Raises:
    ValueError: documents that are missing in the corpus, unknown to the store,
      or changed; up to 5 ids of each are named. Also a store without key
      tokens, token ids, or an iterator.
  """
  record.require_spans(store.manifest)
  if isinstance(corpus, Iterator):
    raise ValueError("the corpus is read twice: pass it, not an iterator.")
  found = {document.doc_id: document_sha256(document) for document in corpus}
  known = store.hashes
  problems = {
    "in the store but not in the corpus": [d for d in known if d not in found],
    "in the corpus but not in the store": [d for d in found if d not in known],
    "with another text than the one scored": [
      d for d in known if d in found and found[d] != known[d]
    ],
  }
  if any(problems.values()):
    raise ValueError(
      "the key tokens don't belong to this corpus: "
      + "; ".join(f"{_named(ids)} {p}" for p, ids in problems.items() if ids)
      + ". Evaluate on the corpus that was scored, or score this one."
    )
  return ((store.get(document.doc_id), document) for document in corpus)


def document_sha256(document: corpus_lib.Document) -> str:
  """The hash that a document is matched by; "" where it can't be read.

  Raises:
    ValueError: the document holds token ids.
  """
  if document.error:
    return ""
  if document.text is None:
    raise ValueError(
      f"document {document.doc_id!r} holds token ids; the hash is that of the "
      "text: decode them first."
    )
  return corpus_lib.text_sha256(document.text)


def projected_bytes(n_documents: int, mean_tokens: float, detail: str) -> int:
  """Size of a store on disk, from above: 8 bytes a token with all of them.

  Args:
    n_documents: rows.
    mean_tokens: scored targets in a document, on average.
    detail: "tokens", "keys" (5 % of the tokens taken to be kept) or "scores".
  """
  token_bytes = {
    "tokens": _TOKEN_BYTES,
    "keys": _KEY_BYTES * _KEY_SHARE,
    "scores": 0,
  }[detail]
  row_bytes = mean_tokens * token_bytes + _ROW_BYTES
  return round(n_documents * row_bytes + _SCHEMA_BYTES)


def _named(ids: list[str]) -> str:
  named = ", ".join(map(repr, ids[:_NAMED_IDS]))
  more = ", ..." if len(ids) > _NAMED_IDS else ""
  return f"{len(ids)} documents ({named}{more})"
