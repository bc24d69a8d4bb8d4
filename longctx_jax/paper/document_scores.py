"""How much one document needs a long context: the columns to filter by."""

import numpy as np
from jaxtyping import Bool, Float, Int

from longctx_jax.paper import contrast
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows

NEAR_THRESHOLD = 0.01
COPIED_NGRAM = 8


def document_scores(
  ids: Int[np.ndarray, "n"],
  long_log_probs: Float[np.ndarray, "T"],
  short_log_probs: Float[np.ndarray, "T"],
  key_mask: Bool[np.ndarray, "T"],
  *,
  prefix_len: int,
  windows: Windows,
  thresholds: Thresholds,
) -> dict[str, float | int | None]:
  """How much one document needs a long context: the columns to filter by.

  With K and d those of `windows` and j counting ids after the prefix: ids
  j >= K are scored, by the window that starts at d floor((j - K) / d); ids
  j >= K + d are eligible, since the first window's context is the full one.

  Args:
    ids: what the evaluator read, prefix included.
    long_log_probs: nats, T = n - 1.
    short_log_probs: nats, NaN where unscored.
    key_mask: the key tokens under `thresholds`.
    prefix_len: leading ids (BOS) that stand in front of every window.
    windows: of the short contexts.
    thresholds: of the key tokens.

  Returns:
    `n_key_tokens`, `n_eligible` and `key_token_ratio`, their quotient; mean,
    median, std and quantiles of the context benefit long - short over scored
    tokens (`mean_context_benefit`, ...), the share of them that is positive,
    and its mean over the first, middle and last third of the scored range
    (`context_benefit_near`, `_mid`, `_far`); `copied_share`, the share of key
    tokens whose last 8 ids occurred verbatim before their window began;
    `n_mirror`, tokens that would be key with long and short exchanged: the
    noise floor; `n_near_threshold`, tokens that moving both thresholds by 0.01
    nats one way or the other makes or unmakes key. None where undefined.

  Raises:
    ValueError: the arrays' lengths contradict the alignment law.
  """
  n_targets = max(len(ids) - 1, 0)
  arrays = (long_log_probs, short_log_probs, key_mask)
  if any(len(array) != n_targets for array in arrays):
    raise ValueError(
      f"{len(ids)} ids have {n_targets} targets, but the arrays hold "
      f"{[len(array) for array in arrays]}: index t speaks of id t + 1."
    )
  long = np.asarray(long_log_probs, np.float32)
  short = np.asarray(short_log_probs, np.float32)
  text_id = np.arange(1, n_targets + 1) - prefix_len
  key = np.asarray(key_mask, bool) & (text_id >= windows.length)
  n_eligible = windows.count_eligible(len(ids) - prefix_len)
  scored = (long.astype(np.float64) - short)[~np.isnan(short)]
  near, mid, far = (
    part.mean() if part.size else None for part in np.array_split(scored, 3)
  )
  mirror = contrast.key_token_mask(short, long, thresholds)
  passing, passing_higher = (
    contrast.key_token_mask(long, short, thresholds.moved(margin)).sum()
    for margin in (-NEAR_THRESHOLD, NEAR_THRESHOLD)
  )
  copied = _copied(np.asarray(ids)[prefix_len:], text_id[key], windows)
  scores = {
    "n_key_tokens": key.sum(),
    "n_eligible": n_eligible,
    "key_token_ratio": key.sum() / n_eligible if n_eligible else None,
    **_summary(scored),
    "context_benefit_near": near,
    "context_benefit_mid": mid,
    "context_benefit_far": far,
    "copied_share": copied.mean() if copied.size else None,
    "n_mirror": mirror.sum(),
    "n_near_threshold": passing - passing_higher,
  }
  return {
    name: value.item() if isinstance(value, np.generic) else value
    for name, value in scores.items()
  }


def _summary(lsd):
  if not lsd.size:
    names = "mean_ median_ std_ p75_ p90_ p95_".split()
    missing = dict.fromkeys(f"{name}context_benefit" for name in names)
    return {**missing, "frac_positive_benefit": None}
  p75, p90, p95 = np.percentile(lsd, [75, 90, 95])
  return {
    "mean_context_benefit": lsd.mean(),
    "median_context_benefit": np.median(lsd),
    "std_context_benefit": lsd.std(),
    "p75_context_benefit": p75,
    "p90_context_benefit": p90,
    "p95_context_benefit": p95,
    "frac_positive_benefit": (lsd > 0).mean(),
  }


def _copied(text_ids, key_ids, windows):
  if not key_ids.size or len(text_ids) < COPIED_NGRAM:
    return np.zeros(key_ids.size, bool)
  rows = np.lib.stride_tricks.sliding_window_view(text_ids, COPIED_NGRAM)
  rows = np.ascontiguousarray(rows, np.int32)
  grams = rows.view(f"V{rows.itemsize * COPIED_NGRAM}").ravel()
  _, first, gram = np.unique(grams, return_index=True, return_inverse=True)
  begin = key_ids - (COPIED_NGRAM - 1)
  first_end = first[gram[np.maximum(begin, 0)]] + COPIED_NGRAM
  window = (key_ids - windows.short_len) // windows.stride
  return (begin >= 0) & (first_end <= window * windows.stride)
