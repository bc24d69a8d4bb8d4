"""Correlation of two scores over models, with bootstrap intervals."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats


class Correlation(NamedTuple):
  """A correlation coefficient, its 95 % interval and the pairs behind it.

  `value` and `ci95` are None where they are undefined: fewer than 3 pairs, or
  one side constant.
  """

  value: float | None
  ci95: tuple[float, float] | None
  n: int


def pearson_ci95(
  x: Float[np.ndarray, "M"],
  y: Float[np.ndarray, "M"],
  *,
  seed: int,
  resamples: int = 10_000,
) -> Correlation:
  """Pearson's r with a bootstrap interval over pairs.

  Resamples in which one side is constant have no r and are left out.

  Raises:
    ValueError: x and y differ in length.
  """
  return _correlation(x, y, lambda rows: rows, seed, resamples)


def spearman_ci95(
  x: Float[np.ndarray, "M"],
  y: Float[np.ndarray, "M"],
  *,
  seed: int,
  resamples: int = 10_000,
) -> Correlation:
  """Spearman's rank correlation, as `pearson_ci95`; ties share their rank."""
  return _correlation(
    x, y, lambda rows: stats.rankdata(rows, axis=-1), seed, resamples
  )


def _correlation(x, y, transform, seed, resamples) -> Correlation:
  pairs = np.stack([np.asarray(x, np.float64), np.asarray(y, np.float64)])
  n = pairs.shape[1]
  value = _row_correlation(transform(pairs)) if n >= 3 else np.nan
  if np.isnan(value):
    return Correlation(None, None, n)
  drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
  values = _row_correlation(transform(pairs[:, drawn]))
  low, high = np.nanpercentile(values, [2.5, 97.5])
  return Correlation(float(value), (float(low), float(high)), n)


def _row_correlation(pairs):
  x, y = pairs - pairs.mean(axis=-1, keepdims=True)
  constant = np.ptp(pairs, axis=-1).min(axis=0) == 0
  scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
  return np.clip((x * y).sum(-1) / np.where(constant, np.nan, scale), -1.0, 1.0)
