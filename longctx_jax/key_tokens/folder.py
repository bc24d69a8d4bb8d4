"""Where the files of a key-token store lie, and which rows they hold.

`W/key_tokens/` holds Parquet parts and nothing else, so that any tool can read
the folder; the manifest is `W/key_tokens.json`, and locks and unfinished files
lie in W. Each part repeats the manifest, so that the folder alone is a store.
A part is named by generation, shard, attempt and number: runs that write at
once never meet, and a row of a later run takes the place of an earlier one.
"""

import dataclasses
import itertools
import json
import pathlib
import re

from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.parts import StoredRow
from longctx_jax.key_tokens.record import KeyTokens

# Names of before had process and number, and belong to no generation.
_PART = re.compile(
  r"part-(?:[0-9]{5}-[0-9]{5}|([0-9]{5})-[0-9]{5}-[0-9a-f]{8}-[0-9]{5})\.parquet"
)
_OLD_MANIFEST = "manifest.json"


@dataclasses.dataclass(frozen=True)
class Rows:
  """What a store holds.

  Attributes:
    by_id: the row of each document, in order of `doc_index`.
    replaced: rows whose place later ones took.
    generation: of the last run that wrote.
  """

  by_id: dict[str, StoredRow]
  replaced: tuple[StoredRow, ...]
  generation: int


def manifest_path(folder: pathlib.Path) -> pathlib.Path:
  """Beside the folder, under its name."""
  return folder.with_name(f"{folder.name}.json")


def old_manifest_path(folder: pathlib.Path) -> pathlib.Path:
  """Inside the folder, where it lay before."""
  return folder / _OLD_MANIFEST


def part_path(
  folder: pathlib.Path,
  *,
  generation: int,
  shard: int,
  attempt: str,
  number: int,
) -> pathlib.Path:
  """A part's path; with 8 random hex digits as attempt nobody else's."""
  return folder / (
    f"part-{generation:05d}-{shard:05d}-{attempt}-{number:05d}.parquet"
  )


def parts(folder: pathlib.Path) -> dict[pathlib.Path, int]:
  """The parts, each with its generation; none where there is no folder."""
  inside = folder.iterdir() if folder.is_dir() else ()
  matches = {path: _PART.fullmatch(path.name) for path in inside}
  return {path: int(m[1] or 0) for path, m in sorted(matches.items()) if m}


def read_rows(folder: pathlib.Path) -> Rows:
  """All rows; their arrays are not read.

  Raises:
    ValueError: a damaged part, or one document in two rows of one run.
  """
  generations = parts(folder)
  stored = itertools.chain.from_iterable(
    parts_lib.stored_rows(path) for path in generations
  )
  by_id: dict[str, StoredRow] = {}
  replaced = []
  for row in sorted(stored, key=lambda row: generations[row.path]):
    other = by_id.pop(row.doc_id, None)
    if other and generations[other.path] == generations[row.path]:
      raise ValueError(
        f"document {row.doc_id!r} is in the store twice: in {other.path} and "
        f"{row.path}. Remove one of these parts."
      )
    replaced += [other] if other else []
    by_id[row.doc_id] = row
  ordered = sorted(by_id.values(), key=place)
  return Rows(
    {row.doc_id: row for row in ordered},
    tuple(replaced),
    max(generations.values(), default=0),
  )


def place(row: StoredRow | KeyTokens) -> tuple[int, int, str]:
  """Order of the corpus; chunks of a document differ in their last digits."""
  return row.doc_index, len(row.doc_id), row.doc_id


def read_manifest(folder: pathlib.Path) -> Manifest | None:
  """How the store was made; None where neither a file nor a part says.

  Raises:
    ValueError: a manifest that can't be read.
  """
  for path in (manifest_path(folder), old_manifest_path(folder)):
    if path.exists():
      try:
        fields = json.loads(path.read_bytes())
      except ValueError as error:
        raise ValueError(
          f"{path} is damaged: {error}. Restore it, or start anew with "
          "--overwrite."
        ) from error
      return Manifest.from_json(fields, where=path)
  for path in parts(folder):
    fields = parts_lib.read_manifest(path)
    if fields is not None:
      return Manifest.from_json(fields, where=path)
  return None
