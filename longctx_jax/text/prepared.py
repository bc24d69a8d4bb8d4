"""Data sets that scripts/data.py prepared: Parquet, a file or more a split.

They lie where tensorflow-datasets keeps its own, HOME/NAME/parquet/, under the
columns that it gives them, so that a source is "tfds:NAME/SPLIT" whoever
prepared it. The manifest is written last: without one nothing is read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from longctx_jax.runtime import files, foreign_files
from longctx_jax.text import row_files
from longctx_jax.text.row_files import RowFile

_MANIFEST = "manifest.json"
# What is prepared so, by a command of its own.
_COMMANDS = {"pg19": "python scripts/data.py pg19"}


def home() -> pathlib.Path:
  """Where data sets lie: TFDS_DATA_DIR, else ~/tensorflow_datasets."""
  named = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  return pathlib.Path(named).expanduser()


def folder(name: str) -> pathlib.Path:
  """Where the files of a data set lie, or are to lie."""
  return home() / name / "parquet"


def command(name: str) -> str:
  """What prepares a data set; "" where nothing here does."""
  return _COMMANDS[name] if name in _COMMANDS else ""


def is_whole(name: str) -> bool:
  """Whether a data set is prepared to its end."""
  return name in _COMMANDS and (folder(name) / _MANIFEST).is_file()


def is_begun(name: str) -> bool:
  """Whether a preparation was stopped on its way."""
  return not is_whole(name) and folder(name).is_dir()


def finish(
  name: str, splits: Mapping[str, list[str]], facts: Mapping[str, Any]
) -> None:
  """Declares a data set whole.

  Args:
    name: of the data set.
    splits: split -> names of its files, in order; they are there.
    facts: where it came from, as JSON.
  """
  manifest = {"splits": dict(splits), **facts}
  text = json.dumps(manifest, indent=2) + "\n"
  files.write_text(folder(name) / _MANIFEST, text)


def open_split(name: str, split: str) -> list[RowFile]:
  """The files of a split of a data set that is whole.

  Raises:
    FileNotFoundError: a file that was taken away.
    ValueError: no such split.
  """
  splits = foreign_files.read_json(folder(name) / _MANIFEST)["splits"]
  if split not in splits:
    part = "; rows are taken by row_range (--row_range a:b)" * ("[" in split)
    raise ValueError(
      f"tfds:{name}/{split}: no split {split!r}; there are "
      f"{', '.join(splits)}{part}"
    )
  found = []
  for file in splits[split]:
    (one,) = row_files.open_files(str(folder(name) / file), text_column="")
    found.append(dataclasses.replace(one, name=f"{name}/{file}"))
  return found
