"""A corpus tokenised and cut once, kept as ArrayRecord files.

A folder per corpus, tokenizer and chunk length holds `part-PPPPP.array_record`
(a record per chunk: ids and the characters of each), the index of each part as
Parquet and, written last, `manifest.json`. Files appear by rename, a part's
index after its records; a run that is killed goes on after the last whole part,
and one process at a time writes while others wait.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import logging

from longctx_jax.runtime import files
from longctx_jax.text import chunks
from longctx_jax.text.chunks import Chunk
from longctx_jax.text.corpus import Corpus, Document, text_sha256
from longctx_jax.text.tokenizer import TextTokenizer

FORMAT_VERSION = 1
_MANIFEST = "manifest.json"
_DOCUMENTS = b"longctx_jax.documents"
_KEY_DIGITS = 16
# Columns that caches of before lack.
_DESCRIBED = ("largest", "bos_count")
# Ids of a part: what a killed run tokenises again, some seconds' worth.
_PART_IDS = 4 << 20
_LOG_SECONDS = 10.0
# Grain wants random access, so every record is compressed by itself.
_WRITER_OPTIONS = "group_size:1,zstd:3"


@dataclasses.dataclass(frozen=True, eq=False)
class _Pending:
  """A chunk to be written; `document_length`: ids of its whole document."""

  chunk: Chunk
  document_length: int
  largest: int
  bos_count: int
  ids_sha256: str


@dataclasses.dataclass(frozen=True, eq=False)
class TokenCache:
  """Chunks by number, in the order of the corpus; read when asked for.

  Attributes:
    folder: where they are.
    key: digest of all that determines them.
    doc_ids: ids of the chunks, "<document>#<number>".
    hashes: SHA-256 of the chunks' texts; "" where they have none.
    digests: SHA-256 of what each chunk holds: its text, else its ids.
    lengths: ids of each chunk, int64 [C].
    document_lengths: ids of the chunk's whole document, int64 [C].
    largest: largest id of each chunk, int64 [C].
    bos_counts: BOS in the text of each chunk, int64 [C]: ids that are the one
      which the tokenizer puts first, but not there.
  """

  folder: pathlib.Path
  key: str
  doc_ids: list[str] = dataclasses.field(repr=False)
  hashes: list[str] = dataclasses.field(repr=False)
  digests: list[str] = dataclasses.field(repr=False)
  lengths: np.ndarray = dataclasses.field(repr=False)
  document_lengths: np.ndarray = dataclasses.field(repr=False)
  largest: np.ndarray = dataclasses.field(repr=False)
  bos_counts: np.ndarray = dataclasses.field(repr=False)
  _records: Any = dataclasses.field(repr=False)

  def __len__(self) -> int:
    return len(self.doc_ids)

  def read(self, chunk: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Ids int32 [n] and offsets int64 [n, 2] of a chunk; see `Chunk`."""
    return _decode(self._records[chunk], bool(self.hashes[chunk]))


def open_cache(
  cache_dir: str | os.PathLike,
  corpus: Corpus,
  tokenizer: TextTokenizer | None,
  *,
  chunk_len: int,
) -> TokenCache:
  """Opens the cache of a corpus; tokenises what is not there yet.

  The key holds the tokenizer's fingerprint, the chunk length, the columns and
  rows taken and, for each file, path, size and time of change: where one of
  them differs, so does the folder.

  Args:
    cache_dir: folder of caches; made where it is missing. Local or mounted.
    corpus: documents that hold texts, or token ids.
    tokenizer: see `chunks.cut_document`.
    chunk_len: targets of a chunk, the `seq_len` of training.

  Raises:
    ValueError: texts without a tokenizer, no document that can be read, or a
      cache that is damaged.
  """
  if tokenizer is None and not corpus.holds_ids:
    raise ValueError(
      "texts need a tokenizer: name a model whose folder holds one, or give "
      "token ids (ids_column)"
    )
  facts = {
    "format_version": FORMAT_VERSION,
    "chunk_len": chunk_len,
    "tokenizer": tokenizer.fingerprint if tokenizer else "",
    "corpus": corpus.identity,
  }
  key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
  folder = pathlib.Path(cache_dir).expanduser() / key[:_KEY_DIGITS]
  folder.mkdir(parents=True, exist_ok=True)
  if not (folder / _MANIFEST).exists():
    with files.locked(folder / "lock", doing="writing", wait=True):
      if not (folder / _MANIFEST).exists():
        _build(folder, facts, corpus, tokenizer, chunk_len)
  return _read(folder, key, tokenizer.leading_bos if tokenizer else None)


