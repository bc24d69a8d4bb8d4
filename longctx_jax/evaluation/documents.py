"""One document under one model: sums, never means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from longctx_jax.paper import intervals, perplexity


@dataclasses.dataclass(frozen=True)
class DocumentResult:
  """One document under one model: sums, never means.

  Attributes:
    doc_id: id in the corpus.
    doc_index: index in the corpus.
    reason: why there is no LongPPL, else "".
    n_tokens: scored targets.
    nll_sum: over them, nats.
    n_bytes: UTF-8 bytes of their characters.
    n_words: words in them, as `str.split` parts them.
    region_nll_sums: per key region, nats.
    region_counts: key tokens per key region.
    key_bytes: UTF-8 bytes of the key tokens' characters.
    n_eligible: ids of the evaluator that could be key.
    key_chars: characters of the evaluator's spans.
    covered_chars: those of them that this model's key tokens cover.
    n_unscorable_key: key tokens without a prediction (the first id).
    truncated: whether the model read less than was scored for key tokens.
    text_sha256: hash of the text; "" where it could not be read, and in files
      that were written before it was recorded.
    keys_sha256: see `identity.keys_sha256`; "" as above.
    n_chars: characters of the document.
    n_chars_scored: those of them that the evaluator read.
    read_from: first character that the model read.
    read_to: character behind the last one; equal where it read none.
    unread_key_chars: characters of the spans outside of these.
    cause: of reason "failed".
    shared_nll_sum: the evaluator's loss of the targets that both models have,
      nats; 0 where its log-probs are not known.
    shared_gap_sum: sum of the absolute differences of the two losses there.
  """

  doc_id: str
  doc_index: int
  reason: str
  n_tokens: int = 0
  nll_sum: float = 0.0
  n_bytes: int = 0
  n_words: int = 0
  region_nll_sums: tuple[float, ...] = ()
  region_counts: tuple[int, ...] = ()
  key_bytes: int = 0
  n_eligible: int = 0
  key_chars: int = 0
  covered_chars: int = 0
  n_unscorable_key: int = 0
  truncated: bool = False
  text_sha256: str = ""
  keys_sha256: str = ""
  n_chars: int = 0
  n_chars_scored: int = 0
  read_from: int = 0
  read_to: int = 0
  unread_key_chars: int = 0
  cause: str = ""
  shared_nll_sum: float = 0.0
  shared_gap_sum: float = 0.0

  def __post_init__(self):
    sums = (self.nll_sum, *self.region_nll_sums)
    if not all(map(math.isfinite, sums)):
      raise ValueError(
        f"the losses of document {self.doc_id!r} are not finite: {sums}"
      )

  @classmethod
  def from_json(cls, fields: Mapping[str, Any]) -> DocumentResult:
    """Reads a line of the ledger or a row of documents/<model>.parquet.

    Raises:
      ValueError: a field that every row has is not there; it is named.
    """
    required = ("doc_id", "doc_index", "reason")
    known = known_fields(cls, fields, required=required)
    for name in ("region_nll_sums", "region_counts"):
      known[name] = tuple(known.get(name) or ())
    return cls(**known)

  def to_json(self) -> dict[str, Any]:
    """What the ledger says of the document."""
    return dataclasses.asdict(self)

  def to_row(self) -> dict[str, Any]:
    """A row of documents/<model>.parquet: with what follows from the sums."""
    derived = (
      "n_key_tokens", "n_key_regions", "key_nll_sum", "key_coverage",
      "longppl", "ppl",
    )  # fmt: skip
    return self.to_json() | {name: getattr(self, name) for name in derived}

  @property
  def identity(self) -> tuple[str, str, str]:
    """What its numbers belong to, beside the model: id, text, key tokens."""
    return self.doc_id, self.text_sha256, self.keys_sha256

  @property
  def n_chars_read(self) -> int:
    """Characters that the model read."""
    return self.read_to - self.read_from

  @property
  def is_cut(self) -> bool:
    """Whether it was read, and not all of it: by the evaluator or the model."""
    return 0 < self.n_chars_read < self.n_chars

  @property
  def n_key_tokens(self) -> int:
    """Key tokens of the model under test."""
    return sum(self.region_counts)

  @property
  def n_key_regions(self) -> int:
    """Runs of key tokens with gaps of at most 16 targets."""
    return len(self.region_counts)

  @property
  def key_nll_sum(self) -> float:
    """Negative log-likelihood of the key tokens, nats."""
    return sum(self.region_nll_sums)

  @property
  def key_coverage(self) -> float | None:
    """Share of the key characters that the key tokens cover."""
    return self.covered_chars / self.key_chars if self.key_chars else None

  @property
  def longppl(self) -> float | None:
    """exp(mean key NLL), or None without key tokens."""
    return perplexity.perplexity(self.key_nll_sum, self.n_key_tokens)

  @property
  def ppl(self) -> float | None:
    """exp(mean NLL), or None where nothing was scored."""
    return perplexity.perplexity(self.nll_sum, self.n_tokens)


def text_labels(documents: Sequence[DocumentResult]) -> Int[np.ndarray, " D"]:
  """The text of each document; copies share it. See `intervals.text_labels`."""
  return intervals.text_labels(
    [d.text_sha256 for d in documents],
    [d.nll_sum for d in documents],
    [d.n_tokens for d in documents],
    [d.key_nll_sum for d in documents],
    [d.n_key_tokens for d in documents],
  )


def known_fields(
  cls: type, fields: Mapping[str, Any], *, required: Sequence[str]
) -> dict[str, Any]:
  """Those of the fields read that a dataclass has.

  Args:
    cls: the dataclass.
    fields: name -> value, as JSON or Parquet gives them.
    required: what may not be missing.

  Raises:
    ValueError: a required one is; it is named.
  """
  missing = [name for name in required if name not in fields]
  if missing:
    raise ValueError(f"it has no field {missing[0]!r}")
  names = {field.name for field in dataclasses.fields(cls)}
  return {name: value for name, value in fields.items() if name in names}
