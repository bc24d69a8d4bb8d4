"""Writes a key-token store: resumable, by several processes, crash-safe.

After a crash at any write a reader sees the store before or after it. A later
run's row takes the place of an earlier one by its generation alone, so that a
document is scored again by adding a part; what was replaced goes afterwards.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator

from absl import logging

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.parts import StoredRow
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.runtime import files, settings
from longctx_jax.runtime.shards import WHOLE, Shard

_DOING = "scoring into"


@dataclasses.dataclass
class StoreWriter:
  """Appends to a store; made by `open_writer`.

  Attributes:
    folder: the store.
    manifest: as on disk. Rows are stored under its thresholds.
    shard: of the documents, where several processes write.
    done: doc_id -> text_sha256 of the rows that are there and did not fail.
  """

  folder: pathlib.Path
  manifest: Manifest
  shard: Shard
  done: dict[str, str]
  _generation: int
  _attempt: str
  _next_part: int = 0

  def is_done(self, doc_id: str, text_sha256: str) -> bool:
    """Whether this text is stored already, so that it need not be scored.

    A document that failed, or had another text, is not: its new row will take
    the place of the old.
    """
    return doc_id in self.done and self.done[doc_id] == text_sha256

  def is_changed(self, doc_id: str, text_sha256: str) -> bool:
    """Whether a document was scored with another text."""
    return doc_id in self.done and self.done[doc_id] != text_sha256

  def write(self, rows: Iterable[KeyTokens]) -> None:
    """Writes rows as one part; when it returns they survive a kill.

    Raises:
      ValueError: a document is there already, or a column that passes through
        has the name of a field of the store.
    """
    kept = self.manifest.thresholds
    rows = sorted(rows, key=folder_lib.place)
    rows = [row.with_thresholds(kept.alpha, kept.beta) for row in rows]
    fresh: dict[str, str] = {}
    for row in rows:
      if row.doc_id in fresh or self.is_done(row.doc_id, row.text_sha256):
        raise ValueError(f"document {row.doc_id!r} is in the store already.")
      fresh[row.doc_id] = row.text_sha256
    if not rows:
      return
    path = folder_lib.part_path(
      self.folder,
      generation=self._generation,
      shard=self.shard.index,
      attempt=self._attempt,
      number=self._next_part,
    )
    with files.appearing(path, scratch=self.folder.parent) as file:
      parts_lib.write_part(rows, file, self.manifest)
    self._next_part += 1
    self.done |= {row.doc_id: row.text_sha256 for row in rows if _is_done(row)}

  def tidy(self) -> None:
    """Removes rows whose place later ones took; readers pass them over."""
    with _gate(self.folder):
      _remove(self.folder, folder_lib.read_rows(self.folder).replaced)

  def prune(self, doc_ids: Collection[str]) -> list[str]:
    """Removes all documents but these; returns those that are gone."""
    with _gate(self.folder):
      rows = folder_lib.read_rows(self.folder)
      gone = [doc_id for doc_id in rows.by_id if doc_id not in doc_ids]
      # The replaced rows first: without their successors they would be back.
      _remove(self.folder, rows.replaced)
      rows = folder_lib.read_rows(self.folder)
      _remove(self.folder, [rows.by_id[doc_id] for doc_id in gone])
    for doc_id in gone:
      self.done.pop(doc_id, None)
    return gone


def open_writer(
  folder: str | os.PathLike,
  manifest: Manifest,
  *,
  shard: Shard = WHOLE,
  overwrite: bool = False,
) -> StoreWriter:
  """Starts a store, or goes on with one that was made with the same settings.

  A run opens it under `claimed`.

  Args:
    folder: made where it is missing.
    manifest: how the rows are made; see `Manifest.identity` for what must be
      that of the store. With detail "tokens" the thresholds may differ.
    shard: of the documents, where several processes write.
    overwrite: remove what is there.

  Returns:
    A writer, whose `done` names the documents to skip.

  Raises:
    ValueError: a store with other settings: each field that differs is named
      with both values.
  """
  folder = pathlib.Path(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
  with _gate(folder):
    if overwrite:
      _empty(folder)
    _remove_leftovers(folder, shard)
    stored = folder_lib.read_manifest(folder)
    if stored is None and folder_lib.parts(folder):
      raise ValueError(
        f"{folder} holds parts but no {folder_lib.manifest_path(folder).name}, "
        "so nobody knows how they were made: restore it, or start anew with "
        "--overwrite."
      )
    if stored is not None:
      kept = {}, {}
      if stored.detail == manifest.detail != "tokens":
        # What is stored was chosen by them.
        kept = (dataclasses.asdict(m.thresholds) for m in (stored, manifest))
      there, here = kept
      settings.require_same(
        stored.identity() | there,
        manifest.identity() | here,
        where=folder,
        problem="was made with other settings",
        remedy="Take another --workdir, or start anew with --overwrite.",
      )
      manifest = stored
    path = folder_lib.manifest_path(folder)
    if not path.exists():
      text = json.dumps(manifest.to_json(), indent=2, allow_nan=False)
      files.write_text(path, text + "\n")
    folder.mkdir(exist_ok=True)
    folder_lib.old_manifest_path(folder).unlink(missing_ok=True)
    rows = folder_lib.read_rows(folder)
  return StoreWriter(
    folder,
    manifest,
    shard,
    {r.doc_id: r.text_sha256 for r in rows.by_id.values() if _is_done(r)},
    rows.generation + 1,
    uuid.uuid4().hex[:8],
  )


@contextlib.contextmanager
def claimed(folder: str | os.PathLike, shard: Shard = WHOLE) -> Iterator[None]:
  """Keeps others from scoring the same documents into a store.

  Shards of one count work side by side; everything else is alone.

  Raises:
    InUse: another process is at it.
  """
  folder = pathlib.Path(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
  own = _lock(folder, f"-{shard.index:05d}-of-{shard.count:05d}")
  base = re.escape(_lock(folder).name)
  beside = re.compile(rf"{base}-\d{{5}}-of-{shard.count:05d}")
  with contextlib.ExitStack() as held:
    with _gate(folder):
      for other in sorted(folder.parent.glob(_lock(folder, "-*-of-*").name)):
        if shard.count > 1 and other != own and beside.fullmatch(other.name):
          continue
        with files.locked(other, doing=_DOING):
          pass
      held.enter_context(files.locked(own, doing=_DOING))
    yield


def _lock(folder: pathlib.Path, suffix: str = "") -> pathlib.Path:
  return folder.with_name(f".lock-{folder.name}{suffix}")


def _gate(folder: pathlib.Path) -> contextlib.AbstractContextManager[None]:
  """Held for moments: what it guards is seen by all processes in one order."""
  return files.locked(_lock(folder), doing="opening", wait=True)


def _is_done(row: StoredRow | KeyTokens) -> bool:
  return row.reason != "failed"


def _empty(folder: pathlib.Path) -> None:
  """Removes a store at once: half of one would look like a whole one."""
  aside = f".removed-{folder.name}"
  if folder.exists():
    os.replace(folder, folder.with_name(f"{aside}-{uuid.uuid4().hex[:8]}"))
  folder_lib.manifest_path(folder).unlink(missing_ok=True)
  for path in folder.parent.glob(f"{aside}-*"):
    shutil.rmtree(path)


def _remove_leftovers(folder: pathlib.Path, shard: Shard) -> None:
  """Of runs that were killed; those of shards at work have other numbers."""
  files.remove_leftovers(folder.parent, f"part-*-{shard.index:05d}-*-*.parquet")
  if shard.count == 1:
    files.remove_leftovers(folder.parent, "part-*.parquet")
    for path in folder.glob("*.tmp"):
      path.unlink()


def _remove(folder: pathlib.Path, rows: Collection[StoredRow]) -> None:
  """Rewrites the parts that hold these rows without them."""
  for path in sorted({row.path for row in rows}):
    gone = [row for row in rows if row.path == path]
    if len(gone) == sum(1 for _ in parts_lib.stored_rows(path)):
      path.unlink()
      continue
    with files.appearing(path, scratch=folder.parent) as file:
      parts_lib.write_without(path, gone, file)
  if rows:
    logging.info("%s: %d old rows removed", folder, len(rows))
