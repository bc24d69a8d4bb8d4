"""Token weights from a key-token store: LongCE at the price of CE.

An evaluator judges every chunk once, with parameters and a tokenizer of its
own; training reads the weights. They are frozen on both sides of the ratio:
its numerator and denominator never come from different parameters.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging
from numpy.typing import ArrayLike

from longctx_jax.key_tokens import record
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.paper import contrast
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import settings

FORMS = ("hard", "soft")
_SAMPLED_CHUNKS = 64
_NAMED_IDS = 5


def largest_overlapping(
  weights: ArrayLike, spans: ArrayLike, offsets: ArrayLike
) -> np.ndarray:
  """The largest weight among the spans that each token overlaps, 1 for none.

  Weights 2 and 5 on characters [0, 3) and [3, 6) give the tokens [0, 3),
  [2, 4) and [6, 9) the weights 2, 5 and 1.

  Args:
    weights: [S], at least 1.
    spans: int [S, 2], in any order, overlapping or not. Those without
      characters have no say.
    offsets: int [T, 2], the characters of each token; one without any has
      weight 1.

  Returns:
    float32 [T].
  """
  weights = np.asarray(weights, np.float32)
  spans = np.asarray(spans, np.int64).reshape(-1, 2)
  offsets = np.asarray(offsets, np.int64).reshape(-1, 2)
  lengths = np.maximum(spans[:, 1] - spans[:, 0], 0)
  # One entry more than characters, so that every end is an index.
  painted = np.ones(max(spans.max(initial=0), offsets.max(initial=0)) + 1)
  before = np.cumsum(lengths) - lengths
  characters = np.arange(lengths.sum()) + np.repeat(
    spans[:, 0] - before, lengths
  )
  np.maximum.at(painted, characters, np.repeat(weights, lengths))
  wide = offsets[:, 0] < offsets[:, 1]
  found = np.ones(len(offsets), np.float32)
  if wide.any():
    found[wide] = np.maximum.reduceat(painted, offsets[wide].ravel())[::2]
  return found


@dataclasses.dataclass(frozen=True, eq=False)
class StoredWeights:
  """Weights by chunk; made by `open_weights`.

  Attributes:
    form: "hard" or "soft".
    gamma: largest weight.
    manifest: how the evaluator found them.
  """

  form: str
  gamma: float
  manifest: Manifest
  _store: KeyTokenStore = dataclasses.field(repr=False)

  @property
  def facts(self) -> dict[str, Any]:
    """What the weights depend on beside the settings of the loss."""
    return settings.flatten({"weights": self.manifest.identity()})

  def of(self, doc_id: str, offsets: np.ndarray) -> np.ndarray:
    """Weights of a chunk's targets.

    Args:
      doc_id: of the chunk.
      offsets: int [T, 2], the characters of each target within the chunk, by
        whatever tokenizer.

    Returns:
      float32 [T] from 1 to gamma: `largest_overlapping` of the evaluator's.
    """
    weights, spans = _weigh(self._store.get(doc_id), self.form, self.gamma)
    return largest_overlapping(weights, spans, offsets)


def open_weights(
  store: KeyTokenStore,
  chunks: Mapping[str, str],
  *,
  form: str,
  chunk_len: int,
  tokenizer_fingerprint: str,
  windows: Windows | None,
  thresholds: Thresholds,
  gamma: float,
) -> StoredWeights:
  """Checks that a store belongs to these chunks, before anything is trained.

  Args:
    store: of `scripts/score.py --chunk_len`.
    chunks: id of each chunk that is trained on -> SHA-256 of its text. The
      store may hold more.
    form: "hard": gamma where LSD > alpha and LCL > beta, else 1. "soft":
      exp(LSD) clipped to [1, gamma], and 1 where no short context was scored.
    chunk_len: targets of a chunk.
    tokenizer_fingerprint: of the tokenizer whose ids the cuts count.
    windows: that the run names; None takes those of the store.
    thresholds: of "hard".
    gamma: cap (paper: 5).

  Raises:
    ValueError: an unknown form or gamma < 1; other cuts; another K or d;
      thresholds or a form that the store holds no log-probs for; chunks that it
      lacks, or that had another text: up to 5 ids are named.
  """
  if form not in FORMS:
    raise ValueError(f"stored_form={form!r} is not one of {', '.join(FORMS)}")
  if not gamma >= 1:
    raise ValueError(f"gamma={gamma}: stored weights are from 1 to gamma")
  _require_manifest(
    store,
    {"chunk_len": chunk_len, "chunk_tokenizer": tokenizer_fingerprint},
    problem="cuts documents otherwise",
    remedy=f"Score with --chunk_len {chunk_len} and --chunk_tokenizer of the "
    "model in training",
  )
  _require_manifest(
    store,
    dataclasses.asdict(windows) if windows else {},
    problem="was scored with other windows",
    remedy="Set the loss to the store's, or score again",
  )
  if form == "hard":
    record.require_spans(store.manifest)
    store = store.with_thresholds(thresholds.alpha, thresholds.beta)
  elif store.manifest.detail != "tokens":
    raise ValueError(
      "soft weights need the log-probs of all tokens, and the key-token store "
      f"was made with detail={store.manifest.detail}. Use stored_form=hard, "
      "or score again with detail=tokens"
    )
  _require_chunks(store, chunks)
  weights = StoredWeights(form, gamma, store.manifest, store)
  _log_sample(weights, list(itertools.islice(chunks, _SAMPLED_CHUNKS)))
  return weights


def _weigh(keys: KeyTokens, form: str, gamma: float) -> tuple[Any, Any]:
  """Weights of the evaluator's tokens and their characters."""
  if form == "hard":
    # Key tokens that touch are one span, with the same characters.
    return np.full(len(keys.spans), gamma), keys.spans
  if keys.offsets is None:
    return np.zeros(0), np.zeros((0, 2))
  long, short = keys.long_log_probs, keys.short_log_probs
  # NaN where no short context was scored, or both find the target impossible.
  has_lsd = ~np.isnan(contrast.lsd(long, short))
  weights = contrast.longce_weights(long, short, has_lsd, gamma=gamma, floor=1)
  return weights, keys.offsets


