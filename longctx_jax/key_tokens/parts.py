"""Parquet parts of the key-token store: a row per document, without its text.

Offsets are DELTA_BINARY_PACKED and log-probs BYTE_STREAM_SPLIT, under zstd: at
most 8 bytes a token together, where plain lists take 16.
"""

import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longctx_jax.key_tokens import record
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens

_FIELDS = {
  "doc_id": pa.string(),
  "doc_index": pa.int64(),
  "text_sha256": pa.string(),
  "n_chars": pa.int64(),
  "n_tokens": pa.int64(),
  "n_tokens_full": pa.int64(),
  "n_eligible": pa.int64(),
  "reason": pa.string(),
  "truncated": pa.bool_(),
}


_IDENTITY = ("doc_id", "doc_index", "text_sha256", "reason")
_ARRAYS = {
  "token_start": np.int32,
  "token_end": np.int32,
  "long_log_probs": np.float32,
  "short_log_probs": np.float32,
}


_ENCODINGS = {
  f"{name}.list.element": (
    "BYTE_STREAM_SPLIT" if dtype is np.float32 else "DELTA_BINARY_PACKED"
  )
  for name, dtype in _ARRAYS.items()
}


# Schema metadata: which of the other columns are scores.
_SCORES = b"longctx_jax.scores"
_MANIFEST = b"longctx_jax.manifest"
# In memory: 8 documents of 32k tokens. A document is read with its row group,
# which is why a group stays far below the 32 MB it may have.
_GROUP_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class StoredRow:
  """Identity and place of a row.

  Attributes:
    doc_id: id of the document.
    doc_index: its index in the corpus.
    text_sha256: hash of its text as read.
    reason: why it has no key tokens, at the thresholds of the store.
    path: the part.
    group: row group within the part.
    row: row within the group.
  """

  doc_id: str
  doc_index: int
  text_sha256: str
  reason: str
  path: pathlib.Path
  group: int
  row: int


def write_part(
  rows: Sequence[KeyTokens], file: BinaryIO, manifest: Manifest
) -> None:
  """Writes rows as a Parquet file, with checksums of its pages.

  Args:
    rows: at least one, in the order to be stored.
    file: open for writing.
    manifest: of the store, which the file repeats. Its detail "tokens" stores
      the arrays of all tokens, "keys" those of the key tokens, "scores" none.

  Raises:
    ValueError: a column that passes through has the name of a stored field.
  """
  table = _to_table(rows, manifest.detail)
  named = json.dumps(manifest.to_json(), allow_nan=False)
  metadata = {**table.schema.metadata, _MANIFEST: named}
  _write(table.replace_schema_metadata(metadata), file)


def write_without(
  path: pathlib.Path, rows: Collection[StoredRow], file: BinaryIO
) -> None:
  """Writes a part anew, without some of its rows."""
  left_out = {(row.group, row.row) for row in rows}
  kept = []
  with _opened(path) as parquet:
    for group in range(parquet.num_row_groups):
      table = parquet.read_row_group(group, use_threads=False)
      mask = [(group, row) not in left_out for row in range(table.num_rows)]
      kept.append(table.filter(pa.array(mask, pa.bool_())))
  _write(pa.concat_tables(kept), file)


def _write(table: pa.Table, file: BinaryIO) -> None:
  flat = [name for name in table.column_names if name not in _ARRAYS]
  has_arrays = len(flat) < table.num_columns
  with pq.ParquetWriter(
    file,
    table.schema,
    compression="zstd",
    use_dictionary=False,
    column_encoding=_ENCODINGS if has_arrays else {},
    write_statistics=flat,
    write_page_checksum=True,
  ) as writer:
    for group in _groups(table):
      writer.write_table(group)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[pq.ParquetFile]:
  """A part, whose pages are checked as they are read."""
  try:
    with pq.ParquetFile(path, page_checksum_verification=True) as parquet:
      yield parquet
  except (pa.ArrowException, OSError) as error:
    raise ValueError(
      f"{path} is damaged: {error}. Remove it and score again with the same "
      "command: the documents of the other parts are kept."
    ) from error


def read_manifest(path: pathlib.Path) -> dict[str, Any] | None:
  """The fields of the manifest that a part repeats; parts of before don't."""
  with _opened(path) as parquet:
    metadata = parquet.schema_arrow.metadata or {}
  return json.loads(metadata[_MANIFEST]) if _MANIFEST in metadata else None


def stored_rows(path: pathlib.Path) -> Iterator[StoredRow]:
  """The rows of a part; their arrays are not read.

  Raises:
    ValueError: the part is damaged.
  """
  with _opened(path) as parquet:
    for group in range(parquet.num_row_groups):
      table = parquet.read_row_group(
        group, columns=list(_IDENTITY), use_threads=False
      )
      columns = (table[name].to_pylist() for name in _IDENTITY)
      for row, identity in enumerate(zip(*columns, strict=True)):
        yield StoredRow(*identity, path, group, row)


