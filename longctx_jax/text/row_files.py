"""Files of rows: text, JSON and Parquet, read part by part."""

import collections
import dataclasses
import itertools
import os
import posixpath
from collections.abc import Callable, Iterator

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import logging
from fsspec.implementations.local import LocalFileSystem

from longctx_jax.runtime import failures, foreign_files, urls
from longctx_jax.text import json_rows, streams
from longctx_jax.text.json_rows import Row

_TEXTS = (".txt", ".md")
_JSON = (".jsonl", ".json", ".ndjson")
_KNOWN = (".txt", ".jsonl", ".json", ".parquet", ".md", ".ndjson")
# A folder may hold configs and manifests: .json there is not taken for data.
_IN_FOLDERS = tuple(name for name in _KNOWN if name != ".json")
# JSON has no schema: the columns are those of the first rows.
_PEEKED_ROWS = 100
# Texts of 32k tokens: about 8 MB in memory at a time.
_BATCH_ROWS = 64
_BUFFER_BYTES = 1 << 20
# A file below this size may be what git-lfs leaves in place of another.
_POINTER_BYTES = 1024


@dataclasses.dataclass(frozen=True)
class RowFile:
  """A file of rows, of which nothing but the shape has been read.

  Attributes:
    path: where it is.
    columns: names of its columns; None where no row shows them.
    count: number of rows.
    rows: (start, stop, columns) -> the rows from start up to stop, in order,
      with at least those columns where the row has them.
    is_one_text: a text file, whose one row needs no number.
    version: changes with the contents: size and time of change, or what else
      the file system has for that.
    name: what is left of the path below the folder that was named; "" is the
      last part.
  """

  path: str
  columns: tuple[str, ...] | None
  count: int
  rows: Callable[[int, int, tuple[str, ...]], Iterator[Row]]
  is_one_text: bool = False
  version: str = ""
  name: str = ""

  def place(self, row: int) -> str:
    """Path and number of a row, for messages."""
    return self.path if self.is_one_text else f"{self.path}#{row}"

  def row_id(self, row: int) -> str:
    """Name and number of a row: its id of last resort."""
    name = self.name or posixpath.basename(self.path)
    return name if self.is_one_text else f"{name}#{row}"


