"""What a model gave to each target, kept: one file a model, a row a document.

The columns are those that `--log_probs` reads, so that any threshold can be
tried afterwards without a model, and the file can be evaluated elsewhere. While
a model runs, a document is a file of its own, written before the ledger says
that it is done; at the end they become one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from longctx_jax.evaluation import identity as identity_lib
from longctx_jax.evaluation.passes import Evaluated
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.runtime import failures, files

# At most, of a target: two offsets, delta-coded, and a float32.
BYTES_PER_TARGET = 8
_LISTS = {
  "token_start": pa.int32(),
  "token_end": pa.int32(),
  "log_prob": pa.float32(),
}
_SCHEMA = pa.schema(
  [("doc_id", pa.string()), ("text_sha256", pa.string())]
  + [("n_chars", pa.int64())]
  + [(name, pa.list_(type_)) for name, type_ in _LISTS.items()]
)
_ENCODINGS = {
  f"{name}.list.element": (
    "BYTE_STREAM_SPLIT" if name == "log_prob" else "DELTA_BINARY_PACKED"
  )
  for name in _LISTS
}
_FACTS = b"longctx_jax.model"
_IDENTITY = ["doc_id", "text_sha256", "n_chars"]
_DIGEST_CHARS = 24
_GROUP_TARGETS = 1 << 18

# Id and hash of a document, and the characters of it that were to be read.
Identity = tuple[str, str, int]


@dataclasses.dataclass(frozen=True)
class Targets:
  """The targets of one document under one model.

  Attributes:
    doc_id: id of the document.
    text_sha256: hash of its text; "" where the file does not say.
    offsets: characters of each target [T, 2].
    log_probs: log P(target | full context) [T], nats.
  """

  doc_id: str
  text_sha256: str
  offsets: Int[np.ndarray, "T 2"]
  log_probs: Float[np.ndarray, " T"]


def path_of(workdir: str | pathlib.Path, name: str) -> pathlib.Path:
  """The file of a model."""
  return pathlib.Path(workdir) / "log_probs" / f"{name}.parquet"


def facts_of(
  model: Mapping[str, Any], max_length: int | None
) -> dict[str, Any]:
  """What log-probs depend on beside the documents, as JSON."""
  return {"model": identity_lib.of_model(model), "max_length": max_length}


def stored_facts(path: str | pathlib.Path) -> dict[str, Any] | None:
  """See `facts_of`; None where the file does not say, as another engine's."""
  with failures.reading(path):
    metadata = pq.read_schema(path).metadata or {}
  return json.loads(metadata[_FACTS]) if _FACTS in metadata else None


def identity_of(keys: KeyTokens) -> Identity:
  """What a row belongs to, beside the model: thresholds are no part of it."""
  return keys.doc_id, keys.text_sha256, keys.n_chars


class Keeper:
  """Keeps the log-probs of a model while it runs; under the model's lock."""

  def __init__(
    self, workdir: str | pathlib.Path, name: str, facts: Mapping[str, Any]
  ):
    """Takes what the log-probs depend on beside the documents: `facts_of`."""
    self._facts = json.dumps(facts, sort_keys=True)
    self._path = path_of(workdir, name)
    self._pieces = self._path.with_suffix(".pieces")

  def start_anew(self) -> None:
    """Forgets what is kept: it is of another run."""
    self._path.unlink(missing_ok=True)
    shutil.rmtree(self._pieces, ignore_errors=True)

  def add(self, done: Evaluated) -> None:
    """Keeps a document; when it returns, that survives a kill."""
    self._pieces.mkdir(parents=True, exist_ok=True)
    arrays = (*done.prepared.offsets.T, done.log_probs)
    identity = identity_of(done.keys)
    columns = [[value] for value in identity] + [[array] for array in arrays]
    table = pa.table(columns, schema=_SCHEMA)
    with files.appearing(self._piece(identity)) as file:
      pq.write_table(table, file)

  def finish(self, wanted: Sequence[Identity]) -> tuple[int, int]:
    """Makes one file of the documents of a result, in their order.

    Args:
      wanted: the documents; of those that were not scored, and of runs that
        kept nothing, there is no row.

    Returns:
      Rows and bytes of the file.
    """
    files.remove_leftovers(self._pieces, "*")
    kept = _index(self._path)
    pieces = [one for one in wanted if self._piece(one).exists()]
    rows = [one for one in wanted if one in kept or one in set(pieces)]
    if not rows:
      self.start_anew()
      return 0, 0
    if pieces or rows != list(kept):
      with contextlib.ExitStack() as stack:
        former = _open_rows(self._path, kept, stack)
        with files.appearing(self._path) as file:
          _write(
            file,
            self._facts,
            (
              pq.read_table(self._piece(one))
              if self._piece(one).exists()
              else former(one)
              for one in rows
            ),
          )
    shutil.rmtree(self._pieces, ignore_errors=True)
    return len(rows), self._path.stat().st_size

  def _piece(self, identity: Identity) -> pathlib.Path:
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return self._pieces / f"{digest[:_DIGEST_CHARS]}.parquet"


def read(path: str | pathlib.Path) -> Iterator[Targets]:
  """The rows of such a file, or of one for `--log_probs`, one at a time."""
  with failures.reading(path), pq.ParquetFile(path) as parquet:
    named = set(parquet.schema_arrow.names)
    columns = [n for n in ("doc_id", "text_sha256", *_LISTS) if n in named]
    for batch in parquet.iter_batches(1, columns=columns, use_threads=False):
      (row,) = batch.select([c for c in columns if c not in _LISTS]).to_pylist()
      start, end, log_prob = (
        batch[name][0].values
        if batch[name][0].is_valid
        else pa.array([], type_)
        for name, type_ in _LISTS.items()
      )
      offsets = np.stack([np.asarray(start), np.asarray(end)], axis=1)
      yield Targets(
        str(row["doc_id"]),
        row["text_sha256"] if "text_sha256" in row else "",
        offsets.astype(np.int64),
        np.asarray(log_prob, np.float64),
      )


def _index(path: pathlib.Path) -> dict[Identity, tuple[int, int]]:
  """Identity -> (row group, row) of a file; none where there is none."""
  if not path.exists():
    return {}
  found = {}
  with failures.reading(path), pq.ParquetFile(path) as parquet:
    for group in range(parquet.num_row_groups):
      table = parquet.read_row_group(group, columns=_IDENTITY)
      for row, one in enumerate(table.to_pylist()):
        found[tuple(one[name] for name in _IDENTITY)] = group, row
  return found


def _open_rows(path, places, stack):
  """Identity -> its row as a table; a row group at a time is in memory."""
  if not places:
    return None
  parquet = stack.enter_context(pq.ParquetFile(path))
  read_group = functools.lru_cache(1)(parquet.read_row_group)

  def row(identity):
    group, place = places[identity]
    return read_group(group).slice(place, 1)

  return row


def _write(file, facts, rows):
  """Writes rows in groups, of which one at a time is in memory."""
  with pq.ParquetWriter(
    file,
    _SCHEMA.with_metadata({_FACTS: facts}),
    compression="zstd",
    use_dictionary=False,
    column_encoding=_ENCODINGS,
    write_statistics=_IDENTITY,
    write_page_checksum=True,
  ) as writer:
    group, count = [], 0
    for row in rows:
      group.append(row)
      count += len(row["log_prob"][0])
      if count >= _GROUP_TARGETS:
        writer.write_table(pa.concat_tables(group))
        group, count = [], 0
    if group:
      writer.write_table(pa.concat_tables(group))
