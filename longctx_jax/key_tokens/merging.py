"""Several key-token stores into one, where they were made alike."""

import dataclasses
import itertools
import os
import pathlib
from collections.abc import Iterator, Sequence

from longctx_jax.key_tokens import card
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.runtime import settings

# Rows of a part: 64 documents of 32k tokens take 32 MB.
_ROWS = 64


def merge(
  folders: Sequence[str | os.PathLike], output: str | os.PathLike
) -> KeyTokenStore:
  """Writes the documents of all stores into a new one.

  A document that several hold is taken once: from the first that scored it.

  Args:
    folders: stores, or the workdirs of the runs that scored them.
    output: workdir of the new store; it holds none yet.

  Raises:
    ValueError: fewer than two stores, stores that were made with other
      settings, thresholds included (each field is named), a document with
      another text in another store, or an output that holds a store.
  """
  if not str(output):
    raise ValueError("no place for the merged store: name --output")
  if len(folders) < 2:
    raise ValueError(f"{len(folders)} store to merge: name at least two")
  stores = [store_lib.read_store(folder) for folder in folders]
  for store, folder in zip(stores[1:], folders[1:], strict=True):
    settings.require_same(
      _settings(stores[0]),
      _settings(store),
      where=folders[0],
      problem=f"and {folder} were made with other settings",
      remedy="Only stores that were made alike can be merged",
    )
  for (first, a), (second, b) in itertools.combinations(
    zip(folders, stores, strict=True), 2
  ):
    other = [
      doc_id
      for doc_id in a.hashes.keys() & b.hashes.keys()
      if a.hashes[doc_id]
      and b.hashes[doc_id]
      and a.hashes[doc_id] != b.hashes[doc_id]
    ]
    if other:
      raise ValueError(
        f"document {min(other)!r} has one text in {first} and another in "
        f"{second} ({len(other)} such documents): rename one, or leave one out"
      )
  folder = pathlib.Path(output) / "key_tokens"
  with writer_lib.claimed(folder):
    if folder.is_dir() and any(folder.glob("*.parquet")):
      raise ValueError(f"{folder} holds a store already: take another --output")
    writer = writer_lib.open_writer(folder, stores[0].manifest)
    documents = _documents(stores)
    while rows := list(itertools.islice(documents, _ROWS)):
      writer.write(rows)
  card.write(output)
  return store_lib.read_store(folder)


def _settings(store: KeyTokenStore) -> dict:
  manifest = store.manifest
  return manifest.identity() | dataclasses.asdict(manifest.thresholds)


def _documents(stores: Sequence[KeyTokenStore]) -> Iterator[KeyTokens]:
  """Each document once; one that failed only where no store scored it."""
  taken: set[str] = set()
  failed: dict[str, KeyTokens] = {}
  for store in stores:
    for row in store:
      if row.reason == "failed":
        failed.setdefault(row.doc_id, row)
      elif row.doc_id not in taken:
        taken.add(row.doc_id)
        yield row
  yield from (row for doc_id, row in failed.items() if doc_id not in taken)
