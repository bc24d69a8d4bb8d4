"""Key tokens from log-probs that another engine computed: a store like any.

The engine makes both passes; nothing here runs a model. So every architecture
and size that some engine runs can be an evaluator.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from absl import logging
from jaxtyping import Float
from ml_collections import ConfigDict

from longctx_jax.evaluation import foreign
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.runtime import failures
from longctx_jax.runtime.shards import WHOLE, Shard
from longctx_jax.scoring import finder, protocol, run, scorer, setup
from longctx_jax.text.corpus import Document

# Beside those of `foreign.COLUMNS`.
_COLUMNS = ("text_sha256", "short_log_prob")
# All ids that the engine read, a BOS included: optional.
_IDS = "ids"
# Rows of a part: 64 documents of 32k tokens take 32 MB.
_ROWS = 64
# Targets whose two contexts differ and whose log-probs do not: no chance.
_SURELY = 8
_REMEDY = "docs/log_probs.md shows how the file is written"


def score_corpus(
  config: ConfigDict,
  *,
  log_probs: str = "",
  workdir: str | pathlib.Path,
  overwrite: bool = False,
  shard: Shard = WHOLE,
  prune: bool = False,
) -> KeyTokenStore:
  """Scores the corpus, or takes the log-probs of a file for its scores.

  Each row of the file is checked before the store is opened.

  Args:
    config: as configs/longppl.py; `config.evaluator` names who made the file.
    log_probs: Parquet with a row per document; "" scores here. Columns: those
      of `foreign.COLUMNS`, `text_sha256`, `short_log_prob` (nats; null where
      no window scores, the long one's value in the first window) and, for
      `copied_share` and protocol "strict", `ids`.
    workdir, overwrite, shard, prune: see `run.score_corpus`.

  Raises:
    FileNotFoundError: no such file.
    ValueError: see `run.score_corpus`; or a file without a document of the
      corpus, of another text or with arrays that contradict the windows: the
      first document and fault are named.
  """
  options = dict(workdir=workdir, overwrite=overwrite, shard=shard, prune=prune)
  if not log_probs:
    return run.score_corpus(config, **options)
  setup.check_config(config)
  run.check_scope(config, shard, overwrite, prune)
  if not config.evaluator:
    raise ValueError(f"{log_probs}: --evaluator names the model that it is of")
  if config.data.chunk_len:
    raise ValueError(
      f"chunk_len={config.data.chunk_len} with log-probs from elsewhere: they "
      "are of whole documents"
    )
  corpus = setup.open_corpus(config).shard(shard)
  rows = _Rows(log_probs)
  manifest = _manifest(config, rows)
  wanted = [_key_tokens(one, rows, manifest).doc_id for one in corpus]
  if more := len(set(rows.places) - set(wanted)):
    logging.info("%s: %d rows of other documents", log_probs, more)
  folder = pathlib.Path(workdir) / "key_tokens"
  with writer_lib.claimed(folder, shard):
    writer = writer_lib.open_writer(
      folder, manifest, shard=shard, overwrite=overwrite
    )
    missing = (
      _key_tokens(one, rows, writer.manifest)
      for one in corpus
      if not writer.is_done(one.doc_id, store_lib.document_sha256(one))
    )
    while part := list(itertools.islice(missing, _ROWS)):
      writer.write(part)
    writer.tidy()
    if prune:
      logging.info("%d documents of before pruned", len(writer.prune(wanted)))
    store = store_lib.read_store(folder)
  return run.finish(config, store, wanted, workdir)


def _manifest(config: ConfigDict, rows: _Rows) -> Manifest:
  """What the file says of itself; the rest is None: the maker does not say."""
  strict = config.longppl.protocol == "strict"
  return Manifest(
    evaluator=config.evaluator,
    checksum=rows.sha256(),
    protocol=config.longppl.protocol,
    bos=rows.leading_id() if strict else None,
    windows=setup.windows_of(config),
    thresholds=setup.thresholds_of(config),
    max_length=rows.longest + 1,
    over_length="truncate_end",
    detail=config.scoring.detail,
    source=f"log_probs:{rows.path}",
  )


class _Rows:
  """The rows of a file by document, read a row group at a time.

  Attributes:
    path: the file.
    places: doc_id -> (row group, row).
    longest: targets of the longest row.
  """

  def __init__(self, path: str):
    foreign.open_log_probs(path, "evaluator")
    self.path = path
    with failures.reading(path):
      self._file = pq.ParquetFile(path)
    names = self._file.schema_arrow.names
    missing = [column for column in _COLUMNS if column not in names]
    if missing:
      raise ValueError(
        f"{path}: missing columns {', '.join(missing)}, which an evaluator "
        f"needs; it has: {', '.join(names)}. {_REMEDY}"
      )
    self._names = [*foreign.COLUMNS, *_COLUMNS, *({_IDS} & set(names))]
    self._group = functools.lru_cache(2)(self._read_group)
    self.places: dict[str, tuple[int, int]] = {}
    self.longest = 0
    for group in range(self._file.num_row_groups):
      table = self._read_group(group, ["doc_id", "log_prob"])
      for row, doc_id in enumerate(table["doc_id"].to_pylist()):
        if str(doc_id) in self.places:
          raise ValueError(f"{path}: document {str(doc_id)!r} twice")
        self.places[str(doc_id)] = group, row
      lengths = table["log_prob"].combine_chunks().value_lengths()
      self.longest = max(self.longest, *lengths.fill_null(0).to_pylist(), 0)

  def _read_group(
    self, group: int, columns: list[str] | None = None
  ) -> pa.Table:
    with failures.reading(self.path):
      return self._file.read_row_group(group, columns or self._names)

  def sha256(self) -> str:
    """Hash of the file: what the store belongs to."""
    return foreign.ForeignLogProbs("", self.path).sha256()

  def get(self, doc_id: str) -> dict[str, Any]:
    """The values of a row; ValueError where there is none."""
    if doc_id not in self.places:
      raise ValueError(
        f"{self.path}: no row for document {doc_id!r}; it has "
        f"{len(self.places):,}, such as {', '.join([*self.places][:3])}"
      )
    group, row = self.places[doc_id]
    table = self._group(group)
    return {name: table[name][row].as_py() for name in table.column_names}

  def leading_id(self) -> int:
    """The id that all rows begin with: the BOS of protocol "strict".

    Raises:
      ValueError: there are no ids, or they begin differently.
    """
    if _IDS not in self._names:
      raise ValueError(
        f"{self.path}: protocol 'strict' needs the column ids: its first is "
        "the BOS that stands before every window. Without a BOS 'paper' is "
        "the same"
      )
    found = {
      ids[0]
      for group in range(self._file.num_row_groups)
      for ids in self._read_group(group, [_IDS])[_IDS].to_pylist()
      if ids
    }
    if len(found) != 1:
      raise ValueError(
        f"{self.path}: under protocol 'strict' all ids begin with the BOS, and "
        f"these with {sorted(found)[:3]}"
      )
    return int(found.pop())


def _key_tokens(
  document: Document, rows: _Rows, manifest: Manifest
) -> KeyTokens:
  """The record of a document, from its row.

  Raises:
    ValueError: no row, another text, or arrays that cannot be right.
  """
  make = functools.partial(finder.key_tokens_of, document, manifest=manifest)
  if document.error:
    logging.warning("document %r: %s", document.doc_id, document.error)
    return make(protocol.unscorable("failed"), None)
  if not document.text:
    return make(protocol.unscorable("empty"), None)
  row = rows.get(document.doc_id)
  where = f"{rows.path}: document {document.doc_id!r}"
  if row["text_sha256"] != store_lib.document_sha256(document):
    raise ValueError(
      f"{where}: the log-probs are of another text (text_sha256 "
      f"{str(row['text_sha256'])[:12]}..., here "
      f"{store_lib.document_sha256(document)[:12]}...)"
    )
  if not row["log_prob"]:
    return make(protocol.unscorable("nothing_to_score"), None)
  prepared = _prepared(document, row, manifest.prefix_len, where)
  long = np.array(row["log_prob"], np.float32)
  short = _short(row["short_log_prob"], long, manifest, where)
  job = scorer.Job(document.doc_id, prepared.ids, prepared.prefix_len)
  made = make(prepared, scorer.Scores(job, long, short))
  if row.get(_IDS) is None:
    # Of made-up ids nothing was copied.
    scores = {**made.scores, "copied_share": None}
    made = dataclasses.replace(made, scores=scores)
  return made


def _prepared(
  document: Document, row: dict[str, Any], prefix_len: int, where: str
) -> protocol.Prepared:
  """What the engine read, as far as offsets and ids show it."""
  starts, ends = row["token_start"] or [], row["token_end"] or []
  if len(starts) != len(ends):
    raise ValueError(
      f"{where}: {len(starts)} token_start and {len(ends)} token_end; there "
      "must be one of each per target"
    )
  text = document.text
  _, offsets = foreign.check_log_probs(
    document.doc_id, text, row["log_prob"], np.stack([starts, ends], axis=1)
  )
  count = len(offsets)
  begin, end = foreign.read_by_another(text, offsets)
  if begin:
    raise ValueError(
      f"{where}: the log-probs begin at character {begin:,}: an evaluator "
      "reads a document from its start"
    )
  ids = row.get(_IDS)
  if ids is not None and len(ids) != count + 1:
    raise ValueError(
      f"{where}: {len(ids)} ids and {count} log-probs; there must be one id "
      "more, the first, which nothing predicts"
    )
  return protocol.Prepared(
    ids=np.array(np.arange(count + 1) if ids is None else ids, np.int32),
    offsets=offsets,
    prefix_len=prefix_len,
    n_chars=end,
    # What was not read was not counted: by its characters.
    n_tokens_full=round(count * len(text) / end),
    truncated=end < len(text),
    reason="",
  )


def _short(
  values: list[float | None],
  long: Float[np.ndarray, " T"],
  manifest: Manifest,
  where: str,
) -> Float[np.ndarray, " T"]:
  """The short log-probs, if they can be those of the windows.

  Of text ids j = 0, 1, ... those below K have none, those below K + d that of
  the long pass, whose context is the same, and all others one of their own.
  """
  windows = manifest.windows
  short = np.array(values or [], np.float32)  # None is NaN.
  if len(short) != len(long):
    raise ValueError(
      f"{where}: {len(short)} short_log_prob and {len(long)} log_prob; there "
      "must be one of each per target, null where no window scores"
    )
  # Text id j is target j + prefix_len - 1.
  planned = manifest.prefix_len + windows.short_len - 1
  has = np.isfinite(short)
  stated = f"short_len={windows.short_len}, stride={windows.stride}"
  wrong = has != (np.arange(len(long)) >= planned)
  if wrong.any():
    t = int(wrong.argmax())
    raise ValueError(
      f"{where}: target {t} {'has a' if has[t] else 'lacks its'} "
      f"short_log_prob; with {stated} those from {planned} on have one, and no "
      "others: state the windows that the engine was given "
      "(--config.longppl.short_len, --config.longppl.stride)"
    )
  if (short > 1e-3).any():
    t = int((short > 1e-3).argmax())
    raise ValueError(
      f"{where}: short_log_prob {short[t]} at target {t} is not the logarithm "
      "of a probability (nats)"
    )
  second = planned + windows.stride
  differs = (short != long)[planned:second]
  if differs.any():
    t = planned + int(differs.argmax())
    raise ValueError(
      f"{where}: target {t} lies in the first window, whose context is the "
      f"full one, and has {long[t]:.4f} there and {short[t]:.4f} in the "
      f"window: with {stated} targets {planned} to {second} take the value of "
      "the long pass"
    )
  beyond = slice(second, second + windows.stride)
  if len(long) >= second + _SURELY and (short == long)[beyond].all():
    raise ValueError(
      f"{where}: targets {second} to {min(beyond.stop, len(long))} have the "
      f"same value in both passes: with {stated} their windows begin later "
      "than the document"
    )
  return short
