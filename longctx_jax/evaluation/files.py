"""What an evaluation writes and reads: results, documents, tokens, ledger."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import glob
import hashlib
import json
import os
import re
from collections.abc import (
  Collection,
  Iterable,
  Iterator,
  Mapping,
  Sequence,
)
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import logging

from longctx_jax.evaluation import documents as documents_lib
from longctx_jax.evaluation import identity as identity_lib
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.passes import Evaluated
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.runtime import failures, settings, urls
from longctx_jax.runtime import files as runtime_files

# 2: lines name text and key tokens, and what they took.
_LEDGER_FORMAT = 2
# Of a file of tokens: what a person reads of the id, and what tells two apart.
_NAME_CHARS, _DIGEST_CHARS = 60, 16


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


def load_all(workdirs: Sequence[str | Path]) -> list[ModelResult]:
  """The results of several workdirs, as `load_results` returns those of one.

  A name that two of them hold gets the workdir in front, "W:name".

  Raises:
    ValueError: as `load_results`, or one workdir stands twice.
  """
  places = [str(workdir).rstrip("/") for workdir in workdirs]
  if twice := [p for p, n in collections.Counter(places).items() if n > 1]:
    raise ValueError(f"{twice[0]} is named twice: name each workdir once")
  found = [(one, r) for one in places for r in load_results(one)]
  uses = collections.Counter(result.name for _, result in found)
  return [
    result
    if uses[result.name] == 1
    else dataclasses.replace(result, name=f"{place}:{result.name}")
    for place, result in found
  ]


def _load_result(
  files: fsspec.AbstractFileSystem, root: str, path: str
) -> ModelResult:
  rows = []
  documents = f"{root}/documents/{Path(path).stem}.parquet"
  if files.exists(documents):
    with failures.reading(documents):
      rows = pq.read_table(documents, filesystem=files).to_pylist()
  result, stated = _read_result(files, path, rows)
  # Written before the hash was: nothing says whether the two belong together.
  if stated is not None and stated != result.documents_sha256:
    raise ValueError(
      f"{documents} is not the one that {path} was written with: a run ended "
      "between the two, or one was changed. Evaluate again with the command "
      "that made them: what is done is not done twice."
    )
  return result


def _read_result(
  files: fsspec.AbstractFileSystem,
  path: str,
  rows: Iterable[Mapping[str, Any]] = (),
) -> tuple[ModelResult, str | None]:
  """The result, and the hash of documents that it was written with."""
  try:
    fields = json.loads(files.cat_file(path))
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f"{path} is no JSON: {error}. Evaluate again.") from error
  try:
    result = ModelResult.from_json(fields, map(DocumentResult.from_json, rows))
  except ValueError as error:
    raise ValueError(
      f"{path} is no result: {error}. Evaluate again."
    ) from error
  return result, fields.get("documents_sha256")


def has_numbers(workdir: str | Path, name: str) -> bool:
  """Whether an earlier run of the model came to its end."""
  files, root = urls.open_file_system(workdir)
  path = f"{root}/results/{name}.json"
  return files.exists(path) and _read_result(files, path)[0].has_numbers


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


def tokens_path(workdir: str | Path, name: str, keys: KeyTokens) -> Path:
  """The file of a document's tokens: named by the document and its keys."""
  readable = re.sub(r"[^A-Za-z0-9._-]+", "-", keys.doc_id)[:_NAME_CHARS]
  identity = [keys.doc_id, keys.text_sha256, identity_lib.keys_sha256(keys)]
  digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
  folder = Path(workdir) / "tokens" / name
  return folder / f"{readable}-{digest[:_DIGEST_CHARS]}.parquet"


