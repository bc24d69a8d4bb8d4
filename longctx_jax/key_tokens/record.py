"""Key tokens of one document: what an evaluator found, and at which thresholds.

Arrays obey the alignment law: index t speaks of the t-th scored target. Log-
probs are in nats, offsets are half-open and count characters (code points).
"""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.paper import contrast
from longctx_jax.paper import spans as spans_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.text import corpus

# Why a document has no key tokens; the first that applies.
REASONS = (
  "empty",
  "nothing_to_score",
  "too_long",
  "failed",
  "unusable_offsets",
  "too_short",
  "no_key_tokens",
)


# Scores that other thresholds change, and that need the ids to be restated.
_LOST_SCORES = ("copied_share", "n_mirror", "n_near_threshold")


class KeyToken(NamedTuple):
  """One key token, to be read.

  Attributes:
    text: its characters.
    start, end: where they stand in the document.
    long_prob: P(token | full context).
    short_prob: P(token | only the last K tokens).
  """

  text: str
  start: int
  end: int
  long_prob: float
  short_prob: float


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class KeyTokens:
  """The key tokens of one document.

  Made by `make_key_tokens`, or read from a store, which may hold less: with
  detail "keys" the arrays cover the key tokens only, with "scores" there are
  neither arrays nor spans, with "spans" (the reference's slice files) there
  are spans alone and the token counts are 0.

  Attributes:
    doc_id: id of the document in its corpus.
    doc_index: its index there.
    text_sha256: hash of the text as read; "" where it could not be read.
    n_chars: characters that were scored, after truncation. Models under test
      see these and no more.
    n_tokens: scored targets.
    n_tokens_full: targets before truncation.
    n_eligible: targets that can be key, max(0, n - K - d).
    reason: "" where there are key tokens, else one of REASONS.
    truncated: whether the text was cut.
    offsets: int64 [T, 2], the characters of each target.
    long_log_probs: float32 [T], under the full context.
    short_log_probs: float32 [T], under the short one; NaN where unscored.
    key_mask: bool [T].
    spans: int64 [S, 2], the key tokens' characters, merged where touching.
    scores: scores of the document; None where there is no number.
    columns: columns of the corpus that pass through.
    manifest: how it was made; its thresholds are those of the mask.
    text: the document, where the record was made from it; no store holds it.
  """

  doc_id: str
  doc_index: int
  text_sha256: str
  n_chars: int
  n_tokens: int
  n_tokens_full: int
  n_eligible: int
  reason: str
  truncated: bool
  offsets: np.ndarray | None
  long_log_probs: np.ndarray | None
  short_log_probs: np.ndarray | None
  key_mask: np.ndarray | None
  spans: np.ndarray
  scores: dict[str, float | None]
  columns: dict[str, Any]
  manifest: Manifest
  text: str | None = None

  def __repr__(self) -> str:
    counted = self.reason or (
      f"{len(self.spans):,} spans"
      if self.key_mask is None
      else f"{int(self.key_mask.sum()):,} key tokens of {self.n_tokens:,}"
    )
    name = self.manifest.evaluator
    return f"KeyTokens({self.doc_id!r}: {counted}, by {name})"

  def require_text(self, text: str | None = None) -> str:
    """The document's text: the one given, or the record's own.

    Raises:
      ValueError: there is neither, or it is another one.
    """
    text = self.text if text is None else text
    if text is None:
      raise ValueError(
        f"the key tokens of document {self.doc_id!r} come without its text: "
        "give it beside them"
      )
    if corpus.text_sha256(text) != self.text_sha256:
      raise ValueError(
        f"the key tokens of document {self.doc_id!r} were found in another text"
      )
    return text

  def tokens(self, text: str | None = None) -> list[KeyToken]:
    """The key tokens in their order, with their text and both probabilities.

    Args:
      text: the document; not needed where the record has it.

    Raises:
      ValueError: no text, or another one; or no log-probs are stored.
    """
    text = self.require_text(text)
    if self.key_mask is None:
      if self.reason:
        return []
      raise ValueError(
        f"document {self.doc_id!r}: detail={self.manifest.detail} keeps no "
        "log-probs of tokens"
      )
    return [
      KeyToken(text[start:end], start, end, float(long), float(short))
      for (start, end), long, short in zip(
        self.offsets[self.key_mask].tolist(),
        np.exp(self.long_log_probs[self.key_mask]),
        np.exp(self.short_log_probs[self.key_mask]),
        strict=True,
      )
    ]

  def with_thresholds(self, alpha: float, beta: float) -> "KeyTokens":
    """The same document under other thresholds; no model is needed.

    Scores that count key tokens are restated; those that would need the token
    ids (`copied_share`, `n_mirror`, `n_near_threshold`) become None.

    Args:
      alpha: a key token's long minus short log-prob lies above, nats.
      beta: its long log-prob lies above, nats.

    Returns:
      A record with its own mask, spans and reason.

    Raises:
      ValueError: see `restated`.
    """
    manifest = restated(self.manifest, Thresholds(alpha, beta))
    if manifest.thresholds == self.manifest.thresholds:
      return self
    fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
    del fields["key_mask"], fields["spans"], fields["text"]
    found = make_key_tokens(**fields | {"manifest": manifest})
    found = dataclasses.replace(found, text=self.text)
    if found.key_mask is None:
      return found
    n_keys = int(found.key_mask.sum())
    counts = {
      "n_key_tokens": n_keys,
      "key_token_ratio": n_keys / self.n_eligible if self.n_eligible else None,
      **dict.fromkeys(_LOST_SCORES),
    }
    known = {name: counts[name] for name in self.scores if name in counts}
    return dataclasses.replace(found, scores={**self.scores, **known})

  def long_log_probs_at(self, offsets: np.ndarray) -> np.ndarray:
    """The log-probs of those targets that are here too; NaN for the others.

    Args:
      offsets: characters of another model's targets [T, 2]. Of several at one
        place the first is taken, on both sides.

    Returns:
      float32 [T], nats.
    """
    found = np.full(len(offsets), np.nan, np.float32)
    if self.long_log_probs is not None:
      theirs, own = (
        pairs[:, 0] * (self.n_chars + 1) + pairs[:, 1]
        for pairs in (offsets, self.offsets)
      )
      _, there, here = np.intersect1d(theirs, own, return_indices=True)
      found[there] = self.long_log_probs[here]
    return found

  def to_slices(self, path: str | os.PathLike) -> None:
    """Writes the spans as the reference's slice file.

    Raises:
      ValueError: the record holds scores only.
    """
    require_spans(self.manifest)
    spans_lib.write_slices(path, self.spans)