def read_group(path: pathlib.Path, group: int) -> pa.Table:
  """One row group of a part; ValueError where it is damaged."""
  with _opened(path) as parquet:
    return parquet.read_row_group(group, use_threads=False)


def scalar_schema(path: pathlib.Path) -> pa.Schema:
  """The columns of a part but those of its targets."""
  with _opened(path) as parquet:
    fields = [f for f in parquet.schema_arrow if f.name not in _ARRAYS]
  return pa.schema(fields)


def read_scalars(path: pathlib.Path, group: int) -> pa.Table:
  """A row group without what it holds of targets; ValueError where damaged."""
  names = scalar_schema(path).names
  with _opened(path) as parquet:
    return parquet.read_row_group(group, columns=names, use_threads=False)


def is_row(table: pa.Table, row: StoredRow) -> bool:
  """Whether a row still stands at its place in its row group."""
  return row.row < table.num_rows and (
    table["doc_id"][row.row].as_py() == row.doc_id
    and table["text_sha256"][row.row].as_py() == row.text_sha256
  )


def row_key_tokens(table: pa.Table, row: int, manifest: Manifest) -> KeyTokens:
  """The key tokens of a row, under the thresholds of the manifest.

  Args:
    table: a row group.
    row: row within it.
    manifest: of the store.
  """
  score_names = json.loads(table.schema.metadata[_SCORES])
  values = {
    name: table[name][row].as_py()
    for name in table.column_names
    if name not in _ARRAYS
  }
  arrays = {
    name: _array(table[name][row]) if name in table.column_names else None
    for name in _ARRAYS
  }
  start, end = arrays.pop("token_start"), arrays.pop("token_end")
  scores = {name: values.pop(name) for name in score_names}
  if all(value is None for value in scores.values()):
    # Nothing was scored: nulls are there for the sake of other rows.
    scores = {}
  return record.make_key_tokens(
    **{name: values.pop(name) for name in _FIELDS},
    scores=scores,
    columns=values,
    offsets=None if start is None else np.stack([start, end], axis=1),
    **arrays,
    manifest=manifest,
  )


def _array(value: pa.ListScalar) -> np.ndarray | None:
  # Nulls among float values, where nothing was scored, come back as NaN.
  return value.values.to_numpy(zero_copy_only=False) if value.is_valid else None


def _to_table(rows: Sequence[KeyTokens], detail: str) -> pa.Table:
  columns = {
    name: pa.array([getattr(row, name) for row in rows], type_)
    for name, type_ in _FIELDS.items()
  }
  if detail != "scores":
    held = [_held_arrays(row, detail) for row in rows]
    for name, arrays in zip(_ARRAYS, zip(*held, strict=True), strict=True):
      columns[name] = _list_array(arrays, _ARRAYS[name])
  score_names = list(dict.fromkeys(name for row in rows for name in row.scores))
  for name in score_names:
    scores = [row.scores[name] if name in row.scores else None for row in rows]
    # One type in every part, also where a part holds no number.
    type_ = pa.int64() if name.startswith("n_") else pa.float64()
    columns[name] = pa.array(scores, type_)
  for name in dict.fromkeys(name for row in rows for name in row.columns):
    if name in columns:
      raise ValueError(
        f"column {name!r} can't pass through: the key-token store has a field "
        "of that name. Rename it in the corpus."
      )
    columns[name] = _any_array(
      [row.columns[name] if name in row.columns else None for row in rows]
    )
  table = pa.table(columns)
  return table.replace_schema_metadata({_SCORES: json.dumps(score_names)})


def _held_arrays(row: KeyTokens, detail: str) -> tuple[np.ndarray | None, ...]:
  if row.offsets is None:
    return (None,) * len(_ARRAYS)
  arrays = (*row.offsets.T, row.long_log_probs, row.short_log_probs)
  if detail == "keys":
    return tuple(array[row.key_mask] for array in arrays)
  return arrays


def _list_array(
  arrays: Sequence[np.ndarray | None], dtype: type
) -> pa.ListArray:
  lengths = [0 if array is None else len(array) for array in arrays]
  held = [array for array in arrays if array is not None]
  values = np.concatenate([np.zeros(0, dtype), *held]).astype(dtype)
  return pa.ListArray.from_arrays(
    pa.array(np.cumsum([0, *lengths]), pa.int32()),
    pa.array(values, from_pandas=True),
    mask=pa.array([array is None for array in arrays]),
  )


def _any_array(values: list[Any]) -> pa.Array:
  """Values of a passing column, as JSON where Parquet has no type for them."""
  try:
    array = pa.array(values)
  except (pa.ArrowException, ValueError, OverflowError):
    array = None
  if array is None or "struct<>" in str(array.type):
    return pa.array([json.dumps(value, default=str) for value in values])
  return array


def _groups(table: pa.Table) -> Iterator[pa.Table]:
  start, size = 0, 0
  for row in range(table.num_rows):
    row_size = table.slice(row, 1).nbytes
    if row > start and size + row_size > _GROUP_BYTES:
      yield table.slice(start, row - start)
      start, size = row, 0
    size += row_size
  yield table.slice(start)
