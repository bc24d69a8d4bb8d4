"""The result of a model: documents pooled, and how it is written and read."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from longctx_jax.evaluation import caveats
from longctx_jax.evaluation import documents as documents_lib
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.paper import intervals, perplexity

# How the reason of a model begins that ended with an error.
FAILED = "failed: "
_REQUIRED = ("name", "reason", "longppl", "ppl")
# What a field may hold, by its annotation.
_NUMBERS = {"int | None": (int,), "float | None": (int, float)}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ModelResult:
  """LongPPL and PPL of one model over documents (paper, Eq. 6).

  What results/<model>.json says, and the documents beside it. A number is None
  where there is none; all of them are where the model failed.

  Attributes:
    name: of the model among the results.
    reason: why LongPPL is None: the commonest of the documents' reasons, or
      "failed: " and the error that the model ended with.
    longppl: exp(sum of key NLL / key tokens), pooled.
    longppl_ci95: 95 % interval of LongPPL; see `intervals.longppl_ci95`.
    longppl_ci95_reason: "" for an interval over documents, "these texts only"
      for one over the key regions of few, or why there is none.
    ppl: perplexity over all targets, weighted as the protocol says.
    protocol: "paper" or "strict".
    self_evaluated: the model is the evaluator, or nearly gives its log-probs,
      so that the thresholds bound the result by construction.
    nll_sum_nats, key_nll_sum_nats: over all targets, over the key tokens.
    n_tokens, n_words, n_bytes: scored targets, and what their characters hold.
    token_ppl, word_ppl, byte_ppl: exp(nll_sum_nats) by each of these counts.
    bits_per_byte, key_bits_per_byte: of all targets, of the key tokens.
    n_key_tokens: key tokens of the model under test.
    n_key_regions: runs of key tokens with gaps of at most 16 targets.
    n_eligible: ids of the evaluator that could be key.
    n_documents, n_documents_eligible: all, and those with such ids.
    n_documents_read: those with scored targets.
    n_documents_cut: those of them that the model read in part.
    chars_unread_share: of the characters of all documents.
    null_reasons: reason -> documents without LongPPL.
    key_coverage: share of the key characters that the key tokens cover.
    n_near_threshold: targets whose decision rounding could flip.
    n_unscorable_key: key tokens without a prediction.
    n_truncated: documents of which the model read less than the evaluator.
    top5_documents_share: of the key tokens, in the five richest documents.
    warnings: what a reader must know.
    keys: manifest of the key tokens.
    model: what determines the log-probs.
    max_length: ids that the model reads of a document; None where an engine
      elsewhere did.
    over_length: what becomes of longer ones.
    sums_only: whether losses were summed on the devices: there is no log-prob
      of a target, so no file of tokens.
    n_reused: documents whose log-probs were the evaluator's own.
    seconds, tokens_per_second, padding_share: of the passes.
    rope_tables: of the longest document and of a window.
    made: command, date, versions, data and key tokens of the run; for readers
      alone: two results are not compared by it.
    documents: per document; empty where they are not known.
  """

  name: str = ""
  reason: str = ""
  longppl: float | None = None
  longppl_ci95: tuple[float | None, float | None] | None = None
  longppl_ci95_reason: str = ""
  ppl: float | None = None
  protocol: str = ""
  self_evaluated: bool = False
  nll_sum_nats: float | None = None
  key_nll_sum_nats: float | None = None
  n_tokens: int | None = None
  n_words: int | None = None
  n_bytes: int | None = None
  token_ppl: float | None = None
  word_ppl: float | None = None
  byte_ppl: float | None = None
  bits_per_byte: float | None = None
  key_bits_per_byte: float | None = None
  n_key_tokens: int | None = None
  n_key_regions: int | None = None
  n_eligible: int | None = None
  n_documents: int | None = None
  n_documents_eligible: int | None = None
  n_documents_read: int | None = None
  n_documents_cut: int | None = None
  chars_unread_share: float | None = None
  null_reasons: Mapping[str, int] = dataclasses.field(default_factory=dict)
  key_coverage: float | None = None
  n_near_threshold: int | None = None
  n_unscorable_key: int | None = None
  n_truncated: int | None = None
  top5_documents_share: float | None = None
  warnings: tuple[str, ...] = ()
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  max_length: int | None = None
  over_length: str = ""
  sums_only: bool = False
  n_reused: int | None = None
  seconds: float | None = None
  tokens_per_second: float | None = None
  padding_share: float | None = None
  rope_tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
  made: Mapping[str, Any] = dataclasses.field(
    default_factory=dict, compare=False
  )
  documents: tuple[DocumentResult, ...] = dataclasses.field(
    default=(), repr=False
  )

  def __post_init__(self):
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      kinds = _NUMBERS.get(field.type)
      if kinds is None or value is None:
        continue
      low = 0 if field.name.startswith("n_") else -math.inf
      if type(value) not in kinds or not low <= value < math.inf:
        raise ValueError(f"{field.name} is {value!r}, which is no number")

  @classmethod
  def from_json(
    cls, fields: Mapping[str, Any], documents: Sequence[DocumentResult] = ()
  ) -> ModelResult:
    """Reads what `to_json` gives; fields that are not known are left out.

    Raises:
      ValueError: a field that every result has is not there, or a value that
        no result can have; the field is named.
    """
    known = documents_lib.known_fields(cls, fields, required=_REQUIRED)
    if known.get("longppl_ci95") is not None:
      known["longppl_ci95"] = tuple(known["longppl_ci95"])
    for name in ("null_reasons", "keys", "model", "rope_tables", "made"):
      known[name] = known.get(name) or {}
    known["warnings"] = tuple(known.get("warnings") or ())
    return cls(**known | {"documents": tuple(documents)})

  def to_json(self) -> dict[str, Any]:
    """The fields of results/<model>.json: all but the documents."""
    names = (f.name for f in dataclasses.fields(self) if f.name != "documents")
    return {name: _plain(getattr(self, name)) for name in names} | {
      "alpha": self.alpha,
      "beta": self.beta,
      "attention": self.attention,
      "documents_sha256": self.documents_sha256,
    }

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready fields, documents included."""
    return self.to_json() | {
      "ci95": _plain(self.ci95),
      "ci95_reason": self.ci95_reason,
      "documents": [document.to_row() for document in self.documents],
    }

  @property
  def ci95(self) -> tuple[float | None, float | None] | None:
    """Interval of LongPPL."""
    return self.longppl_ci95

  @property
  def ci95_reason(self) -> str:
    """Why there is no interval, or what was resampled."""
    return self.longppl_ci95_reason

  @property
  def alpha(self) -> float | None:
    """Threshold on long - short that the keys were taken at, nats."""
    return self.keys.get("alpha")

  @property
  def beta(self) -> float | None:
    """Threshold on the long log-prob that the keys were taken at, nats."""
    return self.keys.get("beta")

  @property
  def attention(self) -> str:
    """What the model attended to, where that is known."""
    return self.model.get("attention") or ""

  @property
  def documents_sha256(self) -> str:
    """Hash of the documents' numbers and identity; "" without documents.

    Where they stand in the corpus is no part of it.
    """
    if not self.documents:
      return ""
    # A field that a later version adds has its default in files of before.
    empty = DocumentResult("", 0, "").to_json()
    rows = sorted(
      json.dumps(
        {
          name: value
          for name, value in document.to_json().items()
          if name != "doc_index" and value != empty[name]
        }
      )
      for document in self.documents
    )
    return hashlib.sha256("".join(rows).encode()).hexdigest()

  @property
  def text_labels(self) -> Int[np.ndarray, " D"]:
    """The text of each document; copies of one share it."""
    return documents_lib.text_labels(self.documents)

  @property
  def has_numbers(self) -> bool:
    """Whether anything was scored."""
    return self.longppl is not None or self.ppl is not None

  @property
  def failed(self) -> bool:
    """Whether the model ended with an error."""
    return self.reason.startswith(FAILED)

  def __repr__(self) -> str:
    return f"ModelResult({f'{self.name}: ' if self.name else ''}{self})"

  def __str__(self) -> str:
    def number(value: float | None) -> str:
      return "none" if value is None else f"{value:.2f}"

    n_keys, n_regions = self.n_key_tokens or 0, self.n_key_regions or 0
    label = self.ci95_reason.replace("_", " ")
    interval = ""
    if self.ci95 is not None:
      low, high = map(number, self.ci95)
      interval = f" [{low}, {high}]" + (f" ({label})" if label else "")
    elif self.longppl is not None:
      interval = f" (no interval: {label})"
    why = f" ({self.reason})" if self.reason else ""
    read, left_out = self.n_documents_read, ""
    if read is not None and read < self.n_documents:
      left_out = f"  {read:,} of {self.n_documents:,} documents"
    return (
      f"LongPPL {number(self.longppl)}{interval}{why}  PPL {number(self.ppl)}  "
      f"keys {n_keys:,} in {n_regions:,} regions  "
      f"coverage {number(self.key_coverage)}  {self.protocol}"
      f"{'  self-evaluated' if self.self_evaluated else ''}{left_out}"
    )


