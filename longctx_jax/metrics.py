"""From summed losses to reported numbers: NumPy, float64, on the host.

Sums and counts travel through every pass; the one division is made here.
Losses are negative log-probabilities in nats. Every per-token array obeys the
alignment law: `ids` has length n, an array over targets has length n - 1, and
its index t speaks of id t + 1.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

MIN_DOCUMENTS = 8
MIN_REGIONS = 10
NEAR_THRESHOLD = 0.01
COPIED_NGRAM = 8
_MAX_MEAN_NLL = float(np.log(np.finfo(np.float64).max))
_GATHER_LIMIT = 1 << 22


def perplexity(nll_sum: float, count: int) -> float | None:
  """Perplexity, exp(nll_sum / count).

  None where there is no such finite number: for count 0, and for a mean above
  709.78 nats, whose exponential no float64 (and so no JSON file) can hold. The
  sum and the count are always reported beside it, so nothing is lost.

  Raises:
    ValueError: the sum is NaN, or the count is negative.
  """
  if np.isnan(nll_sum) or count < 0:
    raise ValueError(
      f"nll_sum {nll_sum} over {count} tokens is no loss: the log-probs hold "
      "NaN, or the count is negative. Check the pass that made them."
    )
  if count == 0 or nll_sum / count > _MAX_MEAN_NLL:
    return None
  return float(np.exp(nll_sum / count))


def bits_per_byte(nll_sum: float, n_bytes: int) -> float | None:
  """Loss per UTF-8 byte of the scored text, in bits; None for 0 bytes.

  Comparable between tokenizers: nll_sum / (n_bytes ln 2), the base-2 logarithm
  of the perplexity per byte.
  """
  return float(nll_sum / (n_bytes * np.log(2))) if n_bytes else None


def pooled_perplexity(
  nll_sums: Float[np.ndarray, "D"], counts: Int[np.ndarray, "D"]
) -> float | None:
  """Corpus perplexity with every token equal: exp(sum nll / sum count).

  LongPPL of a corpus is this over key tokens (paper section 1.4): documents
  without one add nothing to either sum.
  """
  return perplexity(
    float(np.sum(nll_sums, dtype=np.float64)), int(np.sum(counts))
  )


def strict_ppl(
  nll_sums: Float[np.ndarray, "D"], n_tokens: Int[np.ndarray, "D"]
) -> float | None:
  """PPL of protocol `strict`: pooled over the targets that were scored."""
  return pooled_perplexity(nll_sums, n_tokens)


def paper_ppl(
  nll_sums: Float[np.ndarray, "D"], n_tokens: Int[np.ndarray, "D"]
) -> float | None:
  """PPL of protocol `paper`: as the reference code averages (section 1.4).

  A document's mean over its n - 1 targets is weighted by its n ids,
  exp(sum_d n_d mean_d / sum_d n_d); a bias of the order of 1 / n against
  `strict_ppl`. Documents without a target are left out.

  Args:
    nll_sums: [D], nats.
    n_tokens: [D], scored targets of each document, that is ids - 1.
  """
  return perplexity(*map(np.sum, paper_weighted(nll_sums, n_tokens)))


def paper_weighted(
  nll_sums: Float[np.ndarray, "D"], n_tokens: Int[np.ndarray, "D"]
) -> tuple[Float[np.ndarray, "D"], Int[np.ndarray, "D"]]:
  """Sums and counts whose pooled perplexity is `paper_ppl`.

  Returns:
    (n_d mean_d, n_d), both 0 where a document has no target.
  """
  nll_sums = np.asarray(nll_sums, np.float64)
  n_tokens = np.asarray(n_tokens, np.int64)
  n_ids = np.where(n_tokens > 0, n_tokens + 1, 0)
  return nll_sums * n_ids / np.maximum(n_tokens, 1), n_ids


def region_labels(
  key_mask: Bool[np.ndarray, "T"], max_gap: int = 16
) -> Int[np.ndarray, "k"]:
  """The region, from 0, of each key token in text order.

  A region is a run of key tokens in which each stands at most `max_gap`
  targets after the one before. Key tokens of one region copy one passage, so
  the region, not the token, is the unit of evidence.
  """
  positions = np.flatnonzero(key_mask)
  return np.cumsum(np.diff(positions, prepend=positions[:1]) > max_gap)


def count_regions(key_mask: Bool[np.ndarray, "T"], max_gap: int = 16) -> int:
  """Number of regions of key tokens, see `region_labels`."""
  labels = region_labels(key_mask, max_gap)
  return int(labels[-1]) + 1 if labels.size else 0


def top_documents_share(
  counts: Int[np.ndarray, "D"], top: int = 5
) -> float | None:
  """Share of all key tokens in the `top` documents that hold most."""
  counts = np.asarray(counts)
  total = counts.sum()
  return float(np.sort(counts)[::-1][:top].sum() / total) if total else None


def bootstrap_ci95(
  nll_sums: Float[np.ndarray, "C"],
  counts: Int[np.ndarray, "C"],
  *,
  seed: int,
  resamples: int = 2000,
) -> tuple[float | None, float | None]:
  """95 % percentile bootstrap interval of the pooled perplexity.

  Clusters (documents or regions) are drawn with replacement, since the tokens
  of one are not independent. Clusters without a token are left out: they add
  nothing to either sum. A bound is None where `perplexity` is.

  Raises:
    ValueError: fewer than 2 clusters hold a token.
  """
  sums, counts = _clusters(nll_sums, counts)
  means = _resampled_means((sums, counts), seed=seed, resamples=resamples)
  low, high = _ci95(means)
  return perplexity(low, 1), perplexity(high, 1)


def paired_difference_ci95(
  nll_sums: Float[np.ndarray, "C"],
  counts: Int[np.ndarray, "C"],
  baseline_nll_sums: Float[np.ndarray, "C"],
  baseline_counts: Int[np.ndarray, "C"],
  *,
  seed: int,
  resamples: int = 2000,
) -> tuple[float, float]:
  """95 % interval of log LongPPL(model) - log LongPPL(baseline), in nats.

  Both models see the same resample of the same clusters, so what makes a
  document hard for both cancels. Clusters that hold no token of one of the two
  are left out for both. exp of the bounds is the interval of the ratio.

  Raises:
    ValueError: lengths differ, or fewer than 2 clusters hold tokens of both.
  """
  shared = (np.asarray(counts) > 0) & (np.asarray(baseline_counts) > 0)
  model = _clusters(nll_sums, counts, shared)
  baseline = _clusters(baseline_nll_sums, baseline_counts, shared)
  differences = _resampled_means(
    model, seed=seed, resamples=resamples
  ) - _resampled_means(baseline, seed=seed, resamples=resamples)
  low, high = _ci95(differences)
  return float(low), float(high)


def longppl_ci95(
  key_nlls: Sequence[Float[np.ndarray, "k"]],
  regions: Sequence[Int[np.ndarray, "k"]],
  *,
  seed: int,
  resamples: int = 2000,
) -> tuple[tuple[float | None, float | None] | None, str]:
  """An honest 95 % interval of LongPPL, or the reason why there is none.

  Resamples the documents that hold key tokens; with fewer than 8 of them, the
  key regions of all. Fewer than 10 regions carry no interval at all.

  Args:
    key_nlls: for each document the losses of its key tokens, nats.
    regions: for each document the `region_labels` of the same tokens.

  Returns:
    ((low, high), "") or (None, "few_key_regions").

  Raises:
    ValueError: a document's losses and labels differ in length.
  """
  lengths = [len(nlls) for nlls in key_nlls]
  if lengths != [len(labels) for labels in regions]:
    raise ValueError(
      f"key_nlls hold {lengths} tokens by document, regions "
      f"{[len(labels) for labels in regions]}: pass a label for each token."
    )
  documents = np.flatnonzero(lengths)
  if not documents.size:
    return None, "few_key_regions"
  owner = np.repeat(np.arange(documents.size), np.take(lengths, documents))
  nlls = np.concatenate([key_nlls[i] for i in documents]).astype(np.float64)
  labels = np.concatenate([regions[i] for i in documents]).astype(np.int64)
  _, region = np.unique(
    owner * (labels.max() + 1) + labels, return_inverse=True
  )
  if region.max() + 1 < MIN_REGIONS:
    return None, "few_key_regions"
  cluster = owner if documents.size >= MIN_DOCUMENTS else region
  interval = bootstrap_ci95(
    np.bincount(cluster, weights=nlls),
    np.bincount(cluster),
    seed=seed,
    resamples=resamples,
  )
  return interval, ""


def document_scores(
  ids: Int[np.ndarray, "n"],
  long_log_probs: Float[np.ndarray, "T"],
  short_log_probs: Float[np.ndarray, "T"],
  key_mask: Bool[np.ndarray, "T"],
  *,
  prefix_len: int,
  short_len: int,
  stride: int,
  alpha: float,
  beta: float,
) -> dict[str, float | int | None]:
  """How much one document needs a long context: the columns to filter by.

  With K = `short_len`, d = `stride` and j counting ids after the prefix: ids
  j >= K are scored, by the window that starts at d floor((j - K) / d); ids
  j >= K + d are eligible, since the first window's context is the full one.

  Args:
    ids: what the evaluator read, prefix included.
    long_log_probs: nats, T = n - 1.
    short_log_probs: nats, NaN where unscored.
    key_mask: the key tokens under `alpha` and `beta`.
    prefix_len: leading ids (BOS) that stand in front of every window.
    short_len: K, in ids.
    stride: d, in ids.
    alpha: threshold of long - short, nats.
    beta: threshold of long, nats.

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
  long = np.asarray(long_log_probs, np.float64)
  short = np.asarray(short_log_probs, np.float64)
  text_id = np.arange(1, n_targets + 1) - prefix_len
  key = np.asarray(key_mask, bool) & (text_id >= short_len + stride)
  n_eligible = max(0, len(ids) - prefix_len - short_len - stride)
  lsd = long - short
  scored = lsd[~np.isnan(short)]
  near, mid, far = (
    part.mean() if part.size else None for part in np.array_split(scored, 3)
  )

  def passes(margin: float) -> int:
    return np.sum((lsd > alpha + margin) & (long > beta + margin))

  copied = _copied(
    np.asarray(ids)[prefix_len:], text_id[key], short_len, stride
  )
  scores = {
    "n_key_tokens": key.sum(),
    "n_eligible": n_eligible,
    "key_token_ratio": key.sum() / n_eligible if n_eligible else None,
    **_summary(scored),
    "context_benefit_near": near,
    "context_benefit_mid": mid,
    "context_benefit_far": far,
    "copied_share": copied.mean() if copied.size else None,
    "n_mirror": np.sum((-lsd > alpha) & (short > beta)),
    "n_near_threshold": passes(-NEAR_THRESHOLD) - passes(NEAR_THRESHOLD),
  }
  return {
    name: value.item() if isinstance(value, np.generic) else value
    for name, value in scores.items()
  }