def make_key_tokens(
  *,
  doc_id: str,
  doc_index: int,
  text_sha256: str,
  n_chars: int,
  n_tokens: int,
  n_tokens_full: int,
  n_eligible: int,
  offsets: ArrayLike | None,
  long_log_probs: ArrayLike | None,
  short_log_probs: ArrayLike | None,
  manifest: Manifest,
  reason: str = "",
  truncated: bool = False,
  scores: dict[str, float | None] | None = None,
  columns: dict[str, Any] | None = None,
) -> KeyTokens:
  """Derives key tokens from log-probs: the paper's hard criterion.

  A target is key as `contrast.key_token_mask` says, under the thresholds of
  the manifest; never where short is NaN, and not at all where `reason`
  excludes it. Targets without characters (special tokens) give no
  span. With alpha = 2, beta = -2, long = [-1, -1, -3], short = [-4, -3, -9]
  the first alone is key.

  Args:
    doc_id: this and what is not named below: the fields of `KeyTokens`.
    offsets: int [T, 2]; None, as the log-probs, where nothing was scored.
    long_log_probs: [T], nats.
    short_log_probs: [T], nats, NaN where unscored.
    manifest: how the log-probs were made, and the thresholds.
    reason: why there can be no key tokens, as far as known already;
      "no_key_tokens" is found here.
    scores: those named like a field of `KeyTokens` are left out.

  Returns:
    The record. Its arrays are read-only copies.

  Raises:
    ValueError: an unknown reason, no arrays and no reason, or arrays whose
      lengths differ.
  """
  if reason and reason not in REASONS:
    raise ValueError(f"reason is {reason!r}; known: {', '.join(REASONS)}.")
  key_mask, spans = None, np.zeros((0, 2), np.int64)
  if offsets is None:
    if not reason and manifest.detail in ("tokens", "keys"):
      raise ValueError(f"document {doc_id!r} has no log-probs and no reason.")
  else:
    # The one reason that depends on the thresholds.
    reason = "" if reason == "no_key_tokens" else reason
    offsets = np.array(offsets, np.int64).reshape(-1, 2)
    long_log_probs = np.array(long_log_probs, np.float32)
    short_log_probs = np.array(short_log_probs, np.float32)
    lengths = {len(offsets), len(long_log_probs), len(short_log_probs)}
    if manifest.detail == "tokens":
      lengths.add(n_tokens)
    if len(lengths) > 1:
      raise ValueError(
        f"document {doc_id!r}: {n_tokens} scored targets, {len(offsets)} "
        f"offsets, {len(long_log_probs)} long and {len(short_log_probs)} short "
        "log-probs; expected one of each for every target."
      )
    key_mask = contrast.key_token_mask(
      long_log_probs, short_log_probs, manifest.thresholds
    )
    key_mask &= not reason
    spans = spans_lib.merge_adjacent(offsets[key_mask])
    if not reason and not len(spans):
      reason = "no_key_tokens"
  for array in (offsets, long_log_probs, short_log_probs, key_mask, spans):
    if array is not None:
      array.setflags(write=False)
  fields = {field.name for field in dataclasses.fields(KeyTokens)}
  return KeyTokens(
    doc_id=doc_id,
    doc_index=doc_index,
    text_sha256=text_sha256,
    n_chars=n_chars,
    n_tokens=n_tokens,
    n_tokens_full=n_tokens_full,
    n_eligible=n_eligible,
    reason=reason,
    truncated=truncated,
    offsets=offsets,
    long_log_probs=long_log_probs,
    short_log_probs=short_log_probs,
    key_mask=key_mask,
    spans=spans,
    scores={n: s for n, s in (scores or {}).items() if n not in fields},
    columns=dict(columns or {}),
    manifest=manifest,
  )