# The name that notebooks know it by.
LongPplResult = ModelResult


def _plain(value: Any) -> Any:
  """A value as JSON gives it back."""
  if isinstance(value, Mapping):
    return {name: _plain(one) for name, one in value.items()}
  return list(value) if isinstance(value, tuple) else value


def summarise(
  documents: Sequence[DocumentResult],
  *,
  protocol_name: str,
  self_evaluated: bool,
  scores: Sequence[Mapping[str, Any]] = (),
  keys: Manifest | None = None,
  **facts: Any,
) -> ModelResult:
  """Pools documents: sums first, one division at the end.

  Args:
    documents: of one model.
    protocol_name: "paper" or "strict".
    self_evaluated: whether the model is known to be the evaluator; it is found
      here where its log-probs are nearly the evaluator's.
    scores: document scores of the key-token store, where it has any.
    keys: how the key tokens were made; None where nobody asks.
    facts: fields of `ModelResult` that do not follow from the documents.
  """
  ci95, ci95_reason = intervals.longppl_ci95(
    [d.region_nll_sums for d in documents],
    [d.region_counts for d in documents],
    documents_lib.text_labels(documents),
  )

  def total(name: str) -> Any:
    return sum(getattr(document, name) for document in documents)

  nll_sums = np.array([d.nll_sum for d in documents])
  n_tokens = np.array([d.n_tokens for d in documents], int)
  ppl = (
    perplexity.paper_ppl if protocol_name == "paper" else perplexity.strict_ppl
  )
  nll_sum, key_nll_sum = float(total("nll_sum")), float(total("key_nll_sum"))
  n_keys, n_bytes = total("n_key_tokens"), total("n_bytes")
  key_chars, n_chars = total("key_chars"), total("n_chars")
  reasons = [d.reason for d in documents if d.reason]
  # A document that was not scored has no scores, or nulls in their place.
  scored = [one for one in scores if one.get("n_key_tokens") is not None]
  near = [one.get("n_near_threshold") for one in scored]
  return ModelResult(
    reason="" if n_keys else _commonest(reasons),
    longppl=perplexity.perplexity(key_nll_sum, n_keys),
    longppl_ci95=ci95,
    longppl_ci95_reason=ci95_reason,
    ppl=ppl(nll_sums, n_tokens),
    protocol=protocol_name,
    self_evaluated=self_evaluated or caveats.is_near_evaluator(documents),
    nll_sum_nats=nll_sum,
    key_nll_sum_nats=key_nll_sum,
    n_tokens=total("n_tokens"),
    n_words=total("n_words"),
    n_bytes=n_bytes,
    token_ppl=perplexity.perplexity(nll_sum, total("n_tokens")),
    word_ppl=perplexity.perplexity(nll_sum, total("n_words")),
    byte_ppl=perplexity.perplexity(nll_sum, n_bytes),
    bits_per_byte=perplexity.bits_per_byte(nll_sum, n_bytes),
    key_bits_per_byte=perplexity.bits_per_byte(key_nll_sum, total("key_bytes")),
    n_key_tokens=n_keys,
    n_key_regions=total("n_key_regions"),
    n_eligible=total("n_eligible"),
    n_documents=len(documents),
    n_documents_eligible=sum(d.n_eligible > 0 for d in documents),
    n_documents_read=sum(d.n_tokens > 0 for d in documents),
    n_documents_cut=sum(d.is_cut for d in documents),
    chars_unread_share=1 - total("n_chars_read") / n_chars if n_chars else None,
    null_reasons=dict(collections.Counter(reasons)),
    key_coverage=total("covered_chars") / key_chars if key_chars else None,
    # Thresholds other than the stored ones leave the count unknown.
    n_near_threshold=None if None in near or not near else sum(near),
    n_unscorable_key=total("n_unscorable_key"),
    n_truncated=total("truncated"),
    top5_documents_share=perplexity.top_documents_share(
      np.array([document.n_key_tokens for document in documents], int)
    ),
    warnings=tuple(
      caveats.find(
        documents,
        scores,
        manifest=keys,
        max_length=facts.get("max_length"),
        model=facts.get("model"),
      )
    ),
    keys=keys.to_json() if keys else {},
    documents=tuple(documents),
    **facts,
  )


def _commonest(reasons: Sequence[str]) -> str:
  # The first of equals: a set would order them anew in each process.
  return max(dict.fromkeys(reasons), key=reasons.count, default="")
