"""What a model reads of a document: BOS and length, by protocol.

`paper` is what the reference code does: the evaluator reads the specials that
its tokenizer adds by default, a model under test reads none, and no window
but the first has a BOS. `strict` puts the BOS that the tokenizer itself adds
first into every pass and window, where it counts neither in K nor as text.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from absl import logging

from longctx_jax.key_tokens.manifest import OVER_LENGTH, PROTOCOLS
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import workers
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.text.tokenizer import (
  NotEmbedded,
  OffsetsUnusable,
  TextTokenizer,
)

# The check that a model can do without its BOS: targets, those left out at the
# start, where every model lacks context, and nats.
_BOS_CHECK_TARGETS = 512
_BOS_CHECK_SKIPPED = 16
_BOS_CHECK_NATS = 1.0

# Ids that may wait, tokenized, for the passes of those before them: enough for
# the devices never to wait, and a few MB.
_IDS_AHEAD = 1 << 18


class OverLength(ValueError):
  """A document is longer than allowed, and the policy is "error"."""


@dataclasses.dataclass(frozen=True)
class Prepared:
  """A document as a model reads it.

  Attributes:
    ids: int32 [n], BOS included where the protocol has one.
    offsets: int64 [n - 1, 2], the characters of each target.
    prefix_len: leading ids that every window repeats (0 or 1).
    n_chars: characters of the text that the ids cover.
    n_tokens_full: targets before truncation.
    truncated: whether the document was cut.
    reason: why it cannot be scored, else "".
    unpredicted: the characters of the first id, which is no target [2]; None
      where that is a BOS.
  """

  ids: np.ndarray
  offsets: np.ndarray
  prefix_len: int
  n_chars: int
  n_tokens_full: int
  truncated: bool
  reason: str
  unpredicted: np.ndarray | None = None

  @property
  def n_tokens(self) -> int:
    """Scored targets."""
    return 0 if self.reason else len(self.ids) - 1

  @property
  def n_text(self) -> int:
    """Ids of the text, the repeated prefix not counted."""
    return len(self.ids) - self.prefix_len


def check_protocol(protocol: str, over_length: str) -> None:
  """Raises ValueError for an unknown protocol or length policy."""
  for name, value, known in (
    ("protocol", protocol, PROTOCOLS),
    ("over_length", over_length, OVER_LENGTH),
  ):
    if value not in known:
      raise ValueError(f"{name}={value!r} is not one of {', '.join(known)}")


def prepare(
  text: str,
  tokenizer: TextTokenizer,
  *,
  protocol: str,
  is_evaluator: bool,
  max_length: int,
  over_length: str,
) -> Prepared:
  """Tokenizes a text as the protocol says and applies the length policy.

  Args:
    text: the document.
    tokenizer: of the model that is to read it.
    protocol: "paper" or "strict".
    is_evaluator: whether the model is to find key tokens; "paper" treats
      evaluators and models under test differently.
    max_length: ids that the model can read, BOS included.
    over_length: "truncate_end", "skip" (reason "too_long") or "error".

  Raises:
    OverLength: for a text over max_length under policy "error".
    ValueError: for a max_length below 2.
  """
  if max_length < 2:
    raise ValueError(
      f"max_length={max_length} must be at least 2: one id to read, one "
      "to score"
    )
  try:
    encoding = tokenizer.encode(
      text, add_special_tokens=protocol == "paper" and is_evaluator
    )
  except OffsetsUnusable:
    return unscorable("unusable_offsets")
  except NotEmbedded as error:
    logging.warning("a text cannot be read: %s", error)
    return unscorable("failed")
  ids, offsets = encoding.ids, encoding.offsets
  prefix_len = 0
  if protocol == "strict" and tokenizer.leading_bos is not None:
    prefix_len = 1
    if held := int((ids == tokenizer.leading_bos).sum()):
      logging.warning(
        "a text of %d ids holds the BOS itself, %d times, beside the one that "
        "the protocol puts first: what follows it is scored as if a document "
        "began there",
        len(ids),
        held,
      )
    ids = np.concatenate([[tokenizer.leading_bos], ids]).astype(np.int32)
    offsets = np.concatenate([np.zeros((1, 2), np.int64), offsets])
  if not text:
    return unscorable("empty")
  full = len(ids)
  if full < 2:
    return unscorable("nothing_to_score")
  n_chars = len(text)
  if full > max_length:
    if over_length == "skip":
      return unscorable("too_long", n_tokens_full=full - 1)
    if over_length == "error":
      raise OverLength(
        f"the document has {full} ids, the limit is {max_length}: set "
        "over_length to truncate_end or skip, or raise max_length"
      )
    keep = _whole_characters(offsets, max_length)
    ids, offsets = ids[:keep], offsets[:keep]
    n_chars = int(offsets[:, 1].max())
  return Prepared(
    ids=ids,
    offsets=offsets[1:],
    prefix_len=prefix_len,
    n_chars=n_chars,
    n_tokens_full=full - 1,
    truncated=full > max_length,
    reason="",
    unpredicted=offsets[0] if offsets[0].any() else None,
  )


def reading(
  items: Iterable[tuple[Any, ...]], *, ahead: bool
) -> contextlib.closing[Iterator[tuple[Any, ...]]]:
  """A context that gives the items, in their order, and stops their reading.

  Args:
    items: a `Prepared` and whatever belongs to it.
    ahead: read them in a thread, while those before them are scored.
  """
  limit = _IDS_AHEAD if ahead else 0
  return contextlib.closing(
    workers.read_ahead(items, limit=limit, weigh=lambda item: len(item[0].ids))
  )


def unscorable(reason: str, n_tokens_full: int = 0) -> Prepared:
  """A document that no model reads, and why."""
  return Prepared(
    ids=np.zeros(0, np.int32),
    offsets=np.zeros((0, 2), np.int64),
    prefix_len=0,
    n_chars=0,
    n_tokens_full=n_tokens_full,
    truncated=False,
    reason=reason,
  )


def _whole_characters(offsets, keep):
  """Largest length up to `keep` that cuts between two characters."""
  while keep > 2 and offsets[keep][0] < offsets[keep - 1][1]:
    keep -= 1
  return keep


def check_bos(scorer: scorer_lib.Scorer, texts: Iterable[str]) -> None:
  """Checks, before a `paper` run, that the model can do without its BOS.

  Scores the first 512 targets of one text with and without the BOS that the
  tokenizer adds by default, and compares the means over all but the first 16
  of them, which any model reads with hardly a context.

  The text is the first with at least 513 ids, else the longest. So texts are
  read up to there and one is kept: a corpus is read from its start once more,
  and no document waits for another.

  Args:
    scorer: of the model.
    texts: of the documents; as many as needed are read.

  Raises:
    ValueError: where the mean log-probs differ by more than 1 nat per token:
      a model such as Gemma, whose key tokens would be noise.
  """
  tokenizer = scorer.model.tokenizer
  if tokenizer is None or tokenizer.leading_bos is None:
    return
  bare = np.zeros(0, np.int32)
  for text in texts:
    try:
      ids = tokenizer.encode(text, add_special_tokens=False).ids
    except (OffsetsUnusable, NotEmbedded):
      continue
    bare = max(bare, ids, key=len)
    if len(bare) > _BOS_CHECK_TARGETS:
      break
  # With the BOS before them they must fit the model.
  limit = scorer.model.config.max_position - 1
  bare = bare[: min(_BOS_CHECK_TARGETS + 1, limit)]
  compared = len(bare) - 1 - _BOS_CHECK_SKIPPED
  if compared < 1:
    return
  with_bos = np.concatenate([[tokenizer.leading_bos], bare]).astype(np.int32)
  jobs = [scorer_lib.Job("bare", bare), scorer_lib.Job("bos", with_bos)]
  means = {
    scores.job.key: float(scores.long[-compared:].mean())
    for scores in scorer.score_long(jobs)
  }
  if abs(means["bos"] - means["bare"]) > _BOS_CHECK_NATS:
    raise ValueError(
      f"{scorer.model.name} needs its BOS: {compared} targets at the start of "
      f"a document have a mean log-prob of {means['bos']:.2f} nats with it "
      f"and {means['bare']:.2f} without, and the paper's protocol leaves it "
      "out. Use protocol 'strict'"
    )


def explain_too_short(n_text: int, windows: Windows) -> str:
  """Says what a document lacks, and which windows would fit it."""
  fitting = max(1, n_text // 8)
  eligible = Windows(2 * fitting, fitting).count_eligible(n_text)
  lacks = (
    f"a document of {n_text} ids has no key tokens with "
    f"short_len={windows.short_len} and stride={windows.stride}: it would need "
    f"more than {windows.length}"
  )
  if not eligible:
    return lacks
  return (
    f"{lacks}. With short_len={2 * fitting} and stride={fitting}, {eligible} "
    "of its ids can be key"
  )
