"""What a reader of a result must know: see docs/design.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longctx_jax.evaluation import documents as documents_lib
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.model import int8, rope

_HIGH_COPIED_SHARE = 0.3
_HIGH_MIRROR_SHARE = 0.2
_LOW_COVERAGE = 0.9
_HIGH_KEY_SHARE = 0.5
# Why a document was not read though it has a text, and what helps.
_REMEDIES = {
  "nothing_to_score": "",
  "too_long": "; --max_length, or --over_length truncate_end",
  "failed": "",
  "unusable_offsets": "; the tokenizer does not say which characters its "
  "tokens stand for",
}
# Weights in bfloat16 or 8 bits change a loss by about 1 %, a BOS in front by 3;
# two models that were trained apart differ by 20 % and more.
_SAME_MODEL_GAP = 0.05


def find(
  documents: Sequence[DocumentResult],
  scores: Sequence[Mapping[str, Any]],
  *,
  manifest: Manifest | None = None,
  max_length: int | None = None,
  model: Mapping[str, Any] | None = None,
) -> list[str]:
  """One sentence each, what is left out first.

  Args:
    documents: under one model.
    scores: document scores of the key-token store, where it has any.
    manifest: of the key tokens; None where nobody asks how they were made.
    max_length: ids that the model reads; None where it ran elsewhere.
    model: what is known of it; None where it ran elsewhere.
  """
  return [
    *_left_out(documents, max_length),
    *_of_key_tokens(documents, scores),
    *_coverage(documents),
    *(rope_tables(documents, manifest) if manifest else []),
    *_rounded("the evaluator", manifest.to_json() if manifest else {}),
    *_rounded("this model", model or {}),
  ]


def _rounded(who: str, facts: Mapping[str, Any]) -> list[str]:
  found = []
  if int8.is_named(facts.get("weight_format")):
    found.append(f"the kernels of {who} are rounded to int8")
  if facts.get("dtype") not in (None, "float32"):
    found.append(f"{who} ran in {facts['dtype']}")
  return found


def _left_out(
  documents: Sequence[DocumentResult], max_length: int | None
) -> list[str]:
  found = []
  for reason, remedy in _REMEDIES.items():
    unread = [one for one in documents if one.reason == reason]
    if unread:
      causes = [f": {one.cause}" for one in unread if one.cause] or [""]
      found.append(
        f"{len(unread)} of {len(documents)} documents were not read ({reason}, "
        f"{unread[0].doc_id!r} first{causes[0]}){remedy}"
      )
  read = [one for one in documents if one.n_chars_read]
  short = [one for one in read if one.n_chars_scored < one.n_chars]
  if short:
    share = 1 - _ratio(short, "n_chars_scored", "n_chars")
    found.append(
      f"the evaluator read {len(short)} of {len(documents)} documents in part: "
      f"{share:.0%} of their characters are unread, by every model; score with "
      "a larger --max_length"
    )
  cut = [one for one in read if one.truncated]
  if cut:
    share = 1 - _ratio(cut, "n_chars_read", "n_chars_scored")
    first = cut[0]
    limit = f"this model's {max_length:,} ids" if max_length else "a part"
    remedy = (
      "--max_length"
      if max_length
      else f"of {first.doc_id!r} characters {first.read_from:,} to "
      f"{first.read_to:,} of {first.n_chars_scored:,} have log-probs"
    )
    found.append(
      f"{len(cut)} of {len(documents)} documents were cut to {limit}: "
      f"{share:.0%} of their characters are unread; {remedy}"
    )
  return found


def _ratio(documents: Sequence[DocumentResult], part: str, whole: str) -> float:
  return sum(getattr(one, part) for one in documents) / max(
    sum(getattr(one, whole) for one in documents), 1
  )


def _of_key_tokens(
  documents: Sequence[DocumentResult], scores: Sequence[Mapping[str, Any]]
) -> list[str]:
  def total(name: str, weight: str = "") -> float:
    return sum(
      (one.get(name) or 0) * ((one.get(weight) or 0) if weight else 1)
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
    eligible = sum(document.n_eligible for document in documents)
    if eligible and n_keys / eligible > _HIGH_KEY_SHARE:
      found.append(
        f"{n_keys / eligible:.0%} of the eligible tokens are key: does the "
        "evaluator need a BOS in every window (protocol 'strict')?"
      )
  return found


def _coverage(documents: Sequence[DocumentResult]) -> list[str]:
  found = []
  key_chars = sum(document.key_chars for document in documents)
  unread = sum(document.unread_key_chars for document in documents)
  if unread:
    found.append(
      f"{unread / key_chars:.0%} of the key characters stand where this model "
      "did not read"
    )
  covered = sum(document.covered_chars for document in documents)
  read = key_chars - unread
  if read and covered / read < _LOW_COVERAGE:
    found.append(
      f"this tokenizer's tokens cover {covered / read:.0%} of the key "
      f"characters{' that it read' if unread else ''}"
    )
  if is_near_evaluator(documents):
    found.append(
      "its losses are the evaluator's to within "
      f"{evaluator_gap(documents):.1%}: LongPPL is bounded by construction"
    )
  scored = [document for document in documents if document.n_tokens]
  labels = documents_lib.text_labels(scored)
  if copies := len(scored) - len(set(labels.tolist())):
    found.append(
      f"{copies} of {len(documents)} documents are copies of another: "
      "intervals count a text once"
    )
  return found


def evaluator_gap(documents: Sequence[DocumentResult]) -> float | None:
  """How far a model's losses lie from the evaluator's, as a share of these.

  sum |NLL_model - NLL_evaluator| / sum NLL_evaluator over the targets that
  both have; None where nothing is known of the evaluator's.
  """
  nll_sum = sum(document.shared_nll_sum for document in documents)
  gap_sum = sum(document.shared_gap_sum for document in documents)
  return gap_sum / nll_sum if nll_sum else None


def is_near_evaluator(documents: Sequence[DocumentResult]) -> bool:
  """Whether the log-probs are the evaluator's, but for rounding of weights."""
  gap = evaluator_gap(documents)
  return gap is not None and gap <= _SAME_MODEL_GAP


def window_length(manifest: Manifest) -> int:
  """Ids that a pass of short context reads: K + d, and the BOS it repeats."""
  return manifest.windows.length + manifest.prefix_len


def rope_tables(
  documents: Sequence[DocumentResult], manifest: Manifest
) -> list[str]:
  """Where the evaluator's long and short passes used different RoPE tables.

  Args:
    documents: under any model; their eligible ids are the evaluator's.
    manifest: of the key tokens.
  """
  if not manifest.rope_by_length:
    return []
  short_length = window_length(manifest)

  def table(length: int) -> str:
    return rope.name_table(**manifest.rope_by_length, length=length)

  lengths = [short_length + d.n_eligible for d in documents if d.n_eligible]
  mixed = [n for n in lengths if table(n) != table(short_length)]
  if not mixed:
    return []
  return [
    f"the evaluator read {len(mixed)} of {len(lengths)} documents with another "
    f"RoPE table ({table(max(mixed))}) than their short contexts "
    f"({table(short_length)}): key tokens mix the effects of context and table"
  ]
