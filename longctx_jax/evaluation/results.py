"""Results: sums per document, pooled per model, and what to know of them."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from longctx_jax.model import rope
from longctx_jax.paper import intervals, perplexity

_HIGH_COPIED_SHARE = 0.3
_HIGH_MIRROR_SHARE = 0.2
_LOW_COVERAGE = 0.9
_HIGH_KEY_SHARE = 0.5
# Weights in bfloat16 or 8 bits change a loss by about 1 %, a BOS in front by 3;
# two models that were trained apart differ by 20 % and more.
_SAME_MODEL_GAP = 0.05


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
    text_sha256: hash of the text; "" where it is not known.
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
  shared_nll_sum: float = 0.0
  shared_gap_sum: float = 0.0

  @property
  def n_key_tokens(self) -> int:
    """Key tokens of the model under test."""
    return sum(self.region_counts)

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


@dataclasses.dataclass(frozen=True)
class LongPplResult:
  """LongPPL and PPL of one model over documents (paper, Eq. 6).

  Attributes:
    longppl: exp(sum of key NLL / key tokens), pooled; None without any.
    ppl: perplexity over all targets, weighted as the protocol says.
    ci95: 95 % interval of LongPPL, or None; see `intervals.longppl_ci95`.
    ci95_reason: "" for an interval over documents, "these texts only" for one
      over the key regions of few documents, or why there is none.
    n_key_tokens: key tokens of the model under test.
    n_key_regions: runs of key tokens with gaps of at most 16 targets.
    n_tokens: scored targets.
    key_coverage: share of the key characters that the key tokens cover.
    reason: why LongPPL is None: the commonest of the documents' reasons.
    protocol: "paper" or "strict".
    self_evaluated: the model is the evaluator, or nearly gives its log-probs,
      so that the thresholds bound the result by construction.
    documents: per document.
  """

  longppl: float | None
  ppl: float | None
  ci95: tuple[float | None, float | None] | None
  ci95_reason: str
  n_key_tokens: int
  n_key_regions: int
  n_tokens: int
  key_coverage: float | None
  reason: str
  protocol: str
  self_evaluated: bool
  documents: tuple[DocumentResult, ...]

  def to_dict(self) -> dict[str, Any]:
    """JSON-ready fields, documents included."""
    fields = dataclasses.asdict(self)
    fields["documents"] = [
      dataclasses.asdict(document)
      | {"longppl": document.longppl, "ppl": document.ppl}
      for document in self.documents
    ]
    return fields

  def __str__(self) -> str:
    def number(value):
      return "none" if value is None else f"{value:.2f}"

    label = self.ci95_reason.replace("_", " ")
    interval = ""
    if self.ci95 is not None:
      low, high = map(number, self.ci95)
      interval = f" [{low}, {high}]" + (f" ({label})" if label else "")
    elif self.longppl is not None:
      interval = f" (no interval: {label})"
    why = f" ({self.reason})" if self.reason else ""
    return (
      f"LongPPL {number(self.longppl)}{interval}{why}  PPL {number(self.ppl)}  "
      f"keys {self.n_key_tokens:,} in {self.n_key_regions:,} regions  "
      f"coverage {number(self.key_coverage)}  {self.protocol}"
      f"{'  self-evaluated' if self.self_evaluated else ''}"
    )


def summarise(
  documents: Sequence[DocumentResult],
  *,
  protocol_name: str,
  self_evaluated: bool,
) -> LongPplResult:
  """Pools documents: sums first, one division at the end.

  Args:
    documents: sums of each.
    protocol_name: "paper" or "strict".
    self_evaluated: whether the model is known to be the evaluator; it is found
      here where its log-probs are nearly the evaluator's.
  """
  ci95, ci95_reason = intervals.longppl_ci95(
    [d.region_nll_sums for d in documents],
    [d.region_counts for d in documents],
    _texts(documents),
  )
  nll_sums = np.array([d.nll_sum for d in documents])
  n_tokens = np.array([d.n_tokens for d in documents], int)
  ppl = (
    perplexity.paper_ppl if protocol_name == "paper" else perplexity.strict_ppl
  )
  n_keys = sum(d.n_key_tokens for d in documents)
  key_chars = sum(d.key_chars for d in documents)
  reasons = [d.reason for d in documents if d.reason]
  return LongPplResult(
    longppl=perplexity.perplexity(
      sum(d.key_nll_sum for d in documents), n_keys
    ),
    ppl=ppl(nll_sums, n_tokens),
    ci95=ci95,
    ci95_reason=ci95_reason,
    n_key_tokens=n_keys,
    n_key_regions=sum(len(d.region_counts) for d in documents),
    n_tokens=int(n_tokens.sum()),
    key_coverage=(
      sum(d.covered_chars for d in documents) / key_chars if key_chars else None
    ),
    reason="" if n_keys else _commonest(reasons),
    protocol=protocol_name,
    self_evaluated=self_evaluated or _is_near(evaluator_gap(documents)),
    documents=tuple(documents),
  )


def evaluator_gap(documents: Sequence[DocumentResult]) -> float | None:
  """How far a model's losses lie from the evaluator's, as a share of these.

  sum |NLL_model - NLL_evaluator| / sum NLL_evaluator over the targets that
  both have; None where nothing is known of the evaluator's.
  """
  nll_sum = sum(document.shared_nll_sum for document in documents)
  gap_sum = sum(document.shared_gap_sum for document in documents)
  return gap_sum / nll_sum if nll_sum else None


def _is_near(gap):
  return gap is not None and gap <= _SAME_MODEL_GAP


def _texts(documents):
  return intervals.text_labels(
    [d.text_sha256 for d in documents],
    [d.nll_sum for d in documents],
    [d.n_tokens for d in documents],
    [d.key_nll_sum for d in documents],
    [d.n_key_tokens for d in documents],
  )


def _count_copies(documents):
  scored = [document for document in documents if document.n_tokens]
  return len(scored) - len(set(_texts(scored).tolist()))


def _commonest(reasons):
  # The first of equals: a set would order them anew in each process.
  return max(dict.fromkeys(reasons), key=reasons.count, default="")


def pooled_fields(
  result: LongPplResult, scores: Sequence[dict[str, Any]]
) -> dict[str, Any]:
  """The fields of a result file: JSON-ready, sums beside every quotient.

  Args:
    result: pooled.
    scores: document scores of the key-token store, where it has any.
  """
  documents = result.documents
  nll_sum = sum(document.nll_sum for document in documents)
  key_nll_sum = sum(document.key_nll_sum for document in documents)
  n_bytes = sum(document.n_bytes for document in documents)
  n_words = sum(document.n_words for document in documents)
  key_bytes = sum(document.key_bytes for document in documents)
  near = [one["n_near_threshold"] for one in scores if one]
  null_reasons = collections.Counter(d.reason for d in documents if d.reason)
  return {
    "longppl": result.longppl,
    "longppl_ci95": result.ci95,
    "longppl_ci95_reason": result.ci95_reason,
    "ppl": result.ppl,
    "protocol": result.protocol,
    "self_evaluated": result.self_evaluated,
    "nll_sum_nats": nll_sum,
    "key_nll_sum_nats": key_nll_sum,
    "n_tokens": result.n_tokens,
    "n_words": n_words,
    "n_bytes": n_bytes,
    "token_ppl": perplexity.perplexity(nll_sum, result.n_tokens),
    "word_ppl": perplexity.perplexity(nll_sum, n_words),
    "byte_ppl": perplexity.perplexity(nll_sum, n_bytes),
    "bits_per_byte": perplexity.bits_per_byte(nll_sum, n_bytes),
    "key_bits_per_byte": perplexity.bits_per_byte(key_nll_sum, key_bytes),
    "n_key_tokens": result.n_key_tokens,
    "n_key_regions": result.n_key_regions,
    "n_eligible": sum(document.n_eligible for document in documents),
    "n_documents": len(documents),
    "n_documents_eligible": sum(d.n_eligible > 0 for d in documents),
    "null_reasons": dict(null_reasons),
    "key_coverage": result.key_coverage,
    # Thresholds other than the stored ones leave the count unknown.
    "n_near_threshold": None if None in near or not near else sum(near),
    "n_unscorable_key": sum(d.n_unscorable_key for d in documents),
    "n_truncated": sum(document.truncated for document in documents),
    "top5_documents_share": perplexity.top_documents_share(
      np.array([document.n_key_tokens for document in documents], int)
    ),
    "warnings": warnings_of(result, scores),
  }


def warnings_of(
  result: LongPplResult, scores: Sequence[dict[str, Any]]
) -> list[str]:
  """What a reader of the result must know; see docs/design.md.

  Args:
    result: pooled.
    scores: document scores of the key-token store, where it has any.
  """

  def total(name, weight=None):
    return sum(
      (one.get(name) or 0) * (1 if weight is None else one.get(weight) or 0)
      for one in scores
    )

  found = []
  n_keys = total("n_key_tokens")
  if n_keys:
    copied = total("copied_share", "n_key_tokens") / n_keys
    mirror = total("n_mirror") / n_keys
    if copied > _HIGH_COPIED_SHARE:
      found.append(
        f"{copied:.0%} of the key tokens end a run of 8 tokens that occurred "
        "before: repeated boilerplate"
      )
    if mirror > _HIGH_MIRROR_SHARE:
      found.append(
        f"{mirror:.0%} as many tokens are better without the long context: "
        "the noise floor is high"
      )
    eligible = sum(document.n_eligible for document in result.documents)
    if eligible and n_keys / eligible > _HIGH_KEY_SHARE:
      found.append(
        f"{n_keys / eligible:.0%} of the eligible tokens are key: does the "
        "evaluator need a BOS in every window (protocol 'strict')?"
      )
  if result.key_coverage is not None and result.key_coverage < _LOW_COVERAGE:
    found.append(
      f"this tokenizer's tokens cover {result.key_coverage:.0%} of the key "
      "characters"
    )
  if any(document.truncated for document in result.documents):
    found.append("documents were cut to this model's context")
  gap = evaluator_gap(result.documents)
  if result.self_evaluated and _is_near(gap):
    found.append(
      f"its losses are the evaluator's to within {gap:.1%}: LongPPL is bounded "
      "by construction"
    )
  if copies := _count_copies(result.documents):
    found.append(
      f"{copies} of {len(result.documents)} documents are copies of another: "
      "intervals count a text once"
    )
  return found


def window_length(manifest: dict[str, Any]) -> int:
  """Ids that a pass of short context reads: K + d, and the BOS it repeats."""
  repeated = manifest["protocol"] == "strict" and manifest["bos"] is not None
  return manifest["short_len"] + manifest["stride"] + repeated


def rope_warnings(
  documents: Sequence[DocumentResult], manifest: dict[str, Any]
) -> list[str]:
  """Where the evaluator's long and short passes used different RoPE tables.

  Args:
    documents: under any model; their eligible ids are the evaluator's.
    manifest: of the key tokens.
  """
  if "rope_by_length" not in manifest:
    return []
  short_length = window_length(manifest)

  def table(length):
    return rope.name_table(**manifest["rope_by_length"], length=length)

  lengths = [short_length + d.n_eligible for d in documents if d.n_eligible]
  mixed = [n for n in lengths if table(n) != table(short_length)]
  if not mixed:
    return []
  return [
    f"the evaluator read {len(mixed)} of {len(lengths)} documents with another "
    f"RoPE table ({table(max(mixed))}) than their short contexts "
    f"({table(short_length)}): key tokens mix the effects of context and table"
  ]
