"""PG-19, the paper's training set: 28,602 books from before 1919.

Two ways to the same books, in the columns that tensorflow-datasets gives them.
Where TensorFlow is installed, tensorflow-datasets prepares them in a process of
its own, which begins anew where it is killed. Else they come as Parquet from
the hub, from the copy that the reference trained on: a file at a time, so that
a run that is killed goes on with the file that it had come to.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from absl import logging

from longctx_jax.checkpoints import hub
from longctx_jax.runtime import failures, files, progress
from longctx_jax.text import corpus, prepared

NAME = "pg19"
DATA_SET = "emozilla/pg19"
WAYS = ("", "tfds", "hub")
_TEXT, _ID = "book_text", "book_id"
# Of the hub, by the names of tensorflow-datasets.
_COLUMNS = {
  "text": _TEXT,
  "short_book_title": "book_title",
  "publication_date": "publication_date",
  "url": "book_link",
}
_FILE = re.compile(r"(?:.*/)?(train|validation|test)-[^/]*\.parquet")
_PLAN = "plan.json"
_SCRATCH = "downloads"
# What tensorflow-datasets reads, and writes.
_TFDS_BYTES = 11.5e9
_BATCH_ROWS = 64
_PREPARE = (
  "import sys, tensorflow_datasets as tfds; tfds.builder({name!r}, "
  "data_dir=sys.argv[1], file_format='array_record').download_and_prepare()"
)


def prepare(*, way: str = "") -> int:
  """Prepares PG-19 where `tfds:pg19/train` finds it; goes on where it stopped.

  Args:
    way: "tfds", "hub", or "" for the first of these that can be.

  Returns:
    Books of the training split.

  Raises:
    FileNotFoundError: the hub does not have it, or does not answer.
    OSError: a disk without the space; the message has the numbers.
    ValueError: another way; TensorFlow is missing, or failed, and was asked
      for; the hub's files are not of the kind that is known.
    files.InUse: another process prepares it.
  """
  if way not in WAYS:
    raise ValueError(f"source={way!r} is not one of 'tfds', 'hub'")
  with files.locked(
    prepared.home() / f".{NAME}.lock", doing="preparing PG-19 in"
  ):
    if not _is_there():
      has_tensorflow = importlib.util.find_spec("tensorflow") is not None
      if way == "tfds" and not has_tensorflow:
        raise ValueError(
          "TensorFlow is not installed: pip install tensorflow; or take the "
          "same books from the hub (--source hub)"
        )
      tried = way == "tfds" or (
        not way and has_tensorflow and not prepared.is_begun(NAME)
      )
      done = tried and _with_tensorflow()
      if way == "tfds" and not done:
        raise ValueError(
          "tensorflow-datasets could not prepare PG-19, it says why above; "
          "the hub has the same books (--source hub)"
        )
      if not done:
        _from_hub(prepared.folder(NAME))
    return _open().count


def _open() -> corpus.Corpus:
  return corpus.open_corpus(
    f"tfds:{NAME}/train", text_column=_TEXT, id_column=_ID
  )


def _is_there() -> bool:
  try:
    _open()
  except FileNotFoundError:
    return False
  logging.info("%s is prepared already", NAME)
  return True


def _with_tensorflow() -> bool:
  """Whether tensorflow-datasets, in a process of its own, prepared it."""
  home = prepared.home()
  _require_space(home, _TFDS_BYTES)
  logging.info(
    "pg19: %.1f GB by tensorflow-datasets into %s; where it is killed it "
    "begins anew",
    _TFDS_BYTES / 1e9,
    home / NAME,
  )
  done = subprocess.run(
    [sys.executable, "-c", _PREPARE.format(name=NAME), str(home)], check=False
  )
  if done.returncode:
    logging.warning("tensorflow-datasets ended with status %d", done.returncode)
  return not done.returncode


def _from_hub(folder: pathlib.Path) -> None:
  """Downloads and renames the columns of a file at a time."""
  plan = _read_plan(folder)
  left = {
    name: size
    for name, size in plan["files"].items()
    if not (folder / _target(name)).is_file()
  }
  # A file stands twice while it is written anew.
  _require_space(folder, sum(left.values()) + max(left.values(), default=0))
  total = sum(plan["files"].values())
  logging.info(
    "pg19: %d of %d files, %.1f of %.1f GB, from %s (%s) into %s",
    len(left),
    len(plan["files"]),
    sum(left.values()) / 1e9,
    total / 1e9,
    DATA_SET,
    plan["revision"][:7],
    folder,
  )
  files.remove_leftovers(folder, "*")
  start, unread = time.monotonic(), sum(left.values())
  to_come = unread
  for name, size in left.items():
    source = hub.download(
      DATA_SET, name, revision=plan["revision"], folder=folder / _SCRATCH
    )
    _rewrite(source, folder / _target(name))
    source.unlink()
    to_come -= size
    seconds = time.monotonic() - start
    rate = (unread - to_come) / max(seconds, 1e-9)
    logging.info(
      "pg19: %s | %.1f of %.1f GB | %.0f MB/s | %s left",
      _target(name),
      (total - to_come) / 1e9,
      total / 1e9,
      rate / 1e6,
      progress.clock_text(to_come / max(rate, 1e-9)),
    )
  splits: dict[str, list[str]] = {}
  for name in sorted(plan["files"]):
    splits.setdefault(_FILE.fullmatch(name)[1], []).append(_target(name))
  prepared.finish(
    NAME, splits, {"data_set": DATA_SET, "revision": plan["revision"]}
  )


def _read_plan(folder: pathlib.Path) -> dict[str, Any]:
  """Files and commit; those of the first time, so that books don't mix."""
  path = folder / _PLAN
  if not path.is_file():
    commit, sizes = hub.list_data(DATA_SET)
    known = {name: n for name, n in sizes.items() if _FILE.fullmatch(name)}
    if not any(_FILE.fullmatch(name)[1] == "train" for name in known):
      raise ValueError(
        f"{DATA_SET} holds no train-*.parquet; it has: "
        f"{', '.join(sorted(sizes)[:5]) or 'nothing'}"
      )
    folder.mkdir(parents=True, exist_ok=True)
    plan = {"revision": commit, "files": known}
    files.write_text(path, json.dumps(plan, indent=2) + "\n")
  return json.loads(path.read_text())