def _ci95(values):
  # A resample itself, not a point between two: infinite losses stay infinite.
  return np.percentile(values, [2.5, 97.5], method="inverted_cdf")


def _clusters(nll_sums, counts, kept=None):
  counts = np.asarray(counts, np.int64)
  kept = counts > 0 if kept is None else kept
  sums = np.asarray(nll_sums, np.float64)[kept]
  if sums.size < 2:
    raise ValueError(
      f"{sums.size} clusters with tokens have no spread to resample: pass at "
      "least 2 documents or regions."
    )
  return sums, counts[kept]


def _resampled_means(clusters, *, seed, resamples):
  sums, counts = clusters
  rng = np.random.default_rng(seed)
  rows = max(1, _GATHER_LIMIT // sums.size)
  means = np.empty(resamples)
  for first in range(0, resamples, rows):
    block = slice(first, min(first + rows, resamples))
    drawn = rng.integers(sums.size, size=(block.stop - first, sums.size))
    means[block] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
  return means


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


def _copied(text_ids, key_ids, short_len, stride):
  if not key_ids.size or len(text_ids) < COPIED_NGRAM:
    return np.zeros(key_ids.size, bool)
  rows = np.lib.stride_tricks.sliding_window_view(text_ids, COPIED_NGRAM)
  rows = np.ascontiguousarray(rows, np.int32)
  grams = rows.view(f"V{rows.itemsize * COPIED_NGRAM}").ravel()
  _, first, gram = np.unique(grams, return_index=True, return_inverse=True)
  begin = key_ids - (COPIED_NGRAM - 1)
  first_end = first[gram[np.maximum(begin, 0)]] + COPIED_NGRAM
  window_start = (key_ids - short_len) // stride * stride
  return (begin >= 0) & (first_end <= window_start)
