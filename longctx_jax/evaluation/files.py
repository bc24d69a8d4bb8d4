"""What an evaluation writes and reads: results, documents, tokens, ledger."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from longctx_jax.evaluation.passes import Evaluated
from longctx_jax.evaluation.results import DocumentResult, LongPplResult
from longctx_jax.runtime import failures, settings, urls


def load_results(workdir: str | Path) -> list[dict[str, Any]]:
  """Reads `results/*.json` and, beside each, `documents/*.parquet`.

  Returns:
    One dict for each model, in the order of the file names: the fields of the
    JSON and `documents`, a dict of columns (empty where there is no file).

  Raises:
    ValueError: there are no results, or a file is no JSON object with a name.
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


def _load_result(files, root, path):
  try:
    result = json.loads(files.cat_file(path))
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f"{path} is no JSON: {error}. Evaluate again.") from error
  if not isinstance(result, dict) or "name" not in result:
    raise ValueError(f"{path} is no result: it has no field 'name'.")
  documents = f"{root}/documents/{Path(path).stem}.parquet"
  columns = {}
  if files.exists(documents):
    with failures.naming(documents):
      table = pq.read_table(documents, filesystem=files)
    columns = {
      name: table[name].to_numpy(zero_copy_only=False)
      for name in table.column_names
    }
  return result | {"documents": columns}


def write_result(workdir: str | pathlib.Path, result: dict[str, Any]) -> None:
  """Writes `workdir`/results/<name>.json; all numbers are finite or null."""
  path = _folder(workdir, "results") / f"{result['name']}.json"
  text = json.dumps(result, indent=2, allow_nan=False)
  _replace(path, lambda temporary: temporary.write_text(text + "\n"))


def has_numbers(workdir: str | pathlib.Path, name: str) -> bool:
  """Whether an earlier run of the model came to its end."""
  path = _folder(workdir, "results") / f"{name}.json"
  return path.exists() and json.loads(path.read_text())["ppl"] is not None


def write_documents(
  workdir: str | pathlib.Path, name: str, pooled: LongPplResult
) -> None:
  """Writes `workdir`/documents/<name>.parquet, a row per document."""
  rows = [
    dataclasses.asdict(document)
    | {
      "n_key_tokens": document.n_key_tokens,
      "n_key_regions": len(document.region_counts),
      "key_nll_sum": document.key_nll_sum,
      "key_coverage": document.key_coverage,
      "longppl": document.longppl,
      "ppl": document.ppl,
    }
    for document in pooled.documents
  ]
  for row in rows:
    row["region_nll_sums"] = list(row["region_nll_sums"])
    row["region_counts"] = list(row["region_counts"])
  path = _folder(workdir, "documents") / f"{name}.parquet"
  _replace(
    path,
    lambda temporary: pq.write_table(pa.Table.from_pylist(rows), temporary),
  )


def write_tokens(
  workdir: str | pathlib.Path, name: str, done: Evaluated
) -> None:
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
  _replace(path, lambda temporary: pq.write_table(table, temporary))


class Ledger:
  """Documents of one model that are done: a line each, appended at once.

  A run that was killed goes on after the last whole line.

  Attributes:
    done: doc_id -> result.
  """

  def __init__(self, path: pathlib.Path, made_with: dict[str, Any]):
    self.done: dict[str, DocumentResult] = {}
    self._path = path
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    if whole:
      settings.require_same(
        _comparable(json.loads(whole[0])), _comparable(made_with), where=path
      )
      for line in whole[1:]:
        fields = json.loads(line)
        fields["region_nll_sums"] = tuple(fields["region_nll_sums"])
        fields["region_counts"] = tuple(fields["region_counts"])
        result = DocumentResult(**fields)
        self.done[result.doc_id] = result
    else:
      whole = [json.dumps(made_with) + "\n"]
    _replace(path, lambda temporary: temporary.write_text("".join(whole)))
    self._file = path.open("a")

  def append(self, result: DocumentResult) -> None:
    """Adds a document; when it returns, the line survives a kill."""
    self._file.write(json.dumps(dataclasses.asdict(result)) + "\n")
    self._file.flush()
    os.fsync(self._file.fileno())
    self.done[result.doc_id] = result

  def close(self) -> None:
    """Closes the file; it stays, so that the same command does nothing more."""
    self._file.close()


def open_ledger(
  workdir: str | pathlib.Path,
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


def _comparable(made_with):
  """Settings by name, without the versions that key tokens were made with."""
  flat = settings.flatten(made_with)
  return {name: flat[name] for name in flat if ".versions." not in name}


def _folder(workdir, *parts):
  folder = pathlib.Path(workdir).joinpath(*parts)
  folder.mkdir(parents=True, exist_ok=True)
  return folder


def _replace(path, write):
  """A file under its name is whole: it is written beside and renamed."""
  temporary = path.with_name(path.name + ".tmp")
  write(temporary)
  os.replace(temporary, path)