def _target(name: str) -> str:
  return name.rpartition("/")[2]


def _require_space(folder: pathlib.Path, needed: float) -> None:
  _, free = files.disk_of(folder)
  if free < needed:
    raise OSError(
      f"PG-19 needs {needed / 1e9:.1f} GB more in {folder}, whose disk has "
      f"{free / 1e9:.1f} GB free: free some, or let TFDS_DATA_DIR name a "
      "folder of a larger one, here and in the training"
    )


def _rewrite(source: pathlib.Path, target: pathlib.Path) -> None:
  """A file under the columns of tensorflow-datasets, texts stripped as there.

  Raises:
    ValueError: a damaged file, other columns, a link without a number.
  """
  with (
    failures.reading(source),
    files.appearing(target) as file,
    pq.ParquetFile(source, pre_buffer=False) as parquet,
  ):
    missing = sorted(set(_COLUMNS) - set(parquet.schema_arrow.names))
    if missing:
      raise ValueError(f"{source} has no column {', '.join(missing)}")
    writer = None
    for batch in parquet.iter_batches(
      _BATCH_ROWS, columns=list(_COLUMNS), use_threads=False
    ):
      table = _renamed(pa.Table.from_batches([batch]), source)
      writer = writer or pq.ParquetWriter(
        file, table.schema, compression="zstd"
      )
      writer.write_table(table)
    if writer is None:
      raise ValueError(f"{source} holds no book")
    writer.close()


def _renamed(table: pa.Table, source: pathlib.Path) -> pa.Table:
  number = pc.struct_field(
    pc.extract_regex(table["url"], r"(?P<number>\d+)/?$"), "number"
  )
  if number.null_count:
    row = pc.index(pc.is_null(number), True).as_py()
    raise ValueError(
      f"{source}: {table['url'][row].as_py()!r} ends in no number of a book"
    )
  columns = {
    renamed: table[name].cast(pa.string()) for name, renamed in _COLUMNS.items()
  }
  columns[_TEXT] = pc.utf8_trim_whitespace(columns[_TEXT])
  return pa.table({_ID: number.cast(pa.int32())} | columns)
