"""What an evaluator finds with its kernels rounded to int8, and as stored."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from longctx_jax.experiments import demo
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.paper import perplexity
from longctx_jax.scoring import run


def compare(
  stored: Iterable[KeyTokens], rounded: Iterable[KeyTokens]
) -> dict[str, Any]:
  """Differences of log-probs, and of the key tokens that follow from them.

  jaccard = key by both / key by either, over all documents.

  Args:
    stored: of the evaluator with its weights as they are.
    rounded: of the same evaluator and documents, rounded.

  Returns:
    JSON-ready numbers; differences in nats, of long log-probs and of LSD over
    the eligible targets. LongPPL of the model as stored on both sets of key
    tokens, and of the rounded one on the first.

  Raises:
    ValueError: other documents, or none with eligible targets.
  """
  pairs = list(zip(stored, rounded, strict=True))
  for a, b in pairs:
    if (a.doc_id, a.text_sha256) != (b.doc_id, b.text_sha256):
      raise ValueError(f"document {a.doc_id!r} is {b.doc_id!r} in the other")
  pairs = [(a, b) for a, b in pairs if a.n_eligible]
  if not pairs:
    raise ValueError("no document has a target that can be key")
  before, after = (
    {
      name: np.concatenate([getattr(row, name) for row in rows])
      for name in ("long_log_probs", "short_log_probs", "key_mask")
    }
    for rows in zip(*pairs, strict=True)
  )
  eligible = np.concatenate(
    [
      np.arange(len(a.key_mask)) >= len(a.key_mask) - a.n_eligible
      for a, _ in pairs
    ]
  )
  long = [one["long_log_probs"].astype(np.float64) for one in (before, after)]
  gaps = [
    one - two["short_log_probs"]
    for one, two in zip(long, (before, after), strict=True)
  ]
  keys = [one["key_mask"] for one in (before, after)]

  def spread(difference: np.ndarray) -> dict[str, float]:
    size = np.abs(difference)
    return {
      "mean": float(difference.mean()),
      "mean_abs": float(size.mean()),
      "p99_abs": float(np.percentile(size, 99)),
      "max_abs": float(size.max()),
    }

  def longppl(log_probs: np.ndarray, mask: np.ndarray) -> float | None:
    return perplexity.perplexity(float(-log_probs[mask].sum()), int(mask.sum()))

  either = int((keys[0] | keys[1]).sum())
  return {
    "n_documents": len(pairs),
    "n_targets": int(long[0].size),
    "n_eligible": int(eligible.sum()),
    "long_log_prob": spread(long[1] - long[0]),
    "lsd": spread((gaps[1] - gaps[0])[eligible]),
    "ppl": [longppl(one, np.ones(one.size, bool)) for one in long],
    "n_key_tokens": [int(mask.sum()) for mask in keys],
    "n_key_by_both": int((keys[0] & keys[1]).sum()),
    "jaccard": int((keys[0] & keys[1]).sum()) / either if either else None,
    "longppl": longppl(long[0], keys[0]),
    "longppl_on_rounded_keys": longppl(long[0], keys[1]),
    "longppl_of_rounded": longppl(long[1], keys[0]),
  }


def run_rounding(
  config: ConfigDict, *, workdir: str | pathlib.Path, weights: str
) -> dict[str, Any]:
  """Scores the demo's chapters with both forms of the evaluator.

  Args:
    config: as configs/demo.py.
    workdir: holds the store of the weights as they are, and in a folder called
      by the form that of the others.
    weights: the other form, one of `loading.WEIGHTS`.

  Returns:
    See `compare`.
  """
  workdir = pathlib.Path(workdir)
  config = demo.with_chapters(config, workdir)
  stores = []
  for form, folder in (("", workdir), (weights, workdir / weights)):
    config.scoring.weights = form
    model = demo.load_evaluator(config)
    stores.append(run.score_corpus(config, workdir=folder, evaluator=model))
  return compare(*stores)
