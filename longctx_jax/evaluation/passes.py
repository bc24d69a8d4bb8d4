"""One model on key tokens: a pass over the documents, sums per document."""

from __future__ import annotations

import dataclasses
import re
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
from longctx_jax.scoring import eval_step, finder, protocol
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.scoring.eval_step import SumJob, Summed, Summer, Sums
from longctx_jax.scoring.protocol import Prepared
from longctx_jax.scoring.scorer import Job, Scores

# Documents that no model can be evaluated on.
UNREADABLE = (
  "empty",
  "nothing_to_score",
  "too_long",
  "failed",
  "unusable_offsets",
)


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
  marked = _mark(keys, text, offsets, unpredicted=unpredicted, read=read)
  sums = eval_step.sum_on_host(log_probs, marked.key_mask, marked.expected)
  return marked.result(sums)


@dataclasses.dataclass(frozen=True)
class _Marked:
  """A document as a model reads it, and what is to be summed of it.

  Fields as the arguments of `document_result`, and for each target: `key_mask`,
  whether it is key [T]; `expected`, the evaluator's log-prob, or NaN [T].
  """

  keys: KeyTokens
  text: str
  offsets: np.ndarray
  key_mask: np.ndarray
  expected: np.ndarray
  unpredicted: np.ndarray | None
  read: tuple[int, int]

  def result(self, sums: Sums) -> DocumentResult:
    """The document, once its log-probs are summed."""
    keys, text, offsets = self.keys, self.text, self.offsets
    count = len(offsets)
    if sums.fault:
      t, value = sums.fault
      return unscored(
        keys,
        text,
        "failed",
        cause=f"the log-prob of target {t} of {count} is {value}: the weights "
        "are damaged, or overflow in their dtype",
      )
    facts = unscored(keys, text, keys.reason)
    covered = spans.covered_share(keys.spans, offsets, self.key_mask) or 0.0
    unscorable = 0
    if self.unpredicted is not None:
      first = spans.project(
        keys.spans, self.unpredicted[None], policy="contained"
      )
      unscorable = int(first[0])
    reason = keys.reason
    if not reason and not self.key_mask.any():
      reason = "no_key_tokens"
    scored = text[offsets[:, 0].min() : offsets[:, 1].max()]
    inside = np.clip(spans.merge_adjacent(keys.spans), *self.read)
    read_from, read_to = self.read
    regions = intervals.region_labels(self.key_mask)
    shared = self.expected[np.isfinite(self.expected)].astype(np.float64)
    return dataclasses.replace(
      facts,
      reason=reason,
      n_tokens=count,
      nll_sum=sums.nll_sum,
      n_bytes=len(scored.encode()),
      n_words=len(scored.split()),
      region_nll_sums=sums.region_nll_sums,
      region_counts=tuple(np.bincount(regions).tolist()),
      key_bytes=sum(
        len(text[start:end].encode())
        for start, end in spans.merge_adjacent(offsets[self.key_mask])
      ),
      covered_chars=round(covered * facts.key_chars),
      n_unscorable_key=unscorable,
      truncated=read_to - read_from < keys.n_chars,
      read_from=read_from,
      read_to=read_to,
      unread_key_chars=facts.key_chars - int(np.diff(inside).sum()),
      shared_nll_sum=-float(shared.sum()),
      shared_gap_sum=sums.gap_sum,
    )


def _mark(
  keys: KeyTokens,
  text: str,
  offsets: Int[np.ndarray, "T 2"],
  *,
  unpredicted: Int[np.ndarray, " 2"] | None,
  read: tuple[int, int] | None,
) -> _Marked:
  key_mask = spans.project(keys.spans, offsets, policy="contained")
  return _Marked(
    keys=keys,
    text=text,
    offsets=offsets,
    key_mask=key_mask,
    expected=keys.long_log_probs_at(offsets),
    unpredicted=unpredicted,
    read=read or (0, keys.n_chars),
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


def has_evaluators_name(manifest: Manifest, name: str) -> bool:
  """Whether slice files, which say no more, are of a model of this name.

  Folders, hub ids and names of results agree in their last part.

  Args:
    manifest: of the key tokens.
    name: of the model under test.
  """

  def short(text):
    return re.split(r"/|--", text.rstrip("/"))[-1].lower()

  return manifest.detail == "spans" and (
    short(manifest.evaluator) == short(name)
  )


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
    summer: of the same model, where sums alone leave the devices; None where
      each log-prob does.
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
    summer: Summer | None = None,
  ):
    self.scorer = scorer
    self.summer = summer
    self.protocol = manifest.protocol
    self.reused = 0
    self._over_length = over_length
    self.max_length = max_length or scorer.model.config.max_position
    own = finder.identity(scorer.model)
    same = {
      name for name in identity.MODEL if getattr(manifest, name) == own[name]
    }
    self.self_evaluated = "checksum" in same or has_evaluators_name(
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
    waiting: dict[int, tuple[_Marked, Prepared]] = {}

    def read() -> Iterator[tuple[Any, ...]]:
      for keys, text in pairs:
        prepared, log_probs = self._read(keys, text[: keys.n_chars])
        yield prepared, keys, text, log_probs

    def jobs(items: Iterable[Any]) -> Iterator[Job | SumJob | Evaluated]:
      for place, (prepared, keys, text, log_probs) in enumerate(items):
        if prepared.reason:
          yield Evaluated(keys, unscored(keys, text, prepared.reason))
          continue
        marked = _mark(
          keys,
          text,
          prepared.offsets,
          unpredicted=prepared.unpredicted,
          read=(0, prepared.n_chars),
        )
        if log_probs is not None:
          self.reused += 1
          yield _evaluated(marked, prepared, log_probs, reused=True)
          continue
        waiting[place] = marked, prepared
        if self.summer:
          mask, expected = marked.key_mask, marked.expected
          yield SumJob(place, prepared.ids, mask, expected)
        else:
          yield Job(place, prepared.ids, prepared.prefix_len)

    run = self.summer.sum if self.summer else self.scorer.score_long
    with protocol.reading(read(), ahead=ahead) as items:
      for done in run(jobs(items)):
        if isinstance(done, Scores):
          done = _evaluated(*waiting.pop(done.job.key), done.long)
        elif isinstance(done, Summed):
          marked, prepared = waiting.pop(done.job.key)
          result = marked.result(done.sums)
          done = _noted(Evaluated(marked.keys, result, prepared))
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
  marked: _Marked,
  prepared: Prepared,
  log_probs: Float[np.ndarray, " T"],
  *,
  reused: bool = False,
) -> Evaluated:
  sums = eval_step.sum_on_host(log_probs, marked.key_mask, marked.expected)
  result = marked.result(sums)
  return _noted(Evaluated(marked.keys, result, prepared, log_probs, reused))


def _noted(done: Evaluated) -> Evaluated:
  """The same; of a document that failed, nothing but that, and in the log."""
  if done.result.reason != "failed":
    return done
  logging.warning("document %r failed: %s", done.keys.doc_id, done.result.cause)
  return Evaluated(done.keys, done.result)