def open_files(source: str, *, text_column: str) -> list[RowFile]:
  """Opens the files that a file name, folder, glob or fsspec URL names.

  Args:
    source: text (.txt, .md), JSON lines (.jsonl, .ndjson, .json; blank lines
      don't count), one JSON array (.json), these compressed (.gz, .bz2, .xz,
      .zst), or Parquet; of a folder and its subfolders all but .json and what
      is hidden; all of a glob. Folders and globs are sorted by name.
    text_column: the column that a text file is taken for.

  Returns:
    At least one file.

  Raises:
    FileNotFoundError: no such file, or a folder or glob without any file.
    OSError: a URL that can't be reached.
    ValueError: an unknown extension, a damaged file, a URL whose package is
      not installed.
  """
  if not source:
    raise ValueError("a source is empty: name a file, folder, glob or URL.")
  fs, root = urls.open_file_system(source)
  with urls.reaching(source):
    paths = _find(fs, root, source)
    files = [_open(fs, path, text_column) for path in paths]

  def named(file: RowFile) -> RowFile:
    def rows(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
      with urls.reaching(source):
        yield from file.rows(start, stop, columns)

    return dataclasses.replace(file, rows=rows, name=_below(file.path, root))

  return [named(file) for file in files]


def _open(
  fs: fsspec.AbstractFileSystem, path: str, text_column: str
) -> RowFile:
  facts = fs.info(path)
  if (facts.get("size") or 0) < _POINTER_BYTES:
    foreign_files.refuse_pointer_in(fs.cat_file(path), path)
  extension = streams.extension(path)
  if extension in _TEXTS:
    file = _text_file(fs, path, text_column)
  elif extension in _JSON:
    file = _json_file(fs, path)
  elif extension == ".parquet" and not streams.is_compressed(path):
    file = _parquet_file(fs, path)
  else:
    raise ValueError(
      f"{path} ends in {extension!r}; known: {', '.join(_KNOWN)}, and all but "
      "Parquet with .gz, .bz2, .xz or .zst behind."
    )
  return dataclasses.replace(file, version=urls.version(facts))


def _below(path: str, folder: str) -> str:
  """The part of a path below a folder; "" where it does not lie there."""
  folder = f"{folder.rstrip('/')}/"
  return path.removeprefix(folder) if path.startswith(folder) else ""


def _find(fs: fsspec.AbstractFileSystem, path: str, source: str) -> list[str]:
  if fs.isfile(path):
    return [path]
  if fs.isdir(path):
    why = {file: _why_skipped(file, path) for file in _inside(fs, path)}
    problem = f"holds no file that ends in {', '.join(_IN_FOLDERS)}"
  elif any(sign in path for sign in "*?["):
    why, problem = dict.fromkeys(fs.glob(path), ""), "matches no file"
  else:
    why = {}
    problem = (
      "does not exist. A data set of a hub must be downloaded first, or named "
      "by its files: hf://datasets/OWNER/NAME/*.parquet"
    )
  found = []
  skipped: collections.Counter[str] = collections.Counter()
  for file in sorted(why):
    reason = why[file] or ("" if fs.isfile(file) else "no file")
    if reason:
      skipped[reason] += 1
    else:
      found.append(file)
  said = ", ".join(f"{reason} ({n})" for reason, n in sorted(skipped.items()))
  if not found:
    there = f"; what is there: {said}" if said else ""
    raise FileNotFoundError(f"{source} {problem}{there}.")
  if said:
    logging.info(
      "%s: %d of %d files are skipped: %s",
      source,
      skipped.total(),
      len(why),
      said,
    )
  return found


def _inside(fs: fsspec.AbstractFileSystem, folder: str) -> list[str]:
  """Files of a folder and its subfolders, links to folders unfollowed."""
  if not isinstance(fs, LocalFileSystem):
    return fs.find(folder)

  # fsspec would leave out in silence what can't be opened.
  def refuse(error: OSError) -> None:
    raise error

  found = []
  for place, folders, names in os.walk(folder, onerror=refuse):
    links = [n for n in folders if os.path.islink(os.path.join(place, n))]
    place = place.replace(os.sep, "/")
    found += [posixpath.join(place, name) for name in (*names, *links)]
  return found


def _why_skipped(path: str, folder: str) -> str:
  """Why a file of a folder is no data; "" where it is."""
  if any(part.startswith(".") for part in _below(path, folder).split("/")):
    return "hidden"
  extension = streams.extension(path)
  if extension in _IN_FOLDERS and not (
    extension == ".parquet" and streams.is_compressed(path)
  ):
    return ""
  return posixpath.splitext(path)[1].lower() or "without an extension"


def _text_file(
  fs: fsspec.AbstractFileSystem, path: str, text_column: str
) -> RowFile:
  def rows(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
    del start, stop, columns
    try:
      with streams.open_bytes(fs, path) as file:
        row = {text_column: file.read()}
    except ValueError as error:
      row = str(error)
    yield row

  return RowFile(path, (text_column,), 1, rows, is_one_text=True)


def _json_file(fs: fsspec.AbstractFileSystem, path: str) -> RowFile:
  def rows(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
    del columns
    return itertools.islice(json_rows.read_rows(fs, path), start, stop)

  unread = json_rows.read_rows(fs, path)
  peeked = list(itertools.islice(unread, _PEEKED_ROWS))
  objects = [row for row in peeked if isinstance(row, dict)]
  columns = tuple(dict.fromkeys(itertools.chain.from_iterable(objects)))
  count = len(peeked) + sum(1 for _ in unread)
  if peeked and not objects and streams.extension(path) == ".json":
    raise ValueError(
      f"{path} holds neither an object a line nor one array of objects: "
      f"{peeked[0]}."
    )
  return RowFile(path, columns if objects else None, count, rows)


def _parquet_file(fs: fsspec.AbstractFileSystem, path: str) -> RowFile:
  with (
    failures.reading(path),
    fs.open(path, "rb") as file,
    pq.ParquetFile(file) as parquet,
  ):
    metadata = parquet.metadata
    columns = tuple(parquet.schema_arrow.names)
  groups = range(metadata.num_row_groups)
  ends = np.cumsum([metadata.row_group(g).num_rows for g in groups], dtype=int)

  def rows(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
    # Row groups outside the range are not read.
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(ends, stop, side="left"))
    base = int(ends[first - 1]) if first else 0
    # By default all of a row group is read ahead, by threads; and threads that
    # call into a Python file can abort the interpreter's exit.
    options = {"pre_buffer": False, "buffer_size": _BUFFER_BYTES}
    with (
      failures.reading(path),
      fs.open(path, "rb") as file,
      pq.ParquetFile(file, **options) as parquet,
    ):
      batches = parquet.iter_batches(
        _BATCH_ROWS,
        row_groups=range(first, last + 1),
        columns=columns,
        use_threads=False,
      )
      read = itertools.chain.from_iterable(map(_batch_rows, batches))
      yield from itertools.islice(read, start - base, stop - base)

  return RowFile(path, columns, metadata.num_rows, rows)


def _batch_rows(batch: pa.RecordBatch) -> Iterator[Row]:
  for values in zip(*batch.columns, strict=True):
    try:
      row = [value.as_py() for value in values]
    except UnicodeDecodeError as error:
      yield str(error)
    else:
      yield dict(zip(batch.schema.names, row, strict=True))
