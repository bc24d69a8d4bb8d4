"""Documents of a corpus, streamed in order, with ids that are checked."""

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from longctx_jax.runtime.shards import WHOLE, Shard
from longctx_jax.text import row_files, tfds_files

_ID_COLUMNS = ("id", "doc_id")
_MAX_TOKEN_ID = np.iinfo(np.int32).max


@dataclasses.dataclass(frozen=True, eq=False)
class Document:
  """One text, or the token ids of one; neither where `error` says why.

  Attributes:
    doc_id: from the id column, else the file name (of a text) or
      "<file>#<row>"; in subfolders with the path below the folder named.
    doc_index: index in the whole corpus, whatever the row range.
    text: the text, exactly as stored: no newline or Unicode translation.
    ids: int32 [n], where an ids column was named.
    columns: the values of the columns asked for; None where there is none.
    error: why the row can't be read, else "".
  """

  doc_id: str
  doc_index: int
  text: str | None
  ids: np.ndarray | None
  columns: dict[str, Any]
  error: str = ""


def text_sha256(text: str) -> str:
  """Hex SHA-256 of the UTF-8 bytes of a text as read: what identifies it."""
  return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class _Fields:
  """The columns asked for; "" for none."""

  text: str
  ids: str
  id: str
  columns: tuple[str, ...]

  @property
  def named(self) -> tuple[str, ...]:
    return tuple(filter(None, (self.ids or self.text, self.id, *self.columns)))


@dataclasses.dataclass(frozen=True)
class Corpus:
  """Documents in order; iterable as often as wanted, never whole in memory.

  Made by `open_corpus`. Iterating raises ValueError where two documents have
  one id; a row that can't be read is a Document with `error` set.

  Attributes:
    total: rows of all files.
    start: index of the first row taken.
    stop: index after the last row taken.
  """

  total: int
  start: int
  stop: int
  _files: tuple[row_files.RowFile, ...] = dataclasses.field(repr=False)
  _fields: _Fields = dataclasses.field(repr=False)
  _decode: Callable[[np.ndarray], str] | None = None
  _shard: Shard = WHOLE

  @property
  def count(self) -> int:
    """Documents of the shard's rows; known without reading a text."""
    return len(range(self.start, self.stop)[self._shard.taken])

  def shard(self, shard: Shard) -> "Corpus":
    """One share of the documents: neighbours go to different shards."""
    return dataclasses.replace(self, _shard=shard)

  @property
  def holds_ids(self) -> bool:
    """Whether documents hold token ids in place of a text."""
    return bool(self._fields.ids) and self._decode is None

  @property
  def identity(self) -> dict[str, Any]:
    """What determines the documents, as JSON: files, columns, rows.

    A file is known by its path, size and time of change (or what its file
    system has for that), without reading it.
    """
    return {
      "files": [[file.path, file.version] for file in self._files],
      "columns": [self._fields.text, self._fields.ids, self._fields.id],
      "rows": [self.start, self.stop],
      **({} if self._shard.count == 1 else {"shard": str(self._shard)}),
    }

  def decoded(self, decode: Callable[[np.ndarray], str]) -> "Corpus":
    """The same documents with the text that their token ids decode to.

    Args:
      decode: int32 [n] -> text. Its ValueError becomes the document's error.

    Returns:
      A corpus whose documents hold that text in place of the ids.

    Raises:
      ValueError: the corpus was opened without an ids column.
    """
    if not self._fields.ids:
      raise ValueError("only token ids can be decoded: name an ids_column.")
    return dataclasses.replace(self, _decode=decode)

  def __iter__(self) -> Iterator[Document]:
    first_seen: dict[str, int] = {}
    for document in self._documents():
      doc_id, doc_index = document.doc_id, document.doc_index
      if doc_id in first_seen:
        raise ValueError(
          f"two documents have the id {doc_id!r}: "
          f"{self._place(first_seen[doc_id])} and {self._place(doc_index)}. "
          "Rename one, or name a column of unique ids (--id_column)."
        )
      first_seen[doc_id] = doc_index
      yield document

  def _documents(self) -> Iterator[Document]:
    base = 0
    for file in self._files:
      start, stop = max(self.start - base, 0), min(self.stop - base, file.count)
      if start < stop:
        id_column = self._fields.id or _default_id_column(file, self._fields)
        columns = dict.fromkeys(filter(None, (*self._fields.named, id_column)))
        rows = file.rows(start, stop, tuple(columns))
        for number, row in enumerate(rows, start):
          if not self._shard.takes(base + number - self.start):
            continue
          yield _document(
            row,
            dataclasses.replace(self._fields, id=id_column),
            name=file.row_id(number),
            doc_index=base + number,
            decode=self._decode,
          )
      base += file.count

  def _place(self, doc_index: int) -> str:
    row = doc_index
    for file in self._files:
      if row < file.count:
        return file.place(row)
      row -= file.count
    raise AssertionError(f"no document {doc_index} among {self.total}")


