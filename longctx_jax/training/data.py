"""Training batches: shuffled rows of chunks, exact to resume on any machine.

Which chunks share a row, and in which order rows come, is planned from the
lengths alone, by seed and for all processes together. A step takes the next
`batch_size` rows of that order and a process its slice of them, so that neither
devices nor processes nor interruptions change what a step trains on.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from longctx_jax.key_tokens import store
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import settings
from longctx_jax.text import corpus as corpus_lib
from longctx_jax.text import token_cache
from longctx_jax.text.corpus import Corpus
from longctx_jax.text.token_cache import TokenCache
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import inventory, stored_weights
from longctx_jax.training import rows as rows_lib
from longctx_jax.training.stored_weights import StoredWeights

Batch = dict[str, np.ndarray]


# Batches made ahead of the step that takes them, each by a thread.
_THREADS = 2
_MAX_SEED = 2**32 - 1


@dataclasses.dataclass(frozen=True)
class DataConfig:
  """What is trained on, and how it is laid out.

  Attributes:
    sources: as `corpus.open_corpus`.
    seq_len: T, targets of a row; documents are cut into chunks of T + 1 ids.
    batch_size: rows of a step over all processes, accumulation included.
    cache_dir: folder of the token caches.
    text_column: column of the text.
    ids_column: column of token ids, read in place of the text; "" for none.
    id_column: column of the document ids.
    row_range: rows [a, b) of the sources; (0, 0) is all.
    min_tokens: documents with fewer ids are left out.
    min_chunk: chunks with fewer ids are left out; T + 1 keeps whole ones only.
    packing: several chunks in a row, kept apart by segment ids.
    seed: of packing and order, 0 to 2**32 - 1.
    epochs: passes over the data; 0 is endless.
    windows: of the loss. Planned where no weights are stored; where they are,
      None takes a store of any windows.
    key_tokens: folder of a key-token store whose weights are used; "" for none.
    stored_form: "hard" or "soft"; see `stored_weights.open_weights`.
    thresholds: of "hard".
    gamma: cap of a weight.
  """

  sources: tuple[str, ...]
  seq_len: int
  batch_size: int
  cache_dir: str
  text_column: str = "text"
  ids_column: str = ""
  id_column: str = ""
  row_range: tuple[int, int] = (0, 0)
  min_tokens: int = 0
  min_chunk: int = 2
  packing: bool = False
  seed: int = 0
  epochs: int = 0
  windows: Windows | None = None
  key_tokens: str = ""
  stored_form: str = "hard"
  thresholds: Thresholds = Thresholds()
  gamma: float = 5.0

  def __post_init__(self):
    for name, value, low, high in (
      ("seq_len", self.seq_len, 1, sys.maxsize),
      ("batch_size", self.batch_size, 1, sys.maxsize),
      ("min_tokens", self.min_tokens, 0, sys.maxsize),
      ("min_chunk", self.min_chunk, 2, self.seq_len + 1),
      ("seed", self.seed, 0, _MAX_SEED),
      ("epochs", self.epochs, 0, sys.maxsize),
    ):
      if not low <= value <= high:
        raise ValueError(f"{name}={value} is not from {low} to {high}")
    if not self.cache_dir:
      raise ValueError("cache_dir is empty: name a folder for token caches")


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingData:
  """Rows in a fixed order, cut into steps; made by `open_training_data`.

  Attributes:
    config: how they are laid out.
    rows: numbers of the chunks of each row.
    num_steps: until the epochs end; sys.maxsize where they are endless.
  """

  config: DataConfig
  rows: list[np.ndarray] = dataclasses.field(repr=False)
  num_steps: int
  _kept: np.ndarray = dataclasses.field(repr=False)
  _cache: TokenCache = dataclasses.field(repr=False)
  _weights: StoredWeights | None = dataclasses.field(repr=False)
  _with_lengths: bool
  _share: tuple[int, int]

  def row(self, number: int) -> Batch:
    """A row by its number before shuffling; see `rows.make_row`."""
    config = self.config
    read = [self._cache.read(chunk) for chunk in self.rows[number]]
    weights = self._weights and [
      self._weights.of(self._cache.doc_ids[chunk], offsets[1:])
      for chunk, (_, offsets) in zip(self.rows[number], read, strict=True)
    ]
    return rows_lib.make_row(
      [ids for ids, _ in read],
      seq_len=config.seq_len,
      packed=config.packing,
      with_lengths=self._with_lengths,
      windows=None if self._weights else config.windows,
      weights=weights,
    )

  def row_numbers(self, step: int) -> np.ndarray:
    """Rows of a step, over all processes, int64 [batch_size]."""
    first = step * self.config.batch_size
    order = self._order()
    return np.array([order[first + i] for i in range(self.config.batch_size)])

  def batch(self, step: int) -> Batch:
    """This process's rows of a step."""
    index, count = self._share
    own = np.split(self.row_numbers(step), count)[index]
    return rows_lib.stack([self.row(number) for number in own])

  def iterator(
    self, start_state: dict[str, Any] | None = None
  ) -> BatchIterator:
    """Batches from the first step on, or from a saved state.

    Raises:
      ValueError: see `BatchIterator.set_state`.
    """
    batches = BatchIterator(self)
    if start_state is not None:
      batches.set_state(start_state)
    return batches

  @functools.cached_property
  def _content(self) -> str:
    return _digest(self._cache, self._kept, named=False)

  @property
  def holds_texts(self) -> bool:
    """Whether chunks have a text, and not ids alone."""
    return bool(self._cache.hashes[self._kept[0]])

  @property
  def digests(self) -> list[str]:
    """SHA-256 of the text of each chunk, or of its ids where it has none."""
    return [self._cache.digests[chunk] for chunk in self._kept]

  def facts(self, *, named: bool = False) -> dict[str, Any]:
    """What a step's rows depend on: compared when a run is resumed.

    Args:
      named: as checkpoints of before hold them: chunks by name as well, and
        nothing of stored weights.
    """
    names = ("seq_len", "batch_size", "packing", "seed")
    found = {name: getattr(self.config, name) for name in names} | {
      "rows": len(self.rows)
    }
    if named:
      return found | {"chunks": _digest(self._cache, self._kept, named=True)}
    weights = self._weights.facts if self._weights else {}
    return found | {"content": self._content} | weights

  def _order(self) -> Any:
    # Imported where used: it needs array_record, and what a run lacks is said
    # all at once (`preflight`).
    import grain

    numbers = grain.MapDataset.range(len(self.rows)).seed(self.config.seed)
    return numbers.shuffle().repeat(self.config.epochs or None)


