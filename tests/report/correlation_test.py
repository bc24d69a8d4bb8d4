"""Correlations over models, against scipy and the published table."""

import numpy as np
import pytest
from scipy import stats

from longctx_jax.report import correlation

# paper.md section 2.2: README of the reference project, July 2025; LongBench
# read off the project's figure.
LONGBENCH = [49.1, 48.9, 43.3, 43.8, 38.9, 37.8, 30.1, 28.1, 28.8]
LONGPPL_QWEN = [1.99, 2.28, 2.48, 2.67, 2.66, 2.66, 3.28, 3.19, 3.47]
LONGPPL_LLAMA = [1.70, 1.95, 2.11, 2.19, 2.16, 2.28, 2.74, 2.65, 2.98]
LONGPPL_MISTRAL = [2.33, 2.81, 3.10, 2.57, 2.48, 2.58, 3.95, 3.38, 4.51]
PPL = [3.59, 4.35, 4.14, 5.07, 4.82, 5.29, 4.04, 4.96, 4.06]


@pytest.mark.parametrize(
  "scores, pearson, spearman, low, high",
  [
    (LONGPPL_QWEN, -0.956, -0.85, -0.99, -0.88),
    (LONGPPL_LLAMA, -0.947, -0.90, -0.99, -0.89),
    (LONGPPL_MISTRAL, -0.767, -0.73, -0.94, -0.38),
    (PPL, -0.183, -0.18, -0.77, 0.60),
  ],
)
def test_the_published_table_gives_the_published_correlations(
  scores, pearson, spearman, low, high
):
  r = correlation.pearson_ci95(scores, LONGBENCH, seed=0)
  rho = correlation.spearman_ci95(scores, LONGBENCH, seed=0)
  assert (r.n, rho.n) == (9, 9)
  assert r.value == pytest.approx(pearson, abs=5e-4)
  assert rho.value == pytest.approx(spearman, abs=5e-3)
  # Of 9 models: the published bounds are one draw of 2,000 resamples too.
  assert r.ci95 == pytest.approx((low, high), abs=0.1)


def test_values_equal_scipy_with_ties():
  rng = np.random.default_rng(0)
  x, y = rng.integers(0, 6, (2, 40))
  assert correlation.pearson_ci95(x, y, seed=0).value == pytest.approx(
    stats.pearsonr(x, y).statistic
  )
  assert correlation.spearman_ci95(x, y, seed=0).value == pytest.approx(
    stats.spearmanr(x, y).statistic
  )


def test_interval_matches_a_loop_over_resamples():
  rng = np.random.default_rng(2)
  x = rng.normal(size=25)
  y = x + rng.normal(size=25)
  values = []
  for _ in range(2000):
    picks = rng.integers(0, 25, 25)
    values.append(stats.spearmanr(x[picks], y[picks]).statistic)
  expected = np.percentile(values, [2.5, 97.5])
  rho = correlation.spearman_ci95(x, y, seed=0)
  assert rho.ci95 == pytest.approx(expected, abs=0.04)


def test_a_monotone_curve_bends_pearson_but_not_spearman():
  x = np.arange(1.0, 13)
  rho = correlation.spearman_ci95(x, np.exp(x), seed=0)
  assert (rho.value, *rho.ci95) == pytest.approx((1, 1, 1))
  assert correlation.pearson_ci95(x, np.exp(x), seed=0).value < 0.8


@pytest.mark.parametrize(
  "x", [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 5.0], [3.0] * 6]
)
def test_too_few_or_constant_values_have_no_correlation(x):
  for correlate in (correlation.pearson_ci95, correlation.spearman_ci95):
    assert correlate(x, np.arange(len(x)), seed=0) == (None, None, len(x))
