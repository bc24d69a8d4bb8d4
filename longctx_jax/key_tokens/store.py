"""The key-token store: a manifest and Parquet parts, resumable and checked.

A folder with `manifest.json` and `part-PPPPP-SSSSS.parquet` (process, shard),
a row per document and no text. Each file is written under a temporary name,
flushed to disk and renamed, so that a run killed at any moment leaves whole
files only. The folder is local, or mounted: object stores have no rename.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import record
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.text import corpus as corpus_lib

_MANIFEST = "manifest.json"
_PART = re.compile(r"part-([0-9]{5})-([0-9]{5})\.parquet")


_ABSENT = "absent"
_CACHED_GROUPS = 32


# Projected bytes: a scored token at most; a key token, whose offsets leap; the
# share of key tokens at loose thresholds; a row beside its arrays; a schema.
_TOKEN_BYTES, _KEY_BYTES, _KEY_SHARE = 8, 16, 0.05


_ROW_BYTES, _SCHEMA_BYTES = 512, 8192


_NAMED_IDS = 5


@dataclasses.dataclass(frozen=True)
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


@dataclasses.dataclass
class StoreWriter:
  """Appends to a store; made by `open_writer`.

  Attributes:
    folder: the store.
    manifest: as on disk. Rows are stored under its thresholds.
    process_index: number of this process among those that write.
    done: doc_id -> text_sha256 of the rows that are there.
  """

  folder: pathlib.Path
  manifest: Manifest
  process_index: int
  done: dict[str, str]
  _next_shard: int

  def is_done(self, doc_id: str, text_sha256: str) -> bool:
    """Whether a document is stored already, so that it need not be scored.

    Raises:
      ValueError: it is, but its text was another.
    """
    if doc_id not in self.done:
      return False
    if self.done[doc_id] != text_sha256:
      raise ValueError(
        f"document {doc_id!r} changed since it was scored: its text hash is "
        f"{text_sha256[:12]!r} and was {self.done[doc_id][:12]!r}. Restore the "
        f"text, or start {self.folder} anew with --overwrite."
      )
    return True

  def write(self, rows: Iterable[KeyTokens]) -> None:
    """Writes rows as one part; when it returns they survive a kill.

    Raises:
      ValueError: a document is there already, or a column that passes through
        has the name of a field of the store.
    """
    kept = self.manifest.thresholds
    rows = sorted(rows, key=_place)
    rows = [row.with_thresholds(kept.alpha, kept.beta) for row in rows]
    fresh: dict[str, str] = {}
    for row in rows:
      if row.doc_id in fresh or self.is_done(row.doc_id, row.text_sha256):
        raise ValueError(f"document {row.doc_id!r} is in the store already.")
      fresh[row.doc_id] = row.text_sha256
    if not rows:
      return
    name = f"part-{self.process_index:05d}-{self._next_shard:05d}.parquet"
    with _replacing(self.folder / name, self.process_index) as file:
      parts_lib.write_part(rows, file, detail=self.manifest.detail)
    self._next_shard += 1
    self.done.update(fresh)


def open_writer(
  folder: str | os.PathLike,
  manifest: Manifest,
  *,
  process_index: int = 0,
  overwrite: bool = False,
) -> StoreWriter:
  """Starts a store, or goes on with one that was made with the same settings.

  Args:
    folder: made where it is missing.
    manifest: how the rows are made. `versions` may differ from those of the
      store; so may the thresholds with detail "tokens", where the log-probs of
      all tokens are stored.
    process_index: number of this process among those that write.
    overwrite: remove what is there. Process 0 does; the others must open after
      it has.

  Returns:
    A writer, whose `done` names the documents to skip.

  Raises:
    ValueError: a store with other settings: each field that differs is named
      with both values.
  """
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  parts = _parts(folder)
  if overwrite and process_index == 0:
    # Manifest first: a half-emptied store must not look like a whole one.
    (folder / _MANIFEST).unlink(missing_ok=True)
    for path in parts:
      path.unlink()
    parts = {}
  for leftover in folder.glob(f"*.{process_index:05d}.tmp"):
    leftover.unlink()
  if (folder / _MANIFEST).exists():
    stored = _read_manifest(folder)
    _require_same(stored, manifest, folder)
    manifest = stored
  elif parts:
    raise ValueError(
      f"{folder} holds parts but no {_MANIFEST}, so nobody knows how they were "
      "made: restore it, or start anew with --overwrite."
    )
  else:
    with _replacing(folder / _MANIFEST, process_index) as file:
      text = json.dumps(manifest.to_json(), indent=2, allow_nan=False)
      file.write(text.encode() + b"\n")
  own = [shard for process, shard in parts.values() if process == process_index]
  done = {row.doc_id: row.text_sha256 for row in _index(folder).values()}
  next_shard = max(own, default=-1) + 1
  return StoreWriter(folder, manifest, process_index, done, next_shard)


def read_store(folder: str | os.PathLike) -> KeyTokenStore:
  """Opens a store; arrays are read when a document is asked for.

  Args:
    folder: the store, or the workdir of the run that scored it.

  Raises:
    FileNotFoundError: no manifest there.
    ValueError: a damaged part, one document in two rows, an unknown format.
  """
  folder = pathlib.Path(folder)
  nested = folder / "key_tokens"
  folder = nested if nested.is_dir() else folder
  if not (folder / _MANIFEST).exists():
    raise FileNotFoundError(
      f"{folder} is no key-token store: it has no {_MANIFEST}. Score first."
    )
  manifest = _read_manifest(folder)
  index = _index(folder)
  read_group = functools.lru_cache(_CACHED_GROUPS)(parts_lib.read_group)

  def load(doc_id: str) -> KeyTokens:
    row = index[doc_id]
    table = read_group(row.path, row.group)
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


def _parts(folder: pathlib.Path) -> dict[pathlib.Path, tuple[int, int]]:
  """The parts, each with its process and shard."""
  matches = {path: _PART.fullmatch(path.name) for path in folder.iterdir()}
  return {p: (int(m[1]), int(m[2])) for p, m in sorted(matches.items()) if m}


def _index(folder: pathlib.Path) -> dict[str, parts_lib.StoredRow]:
  """All rows by id, in order of doc_index."""
  stored = map(parts_lib.stored_rows, _parts(folder))
  index: dict[str, parts_lib.StoredRow] = {}
  for row in sorted(itertools.chain.from_iterable(stored), key=_place):
    if row.doc_id in index:
      raise ValueError(
        f"document {row.doc_id!r} is in the store twice: in "
        f"{index[row.doc_id].path} and {row.path}. Remove one of these parts."
      )
    index[row.doc_id] = row
  return index


def _place(row: parts_lib.StoredRow | KeyTokens) -> tuple[int, int, str]:
  """Order of the corpus; chunks of a document differ in their last digits."""
  return row.doc_index, len(row.doc_id), row.doc_id


def _read_manifest(folder: pathlib.Path) -> Manifest:
  path = folder / _MANIFEST
  try:
    fields = json.loads(path.read_bytes())
  except ValueError as error:
    raise ValueError(
      f"{path} is damaged: {error}. Restore it, or start anew with --overwrite."
    ) from error
  return Manifest.from_json(fields, where=path)


def _require_same(
  stored: Manifest, manifest: Manifest, folder: pathlib.Path
) -> None:
  free = {"versions"}
  if manifest.detail == "tokens":
    free |= {"alpha", "beta"}
  both = stored.to_json(), manifest.to_json()
  values = {
    name: [m[name] if name in m else _ABSENT for m in both]
    for name in sorted({*both[0], *both[1]} - free)
  }
  different = [
    f"{name} is {there!r} there and {here!r} here"
    for name, (there, here) in values.items()
    if there != here
  ]
  if different:
    raise ValueError(
      f"{folder} was made with other settings: {'; '.join(different)}. Take "
      "another --workdir, or start anew with --overwrite."
    )


@contextlib.contextmanager
def _replacing(path: pathlib.Path, process_index: int) -> Iterator[BinaryIO]:
  """A file that appears under its name only when all of it is on the disk."""
  temporary = path.with_name(f"{path.name}.{process_index:05d}.tmp")
  with open(temporary, "wb") as file:
    yield file
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)
  # The new name is in the folder, which is flushed apart.
  descriptor = os.open(path.parent, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def _named(ids: list[str]) -> str:
  named = ", ".join(map(repr, ids[:_NAMED_IDS]))
  more = ", ..." if len(ids) > _NAMED_IDS else ""
  return f"{len(ids)} documents ({named}{more})"
