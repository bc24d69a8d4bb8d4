"""Data sets of tensorflow-datasets that were prepared before, row by row.

Reading needs no TensorFlow. PG-19 is prepared once, on any machine, by
`python scripts/data.py pg19`, with TensorFlow or without (see `prepared`). From
then on its source is tfds:pg19/train, its text column book_text and its id
column book_id, here and wherever the folder is copied to.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from longctx_jax.text import prepared
from longctx_jax.text.row_files import Row, RowFile

PREFIX = "tfds:"


def open_split(source: str) -> list[RowFile]:
  """Opens a split as files of rows.

  Args:
    source: "tfds:NAME/SPLIT", where NAME is looked for in TFDS_DATA_DIR or
      ~/tensorflow_datasets, or "tfds:FOLDER/SPLIT" with the folder that holds
      its dataset_info.json. SPLIT may be a part, as train[:100], of what
      tensorflow-datasets prepared.

  Raises:
    FileNotFoundError: it was not prepared; the message says how to.
    ValueError: tensorflow-datasets is not installed; another format than
      array_record; no such split.
  """
  name, _, split = source.removeprefix(PREFIX).rpartition("/")
  if prepared.is_whole(name):
    return prepared.open_split(name, split)
  _require_prepared(name, source)
  builder = _find(name, source)
  if builder.info.file_format.value != "array_record":
    raise ValueError(
      f"{source} was prepared as {builder.info.file_format.value}, which can't "
      "be read row by row: prepare it with file_format='array_record'"
    )
  if split.partition("[")[0] not in builder.info.splits:
    raise ValueError(
      f"{source}: no split {split!r}; there are "
      f"{', '.join(builder.info.splits) or 'none'}"
    )
  rows = builder.as_data_source(split=split)

  def read(start: int, stop: int, columns: tuple[str, ...]) -> Iterator[Row]:
    del columns
    return (_row(rows[i]) for i in range(start, stop))

  version = f"{builder.info.full_name} {len(rows)}"
  columns = tuple(builder.info.features)
  return [RowFile(source, columns, len(rows), read, version=version)]


def _require_prepared(name: str, source: str) -> None:
  """Raises FileNotFoundError, at once, for what a command of ours prepares."""
  place, command = prepared.home() / name, prepared.command(name)
  if command and not any(place.glob("*/dataset_info.json")):
    problem, does = "is not prepared", "does it once"
    if prepared.is_begun(name):
      problem, does = "is prepared in part", "goes on with it"
    raise FileNotFoundError(
      f"{source} {problem} in {place}: `{command}` {does}; or copy the folder "
      "of one who did (TFDS_DATA_DIR names another than "
      f"{prepared.home()})"
    )


def _find(name: str, source: str) -> Any:
  try:
    # Imported where used: few have it, and it takes seconds.
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise ValueError(
      f"{source} needs tensorflow-datasets: pip install tensorflow-datasets "
      f"importlib_resources ({error})"
    ) from error
  try:
    if pathlib.Path(name).expanduser().is_dir():
      return tfds.builder_from_directory(pathlib.Path(name).expanduser())
    builder = tfds.builder(name)
  except (tfds.core.DatasetNotFoundError, OSError) as error:
    raise FileNotFoundError(
      f"{source}: no prepared data set: {str(error).splitlines()[0]}"
    ) from error
  if not builder.is_prepared():
    raise FileNotFoundError(
      f"{source} is not prepared in {builder.data_path}: do it once, with "
      'TensorFlow (pip install tensorflow): python -c "import '
      f"tensorflow_datasets as tfds; tfds.builder({name!r}, "
      "file_format='array_record').download_and_prepare()\"; or copy the "
      "folder of one who did"
    )
  return builder


def _row(values: dict[str, Any]) -> Row:
  """A row in the types of JSON; bytes are texts."""
  try:
    return {name: _plain(value) for name, value in values.items()}
  except UnicodeDecodeError as error:
    return str(error)


def _plain(value: Any) -> Any:
  if isinstance(value, bytes):
    return value.decode()
  return value.item() if isinstance(value, np.generic) else value
