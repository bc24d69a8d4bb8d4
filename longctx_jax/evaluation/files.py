"""What an evaluation writes and reads: results, documents, tokens, ledger."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.passes import Evaluated
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.runtime import failures, settings, urls
from longctx_jax.runtime import files as runtime_files


def load_results(workdir: str | Path) -> list[ModelResult]:
  """Reads `results/*.json` and, beside each, `documents/*.parquet`.

  Returns:
    The results in the order of the file names; without documents where they
    have no file.

  Raises:
    ValueError: there are no results, or a file is none.
  """
  files, root = urls.open_file_system(workdir)
  with urls.reaching(workdir):
    paths = sorted(files.glob(f"{root}/results/*.json"))
  if not paths:
    raise ValueError(
      f"no results in {workdir}/results: run scripts/eval.py with this workdir "
      "first."
    )
  return [_load_result(files, root, path) for path in paths]


def _load_result(
  files: fsspec.AbstractFileSystem, root: str, path: str
) -> ModelResult:
  try:
    fields = json.loads(files.cat_file(path))
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f"{path} is no JSON: {error}. Evaluate again.") from error
  rows = []
  documents = f"{root}/documents/{Path(path).stem}.parquet"
  if files.exists(documents):
    with failures.reading(documents):
      rows = pq.read_table(documents, filesystem=files).to_pylist()
  try:
    return ModelResult.from_json(fields, map(DocumentResult.from_json, rows))
  except ValueError as error:
    raise ValueError(
      f"{path} is no result: {error}. Evaluate again."
    ) from error


def has_numbers(workdir: str | Path, name: str) -> bool:
  """Whether an earlier run of the model came to its end."""
  files, root = urls.open_file_system(workdir)
  path = f"{root}/results/{name}.json"
  return files.exists(path) and _load_result(files, root, path).has_numbers


def write_result(workdir: str | Path, result: ModelResult) -> None:
  """Writes documents/<name>.parquet, a row per document, and the JSON.

  A model that failed has no documents, and leaves those that are there.
  """
  if result.documents:
    rows = [document.to_row() for document in result.documents]
    path = _folder(workdir, "documents") / f"{result.name}.parquet"
    with runtime_files.appearing(path) as file:
      pq.write_table(pa.Table.from_pylist(rows), file)
  text = json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
  path = _folder(workdir, "results") / f"{result.name}.json"
  runtime_files.write_text(path, text)


def write_tokens(workdir: str | Path, name: str, done: Evaluated) -> None:
  """Writes `workdir`/tokens/<name>/<doc_index>.parquet, a row per target.

  `nll_short` is the evaluator's, where it read the same tokens; else null.
  """
  keys, prepared = done.keys, done.prepared
  count = len(done.log_probs)
  short = np.full(count, np.nan)
  if keys.offsets is not None and np.array_equal(
    keys.offsets, prepared.offsets
  ):
    short = -keys.short_log_probs.astype(np.float64)
  table = pa.table(
    {
      "doc_id": [keys.doc_id] * count,
      "position": np.arange(count),
      "token_start": prepared.offsets[:, 0],
      "token_end": prepared.offsets[:, 1],
      "nll_long": -np.asarray(done.log_probs, np.float64),
      "nll_short": pa.array(short, from_pandas=True),
      "key": done.key_mask,
    }
  )
  path = _folder(workdir, "tokens", name) / f"{keys.doc_index:08d}.parquet"
  with runtime_files.appearing(path) as file:
    pq.write_table(table, file)


class Ledger:
  """Documents of one model that are done: a line each, appended at once.

  A run that was killed goes on after the last whole line.

  Attributes:
    done: doc_id -> result.
  """

  def __init__(self, path: Path, made_with: dict[str, Any]):
    self.done: dict[str, DocumentResult] = {}
    self._path = path
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if whole:
      settings.require_same(
        _comparable(json.loads(whole[0])), _comparable(made_with), where=path
      )
      for line in whole[1:]:
        result = DocumentResult.from_json(json.loads(line))
        self.done[result.doc_id] = result
    else:
      whole = [json.dumps(made_with) + "\n"]
    runtime_files.write_text(path, "".join(whole))
    self._file = path.open("a")

  def append(self, result: DocumentResult) -> None:
    """Adds a document; when it returns, the line survives a kill."""
    self._file.write(json.dumps(result.to_json()) + "\n")
    self._file.flush()
    os.fsync(self._file.fileno())
    self.done[result.doc_id] = result

  def close(self) -> None:
    """Closes the file; it stays, so that the same command does nothing more."""
    self._file.close()


def open_ledger(
  workdir: str | Path,
  name: str,
  made_with: dict[str, Any],
  *,
  overwrite: bool,
) -> Ledger:
  """Opens `workdir`/documents/<name>.jsonl, or goes on with it.

  Raises:
    settings.OtherSettings: it was made with others; each field that differs
      is named. `overwrite` starts anew.
  """
  path = _folder(workdir, "documents") / f"{name}.jsonl"
  if overwrite:
    path.unlink(missing_ok=True)
  return Ledger(path, json.loads(json.dumps(made_with, allow_nan=False)))


def _comparable(made_with: Mapping[str, Any]) -> dict[str, Any]:
  """Settings by name, without the versions that key tokens were made with."""
  flat = settings.flatten(made_with)
  return {name: flat[name] for name in flat if ".versions." not in name}


def _folder(workdir: str | Path, *parts: str) -> Path:
  folder = Path(workdir).joinpath(*parts)
  folder.mkdir(parents=True, exist_ok=True)
  return folder
