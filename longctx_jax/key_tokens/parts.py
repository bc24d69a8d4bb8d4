"""Parquet parts of the key-token store: a row per document, without its text.

Offsets are DELTA_BINARY_PACKED and log-probs BYTE_STREAM_SPLIT, under zstd: at
most 8 bytes a token together, where plain lists take 16.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterator, Sequence
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


_IDENTITY = ("doc_id", "doc_index", "text_sha256")
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
    path: the part.
    group: row group within the part.
    row: row within the group.
  """

  doc_id: str
  doc_index: int
  text_sha256: str
  path: pathlib.Path
  group: int
  row: int


def write_part(
  rows: Sequence[KeyTokens], file: BinaryIO, *, detail: str
) -> None:
  """Writes rows as a Parquet file.

  Args:
    rows: at least one, in the order to be stored.
    file: open for writing.
    detail: "tokens" stores the arrays of all tokens, "keys" those of the key
      tokens, "scores" none.

  Raises:
    ValueError: a column that passes through has the name of a stored field.
  """
  table = _to_table(rows, detail)
  flat = [name for name in table.column_names if name not in _ARRAYS]
  encodings = {} if detail == "scores" else _ENCODINGS
  with pq.ParquetWriter(
    file,
    table.schema,
    compression="zstd",
    use_dictionary=False,
    column_encoding=encodings,
    write_statistics=flat,
  ) as writer:
    for group in _groups(table):
      writer.write_table(group)


def stored_rows(path: pathlib.Path) -> Iterator[StoredRow]:
  """The rows of a part; their arrays are not read.

  Raises:
    ValueError: the part is damaged.
  """
  try:
    with pq.ParquetFile(path) as parquet:
      for group in range(parquet.num_row_groups):
        table = parquet.read_row_group(
          group, columns=list(_IDENTITY), use_threads=False
        )
        columns = (table[name].to_pylist() for name in _IDENTITY)
        for row, identity in enumerate(zip(*columns, strict=True)):
          yield StoredRow(*identity, path, group, row)
  except (pa.ArrowException, OSError) as error:
    raise ValueError(
      f"{path} is damaged: {error}. Remove it and score again with the same "
      "command: the documents of the other parts are kept."
    ) from error


def read_group(path: pathlib.Path, group: int) -> pa.Table:
  """One row group of a part."""
  with pq.ParquetFile(path) as parquet:
    return parquet.read_row_group(group, use_threads=False)


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
  return record.make_key_tokens(
    **{name: values.pop(name) for name in _FIELDS},
    scores={name: values.pop(name) for name in score_names},
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
