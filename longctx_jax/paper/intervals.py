"""Key regions, and 95 % intervals by resampling documents or regions."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from longctx_jax.paper.perplexity import perplexity

MIN_DOCUMENTS = 8
MIN_REGIONS = 10
_GATHER_LIMIT = 1 << 22


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