class BatchIterator(Iterator[Batch]):
  """Batches step by step, made ahead by threads.

  Its state is the step and what the order depends on: plain JSON, the same in
  every process, and valid for any number of them.
  """

  def __init__(self, data: TrainingData):
    self._data = data
    self._start(0)

  def _start(self, step: int) -> None:
    import grain

    self._step = step
    self._batches = iter(
      grain.MapDataset.range(step, self._data.num_steps)
      .map(self._data.batch)
      .to_iter_dataset(
        grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_THREADS)
      )
    )

  def __next__(self) -> Batch:
    batch = next(self._batches)
    self._step += 1
    return batch

  def get_state(self) -> dict[str, Any]:
    """The next step and the facts that it depends on."""
    return {"step": self._step, **self._data.facts()}

  def set_state(self, state: dict[str, Any]) -> None:
    """Goes on from a state, of this iterator or another.

    Raises:
      ValueError: it was saved with other data or another layout; each fact that
        differs is named with both values.
    """
    stored = dict(state)
    step = stored.pop("step")
    settings.require_same(
      stored,
      self._data.facts(named="chunks" in stored),
      where="the checkpoint",
      problem="was written with other data",
      remedy="Restore the former data and settings, or start anew in another "
      "workdir",
    )
    self._start(step)