def write_tokens(workdir: str | Path, name: str, done: Evaluated) -> None:
  """Writes `workdir`/tokens/<name>/<document>.parquet, a row per target.

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
  path = tokens_path(workdir, name, keys)
  path.parent.mkdir(parents=True, exist_ok=True)
  with runtime_files.appearing(path) as file:
    pq.write_table(table, file)


def remove_other_tokens(
  workdir: str | Path, name: str, kept: Collection[Path]
) -> int:
  """Removes files of tokens that are not those of a result; how many."""
  folder = Path(workdir) / "tokens" / name
  others = set(folder.glob("*.parquet")) - set(kept)
  for path in others:
    path.unlink()
  return len(others)


@dataclasses.dataclass(frozen=True)
class Line:
  """A document that is done, and what that took.

  Attributes:
    document: its numbers.
    reused: whether the log-probs were the evaluator's own.
    seconds: since the document before, compilation excluded.
    tokens: targets that were scored in them.
    fed: positions that went through the model, padding included.
    needed: the same without padding.
  """

  document: DocumentResult
  reused: bool = False
  seconds: float = 0.0
  tokens: int = 0
  fed: int = 0
  needed: int = 0

  @classmethod
  def from_json(cls, fields: Mapping[str, Any]) -> Line:
    """Reads what `to_json` gives."""
    spent = documents_lib.known_fields(cls, fields, required=())
    return cls(DocumentResult.from_json(fields), **spent)

  def to_json(self) -> dict[str, Any]:
    """The fields of the document, and what it took beside them."""
    spent = dataclasses.asdict(self)
    return spent.pop("document") | spent


class Ledger:
  """Documents of one model that are done: a line each, appended at once.

  A run that was killed goes on after the last whole line.

  Attributes:
    done: `DocumentResult.identity` -> line.
  """

  def __init__(self, path: Path, made_with: Mapping[str, Any]):
    self.done: dict[tuple[str, str, str], Line] = {}
    made_with = json.loads(
      json.dumps({"format": _LEDGER_FORMAT, **made_with}, allow_nan=False)
    )
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith("\n")]
    read = [_read_line(path, i + 1, line) for i, line in enumerate(whole)]
    if read:
      _require_same_run(read[0], made_with, path)
    if read and read[0].get("format") == _LEDGER_FORMAT:
      for fields in read[1:]:
        line = Line.from_json(fields)
        self.done[line.document.identity] = line
    else:
      if read:
        logging.info(
          "%s does not say of which texts its %d documents are: they are "
          "evaluated again",
          path,
          len(read) - 1,
        )
      whole = [json.dumps(made_with) + "\n"]
    runtime_files.write_text(path, "".join(whole))
    self._file = path.open("a")

  def find(self, keys: KeyTokens) -> Line | None:
    """The line of a document under these key tokens; None where there is none.

    Its index is that of the key tokens: a corpus may have grown at its front.
    """
    identity = keys.doc_id, keys.text_sha256, identity_lib.keys_sha256(keys)
    line = self.done.get(identity)
    if line is None:
      return None
    document = dataclasses.replace(line.document, doc_index=keys.doc_index)
    return dataclasses.replace(line, document=document)

  def append(self, line: Line) -> None:
    """Adds a document; when it returns, the line survives a kill."""
    text = json.dumps(line.to_json(), allow_nan=False)
    self._file.write(text + "\n")
    self._file.flush()
    os.fsync(self._file.fileno())
    self.done[line.document.identity] = line

  def close(self) -> None:
    """Closes the file; it stays, so that the same command does nothing more."""
    self._file.close()


@contextlib.contextmanager
def open_ledger(
  workdir: str | Path,
  name: str,
  made_with: Mapping[str, Any],
  *,
  overwrite: bool,
) -> Iterator[Ledger]:
  """Opens `workdir`/documents/<name>.jsonl, or goes on with it.

  Args:
    workdir: of the run; locked by the caller, see `locked`.
    name: of the model.
    made_with: what its numbers belong to, beside the documents: `model` and
      `keys` are compared as `identity` says, the rest as it is.
    overwrite: start anew.

  Raises:
    settings.OtherSettings: it was made with others; each field that differs
      is named. `overwrite` starts anew.
    ValueError: a line is damaged.
  """
  path = _folder(workdir, "documents") / f"{name}.jsonl"
  if overwrite:
    path.unlink(missing_ok=True)
  with contextlib.closing(Ledger(path, made_with)) as ledger:
    yield ledger


@contextlib.contextmanager
def locked(workdir: str | Path, name: str) -> Iterator[None]:
  """Holds what a model's files are written under; a killed run's rests go.

  Raises:
    runtime.files.InUse: another process evaluates a model of this name here.
  """
  path = _folder(workdir, "documents") / f".{name}.lock"
  with runtime_files.locked(path, doing=f"evaluating {name!r} into"):
    stem = glob.escape(name)
    for folder, pattern in (
      ("documents", f"{stem}.jsonl"),
      ("documents", f"{stem}.parquet"),
      ("results", f"{stem}.json"),
      (f"tokens/{name}", "*"),
      ("log_probs", f"{stem}.parquet"),
    ):
      runtime_files.remove_leftovers(Path(workdir) / folder, pattern)
    yield


def _read_line(path: Path, number: int, line: str) -> dict[str, Any]:
  try:
    return json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(
      f"{path}, line {number}, is damaged: {error}. Remove the line, and its "
      "document is evaluated again; or start anew with --overwrite."
    ) from error


def _require_same_run(
  stored: Mapping[str, Any], current: Mapping[str, Any], path: Path
) -> None:
  was, now = _comparable(stored), _comparable(current)
  if "format" not in stored:
    # It stated the limit asked for, not the ids read, and no numerics.
    now = {n: v for n, v in now.items() if n in was and n != "max_length"}
    was = {name: was[name] for name in now}
  settings.require_same(was, now, where=path)


def _comparable(made_with: Mapping[str, Any]) -> dict[str, Any]:
  rest = {n: v for n, v in made_with.items() if n not in ("model", "keys")}
  return {
    **settings.flatten(rest),
    **identity_lib.of_model(made_with["model"]),
    **identity_lib.of_keys(made_with["keys"]),
  }


def _folder(workdir: str | Path, *parts: str) -> Path:
  folder = Path(workdir).joinpath(*parts)
  folder.mkdir(parents=True, exist_ok=True)
  return folder