def _build(
  folder: pathlib.Path,
  facts: dict[str, Any],
  corpus: Corpus,
  tokenizer: TextTokenizer | None,
  chunk_len: int,
) -> None:
  files.remove_leftovers(folder, "*")
  parts = _parts(folder)
  done = _documents(parts[-1]) if parts else 0
  if done:
    logging.info("tokenise: %s documents are there already", f"{done:,}")
  bos = tokenizer.leading_bos if tokenizer else None
  pending: list[_Pending] = []
  held, ids, start = 0, 0, time.monotonic()
  last_log = start
  for document in itertools.islice(corpus, done, None):
    done += 1
    found = _chunks_of(document, tokenizer, chunk_len)
    total = sum(len(chunk.ids) for chunk in found)
    pending += (
      _Pending(chunk, total, **_describe(chunk.doc_id, chunk.ids, bos))
      for chunk in found
    )
    held, ids = held + total, ids + total
    if held >= _PART_IDS:
      _write_part(folder, len(parts), pending, done)
      parts, pending, held = _parts(folder), [], 0
    now = time.monotonic()
    if now - last_log >= _LOG_SECONDS:
      last_log = now
      logging.info(
        "tokenise: %s of %s documents | %s ids/s",
        f"{done:,}",
        f"{corpus.count:,}",
        f"{ids / (now - start):,.0f}",
      )
  if pending:
    _write_part(folder, len(parts), pending, done)
    parts = _parts(folder)
  if not parts:
    raise ValueError(
      f"none of the {corpus.count} documents can be read as ids; the log says "
      "why"
    )
  manifest = json.dumps(facts | {"parts": len(parts)}, indent=2) + "\n"
  files.write_text(folder / _MANIFEST, manifest)
  logging.info("tokenise: %s documents into %s", f"{done:,}", folder)


def _chunks_of(
  document: Document, tokenizer: TextTokenizer | None, chunk_len: int
) -> list[Chunk]:
  try:
    if document.error:
      raise ValueError(document.error)
    found = chunks.cut_document(document, tokenizer, chunk_len=chunk_len)
    return [chunk for chunk in found if len(chunk.ids)]
  except ValueError as error:
    logging.warning("document %r is left out: %s", document.doc_id, error)
    return []


def _write_part(
  folder: pathlib.Path,
  number: int,
  pending: list[_Pending],
  documents: int,
) -> None:
  # Imported where used: it defines command line flags.
  from array_record.python import array_record_module

  path = folder / f"part-{number:05d}.array_record"
  with files.appearing(path) as file:
    writer = array_record_module.ArrayRecordWriter(file.name, _WRITER_OPTIONS)
    for one in pending:
      writer.write(_encode(one.chunk))
    writer.close()
  table = pa.table(
    {
      "doc_id": [one.chunk.doc_id for one in pending],
      "text_sha256": [
        "" if one.chunk.text is None else text_sha256(one.chunk.text)
        for one in pending
      ],
      "length": pa.array([len(one.chunk.ids) for one in pending], pa.int64()),
    }
    | {
      name: pa.array([getattr(one, name) for one in pending], pa.int64())
      for name in ("document_length", *_DESCRIBED)
    }
    | {"ids_sha256": [one.ids_sha256 for one in pending]}
  ).replace_schema_metadata({_DOCUMENTS: str(documents)})
  with files.appearing(path.with_suffix(".parquet")) as file:
    pq.write_table(table, file)