def of_spans(
  document: corpus.Document,
  spans: np.ndarray,
  manifest: Manifest,
  *,
  text_sha256: str,
  reason: str,
) -> KeyTokens:
  """The record of a document of which key spans are known, and nothing else.

  Args:
    document: whose spans they are.
    spans: characters, half-open, int64 [S, 2].
    manifest: of detail "spans".
    text_sha256: hash of the text.
    reason: "" where there are spans, else why there are none.
  """
  made = make_key_tokens(
    doc_id=document.doc_id,
    doc_index=document.doc_index,
    text_sha256=text_sha256,
    n_chars=len(document.text or ""),
    n_tokens=0,
    n_tokens_full=0,
    n_eligible=0,
    offsets=None,
    long_log_probs=None,
    short_log_probs=None,
    reason=reason,
    columns=document.columns,
    manifest=manifest,
  )
  spans.setflags(write=False)
  return dataclasses.replace(made, spans=spans)


def restated(manifest: Manifest, thresholds: Thresholds) -> Manifest:
  """The manifest of the same key tokens under other thresholds.

  Args:
    manifest: of the key tokens; its `detail` says which log-probs are there.
    thresholds: asked for.

  Raises:
    ValueError: no log-probs are stored, or only those of the key tokens and a
      threshold lies below the one they were kept at; both pairs are named.
  """
  detail, kept = manifest.detail, manifest.thresholds
  rises = thresholds.alpha >= kept.alpha and thresholds.beta >= kept.beta
  if thresholds == kept or detail == "tokens" or (detail == "keys" and rises):
    return dataclasses.replace(manifest, thresholds=thresholds)
  why = {
    "keys": "it holds the log-probs of those key tokens only (detail=keys), "
    "so thresholds can rise but not fall",
    "scores": "it holds scores and no log-probs (detail=scores)",
    "spans": "it holds the text spans and no log-probs (slice files)",
  }[detail]
  raise ValueError(
    f"the key-token store was made with alpha={kept.alpha}, "
    f"beta={kept.beta} and can't be read with alpha={thresholds.alpha}, "
    f"beta={thresholds.beta}: {why}. Use its thresholds or score again with "
    "detail=tokens."
  )


def require_spans(manifest: Manifest) -> None:
  """Checks that key tokens come with spans, so that models can be evaluated.

  Raises:
    ValueError: the store holds document scores only.
  """
  if manifest.detail == "scores":
    raise ValueError(
      "the key-token store holds scores and no key tokens (detail=scores). "
      "Score again with detail=tokens or detail=keys."
    )
