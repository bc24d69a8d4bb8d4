"""One model on key tokens: a pass over the documents, sums per document."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Float, Int

from longctx_jax.evaluation import identity
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.key_tokens import manifest as manifest_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.paper import intervals, spans
from longctx_jax.scoring import finder, protocol
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.scoring.protocol import Prepared

# Documents that no model can be evaluated on.
UNREADABLE = (
  "empty",
  "nothing_to_score",
  "too_long",
  "failed",
  "unusable_offsets",
)


# Longest first token: a text that begins later was cut at its front.
_FIRST_TOKEN_CHARS = 256


def document_result(
  keys: KeyTokens,
  text: str,
  offsets: Int[np.ndarray, "T 2"],
  log_probs: Float[np.ndarray, " T"],
  *,
  unpredicted: Int[np.ndarray, " 2"] | None = None,
  read: tuple[int, int] | None = None,
) -> DocumentResult:
  """Key spans projected on a model's targets, and the sums over them.

  A target is key iff its characters lie wholly in one span (paper, section
  3.2; "contained"). A document whose log-probs are not finite is failed.

  Args:
    keys: of the document.
    text: the document, all of it.
    offsets: characters of the targets [T, 2].
    log_probs: log P(target | full context) [T], nats.
    unpredicted: characters of the first id, where nothing predicts it [2].
    read: characters [a, b) that the model read; None for all that the
      evaluator did.
  """
  bad = ~np.isfinite(log_probs)
  if bad.any():
    t = int(bad.argmax())
    return unscored(
      keys,
      text,
      "failed",
      cause=f"the log-prob of target {t} of {len(bad)} is {log_probs[t]}: the "
      "weights are damaged, or overflow in their dtype",
    )
  read_from, read_to = read or (0, keys.n_chars)
  key_mask = spans.project(keys.spans, offsets, policy="contained")
  nll = -np.asarray(log_probs, np.float64)
  regions = intervals.region_labels(key_mask)
  facts = unscored(keys, text, keys.reason)
  covered = spans.covered_share(keys.spans, offsets, key_mask) or 0.0
  unscorable = 0
  if unpredicted is not None:
    first = spans.project(keys.spans, unpredicted[None], policy="contained")
    unscorable = int(first[0])
  reason = keys.reason
  if not reason and not key_mask.any():
    reason = "no_key_tokens"
  shared_nll_sum, shared_gap_sum = _compare(keys, offsets, log_probs)
  scored = text[offsets[:, 0].min() : offsets[:, 1].max()]
  inside = np.clip(spans.merge_adjacent(keys.spans), read_from, read_to)
  return dataclasses.replace(
    facts,
    reason=reason,
    n_tokens=len(nll),
    nll_sum=float(nll.sum()),
    n_bytes=len(scored.encode()),
    n_words=len(scored.split()),
    region_nll_sums=tuple(np.bincount(regions, weights=nll[key_mask]).tolist()),
    region_counts=tuple(np.bincount(regions).tolist()),
    key_bytes=sum(
      len(text[start:end].encode())
      for start, end in spans.merge_adjacent(offsets[key_mask])
    ),
    covered_chars=round(covered * facts.key_chars),
    n_unscorable_key=unscorable,
    truncated=read_to - read_from < keys.n_chars,
    read_from=read_from,
    read_to=read_to,
    unread_key_chars=facts.key_chars - int(np.diff(inside).sum()),
    shared_nll_sum=shared_nll_sum,
    shared_gap_sum=shared_gap_sum,
  )


def unscored(
  keys: KeyTokens, text: str, reason: str, *, cause: str = ""
) -> DocumentResult:
  """A document that the model did not read: its key tokens count as missed.

  Args:
    keys: of the document.
    text: the document, all of it.
    reason: why.
    cause: of reason "failed".
  """
  # Slice files may hold the byte tokens of one character one by one.
  key_chars = int(np.diff(spans.merge_adjacent(keys.spans)).sum())
  return DocumentResult(
    doc_id=keys.doc_id,
    doc_index=keys.doc_index,
    reason=reason,
    n_eligible=keys.n_eligible,
    key_chars=key_chars,
    text_sha256=keys.text_sha256,
    keys_sha256=identity.keys_sha256(keys),
    n_chars=len(text),
    n_chars_scored=keys.n_chars,
    unread_key_chars=key_chars,
    cause=cause,
  )


def _compare(keys, offsets, log_probs):
  """(evaluator's NLL, sum of differences) over targets that both have."""
  if keys.long_log_probs is None:
    return 0.0, 0.0

  def places(pairs):
    return pairs[:, 0] * (keys.n_chars + 1) + pairs[:, 1]

  _, mine, theirs = np.intersect1d(
    places(offsets), places(keys.offsets), return_indices=True
  )
  log_probs = np.asarray(log_probs, np.float64)[mine]
  expected = keys.long_log_probs[theirs].astype(np.float64)
  known = np.isfinite(log_probs) & np.isfinite(expected)
  gaps = np.abs(log_probs - expected)[known]
  return -float(expected[known].sum()), float(gaps.sum())


def check_log_probs(
  doc_id: str, text: str, log_probs: Any, offsets: Any
) -> tuple[np.ndarray, np.ndarray]:
  """Log-probs from elsewhere as arrays, if they fit the text.

  Raises:
    ValueError: other lengths, a log-prob that is not a number or above 0, or
      offsets that are unordered or outside the text; the first fault is named.
  """
  try:
    log_probs = np.asarray(log_probs, np.float64)
    given = np.asarray(offsets)
    offsets = given.astype(np.int64).reshape(-1, 2)
    if given.size and (given != offsets.reshape(given.shape)).any():
      raise ValueError("an offset is no integer")
  except (TypeError, ValueError, OverflowError) as error:
    raise ValueError(
      f"document {doc_id!r}: log-probs are numbers, offsets pairs of integers: "
      f"{error}"
    ) from error
  if len(log_probs) != len(offsets) or not len(log_probs):
    raise ValueError(
      f"document {doc_id!r}: {len(log_probs)} log-probs and {len(offsets)} "
      "offsets; there must be one of each per target"
    )
  # Rounding may leave a certain token a hair above 0.
  bad = ~np.isfinite(log_probs) | (log_probs > 1e-3)
  if bad.any():
    t = int(bad.argmax())
    raise ValueError(
      f"document {doc_id!r}: log-prob {log_probs[t]} at target {t} is not the "
      "logarithm of a probability (nats)"
    )
  starts, ends = offsets[:, 0], offsets[:, 1]
  bad = (starts < 0) | (ends < starts) | (ends > len(text))
  bad[1:] |= np.diff(starts) < 0
  if bad.any():
    t = int(bad.argmax())
    raise ValueError(
      f"document {doc_id!r}: offsets {offsets[t].tolist()} at target {t} are "
      f"unordered or outside the text of {len(text)} characters"
    )
  return np.minimum(log_probs, 0.0), offsets


def result_from_log_probs(
  keys: KeyTokens, text: str, log_probs: Any, offsets: Any
) -> DocumentResult:
  """A document under a model whose log-probs were computed elsewhere.

  Args:
    keys: of the document.
    text: the document.
    log_probs: log P(target | full context) [T], nats; not read where there is
      nothing to evaluate.
    offsets: characters of the targets [T, 2].

  Raises:
    ValueError: see `check_log_probs`.
  """
  if keys.reason in UNREADABLE:
    return unscored(keys, text, keys.reason)
  log_probs, offsets = check_log_probs(keys.doc_id, text, log_probs, offsets)
  # What the evaluator did not read of a document counts for nobody.
  kept = offsets[:, 1] <= keys.n_chars
  if not kept.any():
    raise ValueError(
      f"document {keys.doc_id!r}: all {len(offsets)} offsets lie behind the "
      f"{keys.n_chars} characters that the evaluator read: the log-probs are "
      "of another part of the text"
    )
  offsets, log_probs = offsets[kept], log_probs[kept]
  read = _read_by_another(text[: keys.n_chars], offsets)
  return document_result(keys, text, offsets, log_probs, read=read)


def _read_by_another(
  text: str, offsets: Int[np.ndarray, "T 2"]
) -> tuple[int, int]:
  """Characters that an engine read, as far as its log-probs show it.

  The first token has none, and spaces at the end may belong to no token.
  """
  start, end = int(offsets[:, 0].min()), int(offsets[:, 1].max())
  if start <= _FIRST_TOKEN_CHARS:
    start = 0
  return start, end if text[end:].strip() else len(text)


@dataclasses.dataclass(frozen=True)
class Evaluated:
  """One document under the model: its sums and, where scored, its tokens.

  Attributes:
    keys: the evaluator's record.
    result: sums.
    prepared: what the model read, or None.
    log_probs: log P(target | full context) [T], nats, or None.
    reused: whether they are the evaluator's own.
  """

  keys: KeyTokens
  result: DocumentResult
  prepared: Prepared | None = None
  log_probs: np.ndarray | None = None
  reused: bool = False

  @property
  def key_mask(self) -> np.ndarray:
    """The model's key tokens, bool [T]."""
    return spans.project(
      self.keys.spans, self.prepared.offsets, policy="contained"
    )


class Evaluation:
  """One model on the key tokens of one manifest.

  Attributes:
    scorer: of the model under test.
    protocol: "paper" or "strict".
    self_evaluated: whether evaluator and model have the same weights or, where
      the key tokens come from slice files, the same name.
    reused: documents whose log-probs were the evaluator's own.
    max_length: ids that the model reads of a document.
  """

  def __init__(
    self,
    scorer: scorer_lib.Scorer,
    manifest: Manifest,
    *,
    max_length: int = 0,
    over_length: str = "truncate_end",
  ):
    self.scorer = scorer
    self.protocol = manifest.protocol
    self.reused = 0
    self._over_length = over_length
    self.max_length = max_length or scorer.model.config.max_position
    own = finder.identity(scorer.model)
    same = {
      name for name in identity.MODEL if getattr(manifest, name) == own[name]
    }
    self.self_evaluated = "checksum" in same or identity.has_evaluators_name(
      manifest, scorer.model.name
    )
    self._same_pass = (
      len(same) == len(identity.MODEL)
      and manifest.numerics == manifest_lib.NUMERICS
    )

  def check_bos(self, texts: Iterable[str]) -> None:
    """See `protocol.check_bos`; to be called before anything is evaluated."""
    if self.protocol == "paper":
      protocol.check_bos(self.scorer, texts)

  def evaluate(
    self, pairs: Iterable[tuple[KeyTokens, str]], *, ahead: bool = False
  ) -> Iterator[Evaluated]:
    """Evaluates documents; they come back as they finish.

    Args:
      pairs: read one by one, no further ahead than the passes need.
      ahead: read them in a thread, some passes further: for many.
    """
    # By place, since key tokens found one by one share their index.
    waiting: dict[int, tuple[KeyTokens, str, Prepared]] = {}

    def read() -> Iterator[tuple[Any, ...]]:
      for keys, text in pairs:
        prepared, log_probs = self._read(keys, text[: keys.n_chars])
        yield prepared, keys, text, log_probs

    def jobs(items: Iterable[Any]) -> Iterator[scorer_lib.Job | Evaluated]:
      for place, (prepared, keys, text, log_probs) in enumerate(items):
        if prepared.reason:
          yield Evaluated(keys, unscored(keys, text, prepared.reason))
        elif log_probs is not None:
          self.reused += 1
          yield _evaluated(keys, text, prepared, log_probs, reused=True)
        else:
          waiting[place] = keys, text, prepared
          yield scorer_lib.Job(place, prepared.ids, prepared.prefix_len)

    with protocol.reading(read(), ahead=ahead) as items:
      for done in self.scorer.score_long(jobs(items)):
        if isinstance(done, scorer_lib.Scores):
          done = _evaluated(*waiting.pop(done.job.key), done.long)
        yield done

  def _read(
    self, keys: KeyTokens, text: str
  ) -> tuple[Prepared, Float[np.ndarray, " T"] | None]:
    """What the model reads, and the evaluator's log-probs if they are its."""
    if keys.reason in UNREADABLE:
      return protocol.unscorable(keys.reason), None
    prepared = self._prepare(text, is_evaluator=False)
    if not self._same_pass or keys.manifest.detail != "tokens":
      return prepared, None
    theirs = self._prepare(text, is_evaluator=True)
    same = np.array_equal(theirs.ids, prepared.ids)
    same = same and np.array_equal(theirs.offsets, keys.offsets)
    return prepared, keys.long_log_probs if same else None

  def _prepare(self, text: str, *, is_evaluator: bool) -> Prepared:
    return protocol.prepare(
      text,
      self.scorer.model.tokenizer,
      protocol=self.protocol,
      is_evaluator=is_evaluator,
      max_length=self.max_length,
      over_length=self._over_length,
    )


def _evaluated(
  keys: KeyTokens,
  text: str,
  prepared: Prepared,
  log_probs: Float[np.ndarray, " T"],
  *,
  reused: bool = False,
) -> Evaluated:
  result = document_result(
    keys,
    text,
    prepared.offsets,
    log_probs,
    unpredicted=prepared.unpredicted,
    read=(0, prepared.n_chars),
  )
  if result.reason == "failed":
    logging.warning("document %r failed: %s", keys.doc_id, result.cause)
    return Evaluated(keys, result)
  return Evaluated(keys, result, prepared, log_probs, reused)
