"""Two models on the key spans of a document, by characters: who predicts them.

Tokenizers differ, characters do not: a span's log-prob under a model is

  log P(span) = sum over targets t of log P(t) * share of t's characters in it,

nats, and the difference is log P_first(span) - log P_second(span).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from longctx_jax.evaluation.log_probs import Targets


def span_log_probs(
  spans: Int[np.ndarray, "S 2"], targets: Targets, n_chars: int
) -> Float[np.ndarray, " S"]:
  """log P of each span [S], nats; NaN where targets do not cover all of it.

  Args:
    spans: characters, half-open [S, 2].
    targets: of one model on the document.
    n_chars: characters of the document.

  >>> import numpy as np
  >>> offsets, log_probs = np.array([[0, 4], [4, 6]]), np.array([-4.0, -1.0])
  >>> targets = Targets("d", "", offsets, log_probs)
  >>> span_log_probs(np.array([[2, 6], [5, 7]]), targets, 8).tolist()
  [-3.0, nan]
  """
  per_char = np.zeros(n_chars)
  covered = np.zeros(n_chars, bool)
  for (start, end), log_prob in zip(
    targets.offsets.tolist(), targets.log_probs.tolist(), strict=True
  ):
    if start < end:
      per_char[start:end] += log_prob / (end - start)
      covered[start:end] = True
    elif start < n_chars:  # A further byte of a character: all is there.
      per_char[start] += log_prob
  sums = np.concatenate([[0.0], np.cumsum(per_char)])
  known = np.concatenate([[0], np.cumsum(covered)])
  start, end = np.asarray(spans, int).reshape(-1, 2).T
  whole = known[end] - known[start] == end - start
  return np.where(whole, sums[end] - sums[start], np.nan)


def document(
  shown: Mapping[str, Any],
  spans: Int[np.ndarray, "S 2"],
  first: Targets,
  second: Targets,
) -> dict[str, Any]:
  """The document as `heatmap.build_heatmap` draws it, a key span a target.

  Args:
    shown: `doc_id` and `text`.
    spans: the evaluator's key spans, characters [S, 2].
    first, second: two models on it.

  Returns:
    A document in which the long log-prob of a span is the first model's and
    the short one the second's, so that what is drawn is the difference.
  """
  text = shown["text"]
  kept = np.asarray(spans).reshape(-1, 2)
  mine, theirs = (
    span_log_probs(kept, one, len(text)) for one in (first, second)
  )
  known = np.isfinite(mine) & np.isfinite(theirs)
  return {
    "doc_id": shown["doc_id"],
    "text": text,
    "offsets": kept[known],
    "long_log_probs": mine[known],
    "short_log_probs": theirs[known],
    "key_mask": np.ones(int(known.sum()), bool),
  }


def summary(documents: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Spans, those that the first model predicts better, and the mean, nats."""
  gaps = np.concatenate(
    [one["long_log_probs"] - one["short_log_probs"] for one in documents]
    or [np.empty(0)]
  )
  return {
    "spans": int(gaps.size),
    "better": int((gaps > 0).sum()),
    "mean": float(gaps.mean()) if gaps.size else 0.0,
  }