def open_corpus(
  sources: str | os.PathLike | Sequence[str | os.PathLike],
  *,
  text_column: str = "text",
  ids_column: str = "",
  id_column: str = "",
  columns: Sequence[str] = (),
  row_range: tuple[int, int] = (0, 0),
) -> Corpus:
  """Opens files as one corpus, and checks all of them before reading a text.

  Args:
    sources: a text file (one document), JSON lines or one JSON array, these
      compressed, a Parquet file, a folder with its subfolders, a glob, an
      fsspec URL of any of these (gs://, s3://, hf://), a prepared data set of
      tensorflow-datasets (tfds:pg19/train), or a list of them; endings are
      those of `row_files.open_files`. Folders and globs are sorted by name,
      lists keep their order.
    text_column: column of the text: strings, or UTF-8 as binary.
    ids_column: column of token ids, read in place of the text; "" for none.
    id_column: column of the document ids, strings or integers; "" takes a
      column "id" or "doc_id" where there is one.
    columns: columns that pass through into `Document.columns`.
    row_range: (a, b), half-open, over the rows of all files together; b may
      lie beyond the end, (0, 0) takes all. `doc_index` doesn't depend on it.

  Returns:
    The corpus.

  Raises:
    FileNotFoundError: no such file, or a folder or glob without any file.
    OSError: a URL that can't be reached.
    ValueError: an unknown extension, a missing column (those there are, are
      listed), a damaged file, an empty row range.
  """
  if isinstance(sources, str | os.PathLike):
    sources = [sources]
  fields = _Fields(text_column, ids_column, id_column, tuple(columns))
  files = []
  for source in sources:
    if str(source).startswith(tfds_files.PREFIX):
      files += tfds_files.open_split(str(source))
    else:
      files += row_files.open_files(str(source), text_column=text_column)
  if not files:
    raise ValueError("no data given: name at least one file, folder or glob.")
  for file in files:
    _require_columns(file, fields.named)
  total = sum(file.count for file in files)
  start, stop = row_range
  if (start, stop) == (0, 0):
    stop = total
  elif not 0 <= start < min(stop, total):
    raise ValueError(
      f"row_range ({start}, {stop}) takes no row: the corpus has {total}. "
      "Expected (a, b) with 0 <= a < b and a below that number."
    )
  return Corpus(total, start, min(stop, total), tuple(files), fields)


def _require_columns(file: row_files.RowFile, names: tuple[str, ...]) -> None:
  if file.columns is None:
    return
  for name in names:
    if name not in file.columns:
      raise ValueError(
        f"{file.path} has no column {name!r}; it has: "
        f"{', '.join(file.columns) or 'none'}."
      )


def _default_id_column(file: row_files.RowFile, fields: _Fields) -> str:
  there = (name for name in _ID_COLUMNS if name in (file.columns or ()))
  return next((name for name in there if name not in fields.named[:1]), "")


def _document(
  row: row_files.Row,
  fields: _Fields,
  *,
  name: str,
  doc_index: int,
  decode: Callable[[np.ndarray], str] | None,
) -> Document:
  """The document of a row; `name` is its id where it has no other."""
  values = row if isinstance(row, dict) else {}
  columns = {n: values[n] if n in values else None for n in fields.columns}
  doc_id, text, ids = name, None, None
  try:
    if isinstance(row, str):
      raise ValueError(row)
    if fields.id:
      doc_id = _read_id(row, fields.id)
    if not fields.ids:
      text = _read_text(row, fields.text)
    elif decode:
      text = decode(_read_token_ids(row, fields.ids))
    else:
      ids = _read_token_ids(row, fields.ids)
  except ValueError as error:
    return Document(doc_id, doc_index, None, None, columns, str(error))
  return Document(doc_id, doc_index, text, ids, columns)


def _read_id(row: dict[str, Any], column: str) -> str:
  value = _read(row, column)
  if not isinstance(value, str | int):
    raise ValueError(
      f"column {column!r} holds a {type(value).__name__}; ids are strings or "
      "integers"
    )
  value = str(value)
  value.encode()
  return value


def _read_text(row: dict[str, Any], column: str) -> str:
  text = _read(row, column)
  if isinstance(text, bytes):
    return text.decode()
  if not isinstance(text, str):
    raise ValueError(
      f"column {column!r} holds a {type(text).__name__}, no text"
    )
  # JSON can smuggle in half a surrogate pair, which no tokenizer takes.
  text.encode()
  return text


def _read_token_ids(row: dict[str, Any], column: str) -> np.ndarray:
  ids = np.asarray(_read(row, column))
  if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
    raise ValueError(f"column {column!r} holds no list of integers")
  if ids.size and not 0 <= ids.min() <= ids.max() <= _MAX_TOKEN_ID:
    raise ValueError(
      f"column {column!r} holds ids from {ids.min()} to {ids.max()}; expected "
      f"0 to {_MAX_TOKEN_ID}"
    )
  return ids.astype(np.int32)


def _read(row: dict[str, Any], column: str) -> Any:
  if column not in row or row[column] is None:
    raise ValueError(f"column {column!r} is null")
  return row[column]