def _require_manifest(
  store: KeyTokenStore,
  expected: Mapping[str, Any],
  *,
  problem: str,
  remedy: str,
) -> None:
  """Compares some fields of the manifest."""
  manifest = store.manifest.to_json()
  settings.require_same(
    {name: manifest[name] for name in expected if name in manifest},
    expected,
    where="the key-token store",
    problem=problem,
    remedy=remedy,
  )


def _require_chunks(store: KeyTokenStore, chunks: Mapping[str, str]) -> None:
  known = store.hashes
  problems = {
    "are missing in it": [i for i in chunks if i not in known],
    "had another text when it was scored": [
      i for i in chunks if i in known and known[i] != chunks[i]
    ],
  }
  if any(problems.values()):
    raise ValueError(
      "the key-token store doesn't belong to this data: "
      + "; ".join(
        f"{len(ids):,} of {len(chunks):,} chunks "
        f"({', '.join(map(repr, ids[:_NAMED_IDS]))}"
        f"{', ...' if len(ids) > _NAMED_IDS else ''}) {problem}"
        for problem, ids in problems.items()
        if ids
      )
      + ". Score the data that is trained on"
    )


def _log_sample(weights: StoredWeights, doc_ids: list[str]) -> None:
  """Says how many tokens weigh more than 1, which decides what they can do."""
  tokens = heavy = truncated = 0
  excess = 0.0
  for doc_id in doc_ids:
    keys = weights._store.get(doc_id)
    tokens += keys.n_tokens
    truncated += keys.truncated
    if weights.form == "soft":
      found, _ = _weigh(keys, "soft", weights.gamma)
    else:
      n_keys = 0 if keys.key_mask is None else int(keys.key_mask.sum())
      found = np.full(n_keys, weights.gamma)
    heavy += int(np.sum(found > 1))
    excess += float(np.sum(found - 1))
  logging.info(
    "%s weights of %s: %.2f %% of the evaluator's tokens weigh more than 1, "
    "mean weight %.3f, in %d chunks",
    weights.form,
    weights.manifest.evaluator,
    100 * heavy / max(tokens, 1),
    1 + excess / max(tokens, 1),
    len(doc_ids),
  )
  if not heavy:
    logging.warning(
      "no token weighs more than 1: the evaluator finds nothing that needs the "
      "long context, and training with its weights is plain cross-entropy"
    )
  if truncated:
    logging.warning(
      "the evaluator read only the beginning of %d of %d chunks: the rest has "
      "weight 1. Score with a larger max_length, or take a shorter seq_len",
      truncated,
      len(doc_ids),
    )
