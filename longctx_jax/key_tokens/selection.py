"""The documents of a corpus that need their context most, with their scores."""

from __future__ import annotations

import collections
import dataclasses
import fractions
import functools
import math
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.parts import StoredRow
from longctx_jax.runtime import files
from longctx_jax.text.corpus import Corpus

_TEXT = "text"
_CACHED_GROUPS = 32
# In memory: some dozen long documents.
_GROUP_CHARS = 1 << 24


@dataclasses.dataclass(frozen=True)
class Selected:
  """What a selection took.

  Attributes:
    kept: documents written.
    ranked: documents that have the score.
    unranked: reason -> documents without it.
    lowest: smallest score that was kept.
    buckets: smallest number of targets of a bucket -> (kept, ranked).
  """

  kept: int
  ranked: int
  unranked: Mapping[str, int]
  lowest: float
  buckets: Mapping[int, tuple[int, int]]

  def __str__(self) -> str:
    unranked = ", ".join(f"{n:,} {why}" for why, n in self.unranked.items())
    lines = [
      f"kept {self.kept:,} of {self.ranked:,} documents, down to "
      f"{self.lowest:.4g}; not ranked: {unranked or 'none'}"
    ]
    if len(self.buckets) > 1:
      lines += [
        f"  {low:,} to {2 * low - 1:,} targets: {kept:,} of {ranked:,}"
        for low, (kept, ranked) in sorted(self.buckets.items())
      ]
    return "\n".join(lines)


def select(
  workdir: str | os.PathLike,
  corpus: Corpus,
  output: str | os.PathLike,
  *,
  top: str = "20%",
  by: str = "key_token_ratio",
  within_length_buckets: bool = False,
) -> Selected:
  """Writes the documents with the highest scores, and all their scores.

  ceil(share x n) of n ranked documents are kept, ties in the order of the
  corpus; of each bucket [2^k, 2^(k + 1)) of targets where that is asked for,
  since long documents have other scores than short ones. The file is Parquet:
  the text, and the columns of the store but those of its targets. Documents
  are read one at a time, in the order of the corpus.

  Args:
    workdir: that was scored, or its store.
    corpus: what was scored, with its texts.
    output: the file to write; not there yet.
    top: a share, as "20%", or a number of documents.
    by: a column of numbers.
    within_length_buckets: the share of each bucket, not of all.

  Raises:
    ValueError: a column that is not there or no number, a share that can't be,
      a document that is not in the corpus or has another text there, or an
      output that exists.
    FileNotFoundError: no store there.
  """
  output = pathlib.Path(output)
  if not output.name or output.exists():
    problem = "exists: remove it first" if output.name else "is no file"
    raise ValueError(f"--output {output} {problem}, or name another")
  share = _share(top)
  if within_length_buckets and not isinstance(share, fractions.Fraction):
    raise ValueError(
      f"--top {top} is a number of documents: a share goes with "
      "--within_length_buckets, as --top 20%"
    )
  store = store_lib.read_store(workdir)
  if store.manifest.chunk_len:
    raise ValueError(
      f"{workdir} holds chunks for training (--chunk_len), no documents: score "
      "them whole to select among them"
    )
  rows = folder_lib.read_rows(store_lib.folder_of(workdir)).by_id
  _require_column(rows, by)
  read = functools.lru_cache(_CACHED_GROUPS)(parts_lib.read_scalars)
  by_bucket, unranked = _rank(rows, read, by, within_length_buckets)
  taken = {
    low: sorted(ranked, key=lambda one: -one[0])[: _count(share, len(ranked))]
    for low, ranked in by_bucket.items()
  }
  kept = {row.doc_id: row for rows in taken.values() for _, row in rows}
  if not kept:
    raise ValueError(f"{workdir}: no document has a number in {by}")
  _write(output, corpus, kept, read)
  buckets = {low: (len(taken[low]), len(by_bucket[low])) for low in taken}
  return Selected(
    kept=len(kept),
    ranked=sum(ranked for _, ranked in buckets.values()),
    unranked=unranked,
    lowest=min(value for rows in taken.values() for value, _ in rows),
    buckets=buckets,
  )


def _share(top: str) -> fractions.Fraction | int:
  """Reads "20%" as a fraction, "1000" as a number."""
  if match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", top):
    share = fractions.Fraction(match[1]) / 100
    if 0 < share <= 1:
      return share
  elif re.fullmatch(r"[1-9]\d*", top):
    return int(top)
  raise ValueError(
    f"--top {top!r} is neither a share, as 20%, nor a number of documents"
  )


def _count(share: fractions.Fraction | int, ranked: int) -> int:
  is_share = isinstance(share, fractions.Fraction)
  return math.ceil(share * ranked) if is_share else share


def _require_column(rows: Mapping[str, StoredRow], by: str) -> None:
  for path in {row.path for row in rows.values()}:
    schema = parts_lib.scalar_schema(path)
    numbers = [
      field.name
      for field in schema
      if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    ]
    if by not in numbers:
      raise ValueError(
        f"--by {by} is no column of numbers of the store; there are "
        f"{', '.join(numbers)}"
      )


def _rank(rows, read, by, within_length_buckets):
  """Bucket -> [(score, row)] in the order of the corpus; reason -> count."""
  found = collections.defaultdict(list)
  unranked: collections.Counter[str] = collections.Counter()
  for row in rows.values():
    table = read(row.path, row.group)
    value, n_tokens = (table[n][row.row].as_py() for n in (by, "n_tokens"))
    if value is None or not math.isfinite(value) or not n_tokens:
      unranked[row.reason or "no number"] += 1
    else:
      low = 1 << (n_tokens.bit_length() - 1) if within_length_buckets else 0
      found[low].append((value, row))
  return found, dict(unranked)


def _write(
  output: pathlib.Path,
  corpus: Corpus,
  kept: Mapping[str, StoredRow],
  read: Any,
) -> None:
  paths = {row.path: None for row in kept.values()}
  schema = pa.unify_schemas(
    [parts_lib.scalar_schema(path) for path in paths],
    promote_options="permissive",
  )
  if _TEXT in schema.names:
    raise ValueError(
      f"the store has a column {_TEXT!r} of its own, where the text would go"
    )
  schema = schema.insert(1, pa.field(_TEXT, pa.large_string()))
  missing = set(kept)
  with (
    files.appearing(output) as file,
    pq.ParquetWriter(file, schema, compression="zstd") as writer,
  ):
    for group in _groups(_documents(corpus, kept, read, missing)):
      writer.write_table(pa.Table.from_pylist(group, schema=schema))
    # Inside: a file that lacks one does not appear.
    if missing:
      raise ValueError(
        f"{len(missing):,} of {len(kept):,} documents to keep are not in the "
        f"corpus ({min(missing)!r} first): name the --data that was scored"
      )


def _documents(corpus, kept, read, missing) -> Iterator[dict[str, Any]]:
  for document in corpus:
    row = kept.get(document.doc_id)
    if row is None:
      continue
    if store_lib.document_sha256(document) != row.text_sha256:
      raise ValueError(
        f"document {document.doc_id!r} has another text than the one scored: "
        "name the --data that was scored, or score it again"
      )
    missing.discard(document.doc_id)
    scores = read(row.path, row.group).slice(row.row, 1).to_pylist()[0]
    yield {**scores, _TEXT: document.text}


def _groups(documents):
  group, count = [], 0
  for document in documents:
    group.append(document)
    count += len(document[_TEXT])
    if count >= _GROUP_CHARS:
      yield group
      group, count = [], 0
  if group:
    yield group
