"""Key regions, and 95 % intervals by a jackknife over documents or regions.

An interval speaks of documents like those that were read, so the document is
the unit: key tokens of one are not independent. Every interval here is the
same one. With theta = sum of NLL / tokens over C clusters and theta(i) the
same without cluster i,

  theta -+ t(C - 1) * sqrt(sum_i (theta(i) - theta)^2),

and exp of it. The classical factor (C - 1) / C is left out: with clusters of
very unequal size it makes the interval too short. docs/results.md has the
coverage of this and of what else was tried.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int, Num
from scipy import stats

from longctx_jax.paper.perplexity import perplexity

MIN_DOCUMENTS = 4
MIN_REGIONS = 10
# What `longppl_ci95` says of an interval that is not one over documents.
THESE_TEXTS_ONLY = "these texts only"
FEW_KEY_REGIONS = "few_key_regions"


def region_labels(
  key_mask: Bool[np.ndarray, "T"], max_gap: int = 16
) -> Int[np.ndarray, "k"]:
  """The region, from 0, of each key token in text order.

  A region is a run of key tokens in which each stands at most `max_gap`
  targets after the one before. Key tokens of one region copy one passage, so
  the region, not the token, is the unit of evidence.

  >>> mask = np.zeros(60, bool)
  >>> mask[[3, 19, 36]] = True
  >>> region_labels(mask).tolist()
  [0, 0, 1]
  """
  positions = np.flatnonzero(key_mask)
  return np.cumsum(np.diff(positions, prepend=positions[:1]) > max_gap)


def count_regions(key_mask: Bool[np.ndarray, "T"], max_gap: int = 16) -> int:
  """Number of regions of key tokens, see `region_labels`."""
  labels = region_labels(key_mask, max_gap)
  return int(labels[-1]) + 1 if labels.size else 0


def text_labels(
  text_hashes: Sequence[str], *sums: Sequence[float]
) -> Int[np.ndarray, "D"]:
  """The text, from 0, of each document; copies of one text share it.

  A copy adds no evidence: clusters of equal label are one cluster.

  Args:
    text_hashes: of the documents; "" where a text's hash is not known. Such
      documents hold one text where all their `sums` are equal.
    sums: what was summed over each document, an array [D] for each sum.

  Raises:
    ValueError: lengths differ.

  >>> text_labels(["a", "", "a", ""], [1.0, 2.0, 1.0, 2.0]).tolist()
  [0, 1, 0, 1]
  """
  labels: dict[object, int] = {}
  rows = zip(text_hashes, *sums, strict=True)
  return np.array(
    [labels.setdefault(known or tuple(of), len(labels)) for known, *of in rows],
    np.int64,
  )


def jackknife_ci95(
  nll_sums: Float[np.ndarray, "C"],
  counts: Int[np.ndarray, "C"],
) -> tuple[float | None, float | None]:
  """95 % interval of the pooled perplexity, by leaving out one cluster each.

  Clusters (texts or regions) without a token are left out: they add nothing
  to either sum. A bound is None where `perplexity` is.

  Raises:
    ValueError: fewer than 2 clusters hold a token.

  >>> sums, counts = np.array([4.0, 9.0, 5.0, 6.0]), np.array([3, 5, 4, 3])
  >>> [round(bound, 2) for bound in jackknife_ci95(sums, counts)]
  [2.61, 9.41]
  """
  counts = np.asarray(counts)
  sums = np.asarray(nll_sums, np.float64)
  if np.isinf(sums).any():
    return None, None
  mean, moved = _without_each(sums, counts, counts > 0)
  half = _half_width(moved)
  # No loss is negative, so no perplexity lies below 1.
  return perplexity(max(0.0, mean - half), 1), perplexity(mean + half, 1)


def paired_difference_ci95(
  nll_sums: Float[np.ndarray, "C"],
  counts: Int[np.ndarray, "C"],
  baseline_nll_sums: Float[np.ndarray, "C"],
  baseline_counts: Int[np.ndarray, "C"],
) -> tuple[float, float]:
  """95 % interval of log LongPPL(model) - log LongPPL(baseline), in nats.

  The same jackknife: a cluster is left out for both models at once, so what
  makes a document hard for both cancels. Clusters that hold no token of one
  of the two are left out for both. exp of the bounds is the interval of the
  ratio.

  Raises:
    ValueError: lengths differ, or fewer than 2 clusters hold tokens of both.

  >>> sums, counts = np.array([4.0, 9.0, 5.0, 6.0]), np.array([3, 5, 4, 3])
  >>> worse = sums + 0.5 * counts
  >>> low, high = paired_difference_ci95(worse, counts, sums, counts)
  >>> round(low, 6), round(high, 6)
  (0.5, 0.5)
  """
  counts, baseline_counts = np.asarray(counts), np.asarray(baseline_counts)
  shared = (counts > 0) & (baseline_counts > 0)
  mean, moved = _without_each(np.asarray(nll_sums), counts, shared)
  baseline_mean, baseline_moved = _without_each(
    np.asarray(baseline_nll_sums), baseline_counts, shared
  )
  difference = mean - baseline_mean
  half = _half_width(moved - baseline_moved)
  return float(difference - half), float(difference + half)


def longppl_ci95(
  region_nll_sums: Sequence[Sequence[float]],
  region_counts: Sequence[Sequence[int]],
  texts: Int[np.ndarray, "D"],
) -> tuple[tuple[float | None, float | None] | None, str]:
  """An honest 95 % interval of LongPPL and what it speaks of, or why not.

  Leaves out each text that holds key tokens; with fewer than 4 of them, each
  key region: such an interval holds for these texts only. Fewer than 10
  regions carry no interval at all.

  Args:
    region_nll_sums: for each document the loss of each key region, nats.
    region_counts: for each document the key tokens of each region.
    texts: `text_labels` of the documents.

  Returns:
    ((low, high), ""), ((low, high), "these texts only") or
    (None, "few_key_regions").

  Raises:
    ValueError: a document's sums and counts differ in length.
  """
  lengths = [len(sums) for sums in region_nll_sums]
  if lengths != [len(counts) for counts in region_counts]:
    raise ValueError(
      f"region_nll_sums hold {lengths} regions by document, region_counts "
      f"{[len(counts) for counts in region_counts]}: pass both of each region."
    )
  sums = np.array([x for of in region_nll_sums for x in of], np.float64)
  counts = np.array([x for of in region_counts for x in of], np.int64)
  text = np.repeat(texts, lengths)
  if np.unique(text).size >= MIN_DOCUMENTS:
    return jackknife_ci95(*by_text(text, sums, counts)), ""
  place = np.array([i for n in lengths for i in range(n)], np.int64)
  # Copies of a text have the same regions, which count once too.
  found, region = np.unique(text * len(sums) + place, return_inverse=True)
  if found.size < MIN_REGIONS:
    return None, FEW_KEY_REGIONS
  interval = jackknife_ci95(*by_text(region, sums, counts))
  return interval, THESE_TEXTS_ONLY


def by_text(
  texts: Int[np.ndarray, "D"], *sums: Num[np.ndarray, "D"]
) -> tuple[Num[np.ndarray, "C"], ...]:
  """Sums over the documents of each text, see `text_labels`."""
  return tuple(
    np.bincount(texts, weights=values).astype(values.dtype) for values in sums
  )


def _without_each(sums, counts, kept):
  """(pooled mean, how it moves without each of the kept clusters)."""
  sums, counts = sums[kept], counts[kept]
  if sums.size < 2:
    raise ValueError(
      f"{sums.size} clusters with tokens have no spread: pass at least 2 "
      "documents or regions."
    )
  mean = sums.sum() / counts.sum()
  # (S - s) / (N - n) - S / N, written so that equal clusters move nothing.
  return mean, (mean * counts - sums) / (counts.sum() - counts)


def _half_width(moved):
  return stats.t.ppf(0.975, moved.size - 1) * np.sqrt(np.sum(moved**2))