def open_training_data(
  config: DataConfig,
  tokenizer: TextTokenizer | None,
  *,
  corpus: Corpus | None = None,
  vocab_size: int = 0,
  with_lengths: bool = False,
  share: int | None = None,
  shares: int | None = None,
) -> TrainingData:
  """Opens data for training; tokenises it first where that is to be done.

  Args:
    config: what and how.
    tokenizer: of the model that is trained; None for token ids.
    corpus: the documents, where they are open already.
    vocab_size: embeddings of the model; 0 checks no id.
    with_lengths: whether batches carry the real lengths (`rope_by_length`).
    share: of the rows of a step, that of this process; see
      `sharding.row_share`. Default: each process has one of its own.
    shares: how many there are.

  Raises:
    ValueError: nothing is left to train on, batch_size doesn't divide among
      the shares, an epoch is shorter than a step, ids beyond the vocabulary,
      windows longer than any document, or a store that doesn't fit
      (`stored_weights.open_weights`).
  """
  if shares is None:
    share, shares = jax.process_index(), jax.process_count()
  if config.batch_size % shares:
    raise ValueError(
      f"batch_size={config.batch_size} doesn't divide among {shares} processes"
    )
  corpus = corpus or open_corpus(config)
  cache = token_cache.open_cache(
    config.cache_dir, corpus, tokenizer, chunk_len=config.seq_len
  )
  kept = inventory.select(
    cache, min_tokens=config.min_tokens, min_chunk=config.min_chunk
  )
  rows = _plan_rows(config, cache, kept)
  num_steps = config.epochs * len(rows) // config.batch_size
  if config.epochs and not num_steps:
    raise ValueError(
      f"{config.epochs} epochs of {len(rows)} rows are less than one step of "
      f"batch_size={config.batch_size} rows"
    )
  weights = _open_weights(config, cache, kept, tokenizer)
  inventory.log(
    cache,
    kept,
    rows,
    seq_len=config.seq_len,
    batch_size=config.batch_size,
    n_documents=corpus.count,
  )
  inventory.require_known_ids(cache, kept, vocab_size or sys.maxsize)
  if config.windows and not weights:
    inventory.require_short_contexts(cache, rows, config.windows)
  return TrainingData(
    config=config,
    rows=rows,
    num_steps=num_steps or sys.maxsize // config.batch_size,
    _cache=cache,
    _weights=weights,
    _with_lengths=with_lengths,
    _share=(share, shares),
    _kept=kept,
  )


def open_corpus(config: DataConfig) -> Corpus:
  """The documents of a config, without reading a text.

  Raises:
    FileNotFoundError, ValueError: see `corpus.open_corpus`.
  """
  return corpus_lib.open_corpus(
    config.sources,
    text_column=config.text_column,
    ids_column=config.ids_column,
    id_column=config.id_column,
    row_range=config.row_range,
  )


def _open_weights(
  config: DataConfig,
  cache: TokenCache,
  kept: np.ndarray,
  tokenizer: TextTokenizer | None,
) -> StoredWeights | None:
  """The stored weights of the chunks; None where the config names none."""
  if not config.key_tokens:
    return None
  return stored_weights.open_weights(
    store.read_store(config.key_tokens),
    {cache.doc_ids[chunk]: cache.hashes[chunk] for chunk in kept},
    form=config.stored_form,
    chunk_len=config.seq_len,
    tokenizer_fingerprint=tokenizer.fingerprint if tokenizer else "",
    windows=config.windows,
    thresholds=config.thresholds,
    gamma=config.gamma,
  )


def _plan_rows(
  config: DataConfig, cache: TokenCache, kept: np.ndarray
) -> list[np.ndarray]:
  if not config.packing:
    return list(kept[:, None])
  # RandomState: its streams are frozen for all versions of NumPy.
  order = np.random.RandomState(config.seed).permutation(len(kept))
  packed = rows_lib.pack(
    cache.lengths[kept], order, capacity=config.seq_len + 1
  )
  return [kept[row] for row in packed]


def _digest(cache: TokenCache, kept: np.ndarray, *, named: bool) -> str:
  """Of the chunks themselves: a copy of the data elsewhere has the same."""
  digest = hashlib.sha256(cache.lengths[kept].tobytes())
  for chunk in kept:
    text = cache.digests[chunk]
    if named:
      text = f"{cache.doc_ids[chunk]} {cache.hashes[chunk]}"
    digest.update(f"{text}\n".encode())
  return digest.hexdigest()
