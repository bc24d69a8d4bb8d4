"""The paper's evaluation set: long government reports, as texts in one file.

The data set holds GovReport's test split as ids of the Llama-2 tokenizer. Of
the reports with at least 16,384 ids the first 50 are taken, cut at 32,767 ids
and decoded (paper section 3.2): the texts that the published slice files are
offsets into. Made once with a connection, the file works offline from then on.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longctx_jax.checkpoints import loading
from longctx_jax.runtime import files
from longctx_jax.text import row_files, tokenizer_files
from longctx_jax.text.tokenizer import TextTokenizer

DATA_SET = "emozilla/govreport-test-tokenized"
TOKENIZER = "NousResearch/Llama-2-7b-hf"
# run_ppl.sh of the reference: --dataset-min-tokens 16384 --samples 50.
MIN_IDS = 16_384
DOCUMENTS = 50
# perplexity.py of the reference: the first max_length - 1 ids of 32,768.
MAX_IDS = 32_767
IDS_COLUMN = "input_ids"
METADATA_KEY = b"longctx_jax.govreport"
_HUB_ID = re.compile(r"[\w-]+/[\w.-]+")


# Seconds. A request of huggingface_hub has no limit of its own, and some of its
# versions put another in front that takes three.
_TIMEOUT = 1.5


def select(
  rows: Iterable[np.ndarray], *, min_ids: int, documents: int
) -> list[tuple[int, np.ndarray]]:
  """The first rows that are long enough, with their numbers.

  Args:
    rows: token ids, in the order of the data set; read no further than needed.
    min_ids: ids that a row has at least.
    documents: rows to take.

  Raises:
    ValueError: fewer rows are long enough.
  """
  if documents < 1:
    raise ValueError(f"documents={documents}: take at least one")
  found, count = [], 0
  for count, ids in enumerate(rows, 1):
    if len(ids) >= min_ids:
      found.append((count - 1, ids))
    if len(found) == documents:
      return found
  raise ValueError(
    f"{len(found)} of {count} rows have at least {min_ids:,} ids, and "
    f"{documents} are asked for: is this the whole test split? Else lower "
    "--documents or --min_ids"
  )


def cut(ids: np.ndarray, *, max_ids: int) -> np.ndarray:
  """The first `max_ids` ids; ValueError unless that is at least one."""
  if max_ids < 1:
    raise ValueError(f"max_ids={max_ids}: keep at least one id")
  return ids[:max_ids]


def decode(ids: np.ndarray, tokenizer: TextTokenizer) -> str:
  """The text of ids: special tokens kept, spaces not cleaned up.

  Raises:
    ValueError: an id outside the vocabulary, or ids whose pieces are not the
      text (`OffsetsUnusable`), naming the first differing character.
  """
  return tokenizer.align(ids)[0]


def make(
  output: str | os.PathLike,
  *,
  source: str = "",
  tokenizer: str = TOKENIZER,
  min_ids: int = MIN_IDS,
  documents: int = DOCUMENTS,
  max_ids: int = MAX_IDS,
) -> pa.Table:
  """Writes the evaluation set as Parquet.

  A row per document: `doc_id` ("govreport/<row of the data set>"), `text`,
  `source_row`, `n_ids` (of the text, after the cut). How it was made is JSON
  in the file's metadata: data set, revision, SHA-256 of the files read,
  tokenizer and its fingerprint, limits.

  Args:
    output: the file to write; not there yet.
    source: the tokenized set as a Parquet or JSON-lines file, a folder or a
      glob; "" takes it from the hub, or the hub's cache.
    tokenizer: folder or hub id of the tokenizer that the ids came from.
    min_ids: ids that a report has at least.
    documents: reports to take.
    max_ids: ids kept of a report.

  Returns:
    What was written.

  Raises:
    FileNotFoundError: data or tokenizer can't be had; the message says what to
      copy where.
    ValueError: the output exists, a column is missing, too few long reports,
      ids that the tokenizer can't decode.
  """
  output = pathlib.Path(output)
  if output.exists():
    raise ValueError(
      f"{output} exists: remove it first, or name another --output"
    )
  if not output.absolute().parent.is_dir():
    raise ValueError(f"--output {output}: there is no such folder")
  files, revision = _open(source)
  decoder, decoder_revision = load_tokenizer(tokenizer)
  rows = select(_read_ids(files), min_ids=min_ids, documents=documents)
  facts = {
    "data_set": source or DATA_SET,
    "revision": revision,
    "sha256": {os.path.basename(file.path): _sha256(file) for file in files},
    "tokenizer": tokenizer,
    "tokenizer_revision": decoder_revision,
    "tokenizer_fingerprint": decoder.fingerprint,
    "min_ids": min_ids,
    "documents": documents,
    "max_ids": max_ids,
  }
  table = pa.Table.from_pylist(
    [_document(row, cut(ids, max_ids=max_ids), decoder) for row, ids in rows]
  ).replace_schema_metadata({METADATA_KEY: json.dumps(facts)})
  _write(table, output)
  return table


def load_tokenizer(name: str) -> tuple[TextTokenizer, str]:
  """A tokenizer and its commit, without the weights beside it on the hub.

  Args:
    name: a folder, a .gguf file or a hub id; "" is the commit of the first two.

  Raises:
    FileNotFoundError: it can't be had; the message says what to copy where.
  """
  if pathlib.Path(name).expanduser().exists() or not _HUB_ID.fullmatch(name):
    return loading.load_tokenizer(name), ""
  folder = _fetch(
    name,
    repo_type="model",
    patterns=(*tokenizer_files.PATTERNS, "config.json"),
    remedy="copy its tokenizer files (tokenizer.json, or tokenizer.model, and "
    "tokenizer_config.json) into a folder here and name that: "
    "--tokenizer FOLDER; where it is gated, accept its licence on its page and "
    "log in (hf auth login)",
  )
  return TextTokenizer.from_folder(folder), folder.name


def _document(
  row: int, ids: np.ndarray, tokenizer: TextTokenizer
) -> dict[str, Any]:
  try:
    text = decode(ids, tokenizer)
  except ValueError as error:
    raise ValueError(f"row {row} of the data set: {error}") from error
  return {
    "doc_id": f"govreport/{row}",
    "text": text,
    "source_row": row,
    "n_ids": len(ids),
  }


def _open(source: str) -> tuple[list[row_files.RowFile], str]:
  """The files of the tokenized set and, from the hub, their commit."""
  paths, revision = [source], ""
  if not source:
    folder = _fetch(
      DATA_SET,
      repo_type="dataset",
      patterns=("*.parquet",),
      remedy="copy its data/*.parquet (44 MB) here and name it: --source FILE; "
      "or copy a finished output file, which needs nothing else",
    )
    paths, revision = sorted(map(str, folder.rglob("*.parquet"))), folder.name
    if not paths:
      raise ValueError(f"{folder} holds no Parquet file of {DATA_SET}")
  files = []
  for path in paths:
    files += row_files.open_files(path, text_column="text")
  for file in files:
    if IDS_COLUMN not in (file.columns or ()):
      raise ValueError(
        f"{file.path} has no column {IDS_COLUMN!r}; it has: "
        f"{', '.join(file.columns or ()) or 'none'}. Name the tokenized set, "
        f"as {DATA_SET} is"
      )
  return files, revision


def _fetch(
  repo: str, *, repo_type: str, patterns: tuple[str, ...], remedy: str
) -> pathlib.Path:
  """Snapshot of a hub repository, of which the folder's name is the commit."""
  import huggingface_hub
  from huggingface_hub import constants

  revision = problem = None
  try:
    api = huggingface_hub.HfApi()
    info = api.repo_info(repo, repo_type=repo_type, timeout=_TIMEOUT)
    revision = info.sha
  except Exception as error:  # An HTTP client's, and that differs by version.
    problem = error
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(
        repo,
        repo_type=repo_type,
        revision=revision,
        allow_patterns=list(patterns),
        local_files_only=revision is None,
      )
    )
  except OSError as error:
    problem = problem or error
    raise FileNotFoundError(
      f"{repo} can't be had: the hub gives {type(problem).__name__}, and its "
      f"cache here ({constants.HF_HUB_CACHE}) doesn't hold it. "
      f"From a machine with a connection {remedy}"
    ) from problem


def _read_ids(files: list[row_files.RowFile]) -> Iterator[np.ndarray]:
  for file in files:
    rows = file.rows(0, file.count, (IDS_COLUMN,))
    for number, row in enumerate(rows):
      if isinstance(row, str):
        raise ValueError(f"{file.place(number)}: {row}")
      ids = np.asarray(row[IDS_COLUMN] if IDS_COLUMN in row else None)
      if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(
          f"{file.place(number)}: {IDS_COLUMN!r} holds no list of token ids"
        )
      yield ids


def _sha256(file: row_files.RowFile) -> str:
  with open(file.path, "rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def _write(table: pa.Table, output: pathlib.Path) -> None:
  with files.appearing(output) as file:
    pq.write_table(table, file, compression="zstd")