def _describe(doc_id: str, ids: np.ndarray, bos: int | None) -> dict[str, Any]:
  """What is known of a chunk from its ids; see `TokenCache`."""
  leads = doc_id.endswith("#0") and ids[0] == bos
  return {
    "largest": int(ids.max()),
    "bos_count": 0 if bos is None else int((ids == bos).sum()) - leads,
    "ids_sha256": hashlib.sha256(ids.astype("<i4").tobytes()).hexdigest(),
  }


def _encode(chunk: Chunk) -> bytes:
  """Ids, then the steps between starts and the widths, which compress."""
  lines = [chunk.ids]
  if chunk.offsets is not None:
    start, end = chunk.offsets.T
    lines += [np.diff(start, prepend=0), end - start]
  return np.array(lines, "<i4").tobytes()


def _decode(record: bytes, has_text: bool) -> tuple[np.ndarray, Any]:
  lines = np.frombuffer(record, "<i4").reshape(3 if has_text else 1, -1)
  if not has_text:
    return lines[0], None
  start = np.cumsum(lines[1], dtype=np.int64)
  return lines[0], np.stack([start, start + lines[2]], axis=1)


def _read(folder: pathlib.Path, key: str, bos: int | None) -> TokenCache:
  import grain

  parts = _parts(folder)
  manifest = json.loads((folder / _MANIFEST).read_text())
  table = pa.concat_tables(
    [pq.read_table(path) for path in parts], promote_options="default"
  )
  records = grain.sources.ArrayRecordDataSource(
    [str(path.with_suffix(".array_record")) for path in parts]
  )
  if len(parts) != manifest["parts"] or len(records) != len(table):
    raise ValueError(
      f"{folder} is damaged: {len(parts)} parts of {manifest['parts']} and "
      f"{len(records)} chunks of {len(table)}. Remove the folder; the next run "
      "makes it again"
    )
  hashes = table["text_sha256"].to_pylist()
  table = _described(table, records, bos)
  digests = [
    text or ids
    for text, ids in zip(hashes, table["ids_sha256"].to_pylist(), strict=True)
  ]
  return TokenCache(
    folder=folder,
    key=key,
    doc_ids=table["doc_id"].to_pylist(),
    hashes=hashes,
    digests=digests,
    lengths=table["length"].to_numpy(),
    document_lengths=table["document_length"].to_numpy(),
    largest=table["largest"].to_numpy(),
    bos_counts=table["bos_count"].to_numpy(),
    _records=records,
  )


def _described(table: pa.Table, records: Any, bos: int | None) -> pa.Table:
  """The table with the columns that parts of before lack."""
  names = (*_DESCRIBED, "ids_sha256")
  if all(name in table.column_names for name in names) and not any(
    table[name].null_count for name in names
  ):
    return table
  rows = [
    _describe(doc_id, _decode(records[i], bool(text))[0], bos)
    for i, (doc_id, text) in enumerate(
      zip(
        table["doc_id"].to_pylist(),
        table["text_sha256"].to_pylist(),
        strict=True,
      )
    )
  ]
  table = table.select([n for n in table.column_names if n not in names])
  found = pa.Table.from_pylist(rows)
  for name in names:
    table = table.append_column(name, found[name])
  return table


def _parts(folder: pathlib.Path) -> list[pathlib.Path]:
  """The indices of whole parts: each was written after its records."""
  return sorted(folder.glob("part-*.parquet"))


def _documents(part: pathlib.Path) -> int:
  """Documents of the corpus up to the end of a part."""
  return int(pq.read_schema(part).metadata[_DOCUMENTS])
