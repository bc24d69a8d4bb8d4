"""Files of rows: text, JSON lines and Parquet, read part by part."""

import dataclasses
import itertools
import json
import posixpath
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# A row as read: its values by column, or why it can't be read.
Row = dict[str, Any] | str


# A folder may hold configs and manifests: .json there is not taken for data.
_IN_FOLDERS = (".txt", ".jsonl", ".parquet")
# JSON lines have no schema: the columns are those of the first lines.
_PEEKED_LINES = 100
# Texts of 32k tokens: about 8 MB in memory at a time.
_BATCH_ROWS = 64
_BUFFER_BYTES = 1 << 20
# What file systems call the facts that change with a file's contents.
_VERSION_FACTS = "size mtime LastModified updated etag ETag blob_id".split()


@dataclasses.dataclass(frozen=True)
class RowFile:
  """A file of rows, of which nothing but the shape has been read.

  Attributes:
    path: where it is.
    columns: names of its columns; None where no row shows them.
    count: number of rows.
    rows: (start, stop, columns) -> the rows from start up to stop, in order,
      with at least those columns where the row has them.
    is_one_text: a .txt file, whose one row needs no number.
    version: changes with the contents: size and time of change, or what else
      the file system has for that.
  """

  path: str
  columns: tuple[str, ...] | None
  count: int
  rows: Callable[[int, int, tuple[str, ...]], Iterator[Row]]
  is_one_text: bool = False
  version: str = ""

  def place(self, row: int) -> str:
    """Path and number of a row, for messages and as an id of last resort."""
    return self.path if self.is_one_text else f"{self.path}#{row}"


def open_files(source: str, *, text_column: str) -> list[RowFile]:
  """Opens the files that a file name, folder, glob or fsspec URL names.

  Args:
    source: .txt, JSON lines (.jsonl, .json; blank lines don't count), Parquet;
      of a folder its .txt, .jsonl and .parquet files; all of a glob. Folders
      and globs are sorted by name.
    text_column: the column that a .txt file is taken for.

  Returns:
    At least one file.

  Raises:
    FileNotFoundError: no such file, or a folder or glob without any file.
    ValueError: an unknown extension, a damaged Parquet file.
  """
  fs, paths = _find(source)
  files = []
  for path in paths:
    extension = _extension(path)
    if extension == ".txt":
      files.append(_text_file(fs, path, text_column))
    elif extension in (".jsonl", ".json"):
      files.append(_json_file(fs, path))
    elif extension == ".parquet":
      files.append(_parquet_file(fs, path))
    else:
      raise ValueError(
        f"{path} ends in {extension!r}; known: .txt, .jsonl, .json, .parquet."
      )
  return [
    dataclasses.replace(file, version=_version(fs, file.path)) for file in files
  ]


def _version(fs: fsspec.AbstractFileSystem, path: str) -> str:
  facts = fs.info(path)
  return " ".join(str(facts[name]) for name in _VERSION_FACTS if name in facts)


def _find(source: str) -> tuple[fsspec.AbstractFileSystem, list[str]]:
  fs, path = fsspec.core.url_to_fs(source)
  if fs.isfile(path):
    return fs, [path]
  if fs.isdir(path):
    inside = fs.ls(path, detail=False)
    found = [file for file in inside if _extension(file) in _IN_FOLDERS]
    problem = f"holds no file that ends in {', '.join(_IN_FOLDERS)}."
  elif any(sign in path for sign in "*?["):
    found, problem = fs.glob(path), "matches no file."
  else:
    found = []
    problem = (
      "does not exist. A data set of a hub must be downloaded first, or named "
      "by its files: hf://datasets/OWNER/NAME/*.parquet."
    )
  found = sorted(filter(fs.isfile, found))
  if not found:
    raise FileNotFoundError(f"{source} {problem}")
  return fs, found


def _extension(path: str) -> str:
  return posixpath.splitext(path)[1].lower()


def _text_file(
  fs: fsspec.AbstractFileSystem, path: str, text_column: str
) -> RowFile:
  def rows(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
    del start, stop, columns
    yield {text_column: fs.cat_file(path)}

  return RowFile(path, (text_column,), 1, rows, is_one_text=True)


def _json_file(fs: fsspec.AbstractFileSystem, path: str) -> RowFile:
  def lines() -> Iterator[bytes]:
    with fs.open(path, "rb") as file:
      for line in file:
        if line.strip():
          yield line

  def rows(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
    del columns
    return map(_parse, itertools.islice(lines(), start, stop))

  unread = lines()
  peeked = list(map(_parse, itertools.islice(unread, _PEEKED_LINES)))
  objects = [row for row in peeked if isinstance(row, dict)]
  columns = tuple(dict.fromkeys(itertools.chain.from_iterable(objects)))
  count = len(peeked) + sum(1 for _ in unread)
  return RowFile(path, columns if objects else None, count, rows)


def _parse(line: bytes) -> Row:
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    return f"not JSON: {error}"
  if not isinstance(row, dict):
    return f"the line holds a {type(row).__name__}, not an object"
  return row


def _parquet_file(fs: fsspec.AbstractFileSystem, path: str) -> RowFile:
  try:
    with fs.open(path, "rb") as file, pq.ParquetFile(file) as parquet:
      metadata = parquet.metadata
      columns = tuple(parquet.schema_arrow.names)
  except pa.ArrowException as error:
    raise ValueError(f"{path} is no whole Parquet file: {error}") from error
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
