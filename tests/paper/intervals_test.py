"""Laws of regions and intervals; coverage_test.py has how often they hold."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from longctx_jax.paper import intervals, perplexity

masks = st.lists(st.booleans(), max_size=120).map(lambda m: np.array(m, bool))


def loop_labels(mask, max_gap):
  labels, region, last = [], -1, None
  for position, is_key in enumerate(mask):
    if is_key:
      if last is None or position - last > max_gap:
        region += 1
      labels.append(region)
      last = position
  return labels


@settings(deadline=None)
@given(masks, st.integers(1, 20))
def test_regions_are_runs_with_small_gaps(mask, max_gap):
  expected = loop_labels(mask, max_gap)
  assert intervals.region_labels(mask, max_gap).tolist() == expected
  assert intervals.count_regions(mask, max_gap) == len(set(expected))


def test_a_gap_of_16_targets_joins_and_17_parts():
  mask = np.zeros(60, bool)
  mask[[3, 19, 36]] = True
  assert intervals.region_labels(mask).tolist() == [0, 0, 1]


def clusters(n, seed=0):
  rng = np.random.default_rng(seed)
  counts = rng.integers(1, 50, n)
  return counts * rng.gamma(2, 0.5, n), counts


def jackknife(sums, counts):
  return intervals.jackknife_ci95(np.array(sums, float), np.array(counts))


def test_the_jackknife_is_its_definition():
  sums, counts = clusters(9)
  mean = sums.sum() / counts.sum()
  squares = 0.0
  for i in range(9):
    without = np.delete(sums, i).sum() / np.delete(counts, i).sum()
    squares += (without - mean) ** 2
  half = stats.t.ppf(0.975, 8) * math.sqrt(squares)
  low, high = intervals.jackknife_ci95(sums, counts)
  assert math.log(low) == pytest.approx(max(0, mean - half))
  assert math.log(high) == pytest.approx(mean + half)


def test_equal_clusters_have_an_interval_of_zero_width():
  low, high = jackknife([6.0] * 9, [4] * 9)
  assert low == high == perplexity.perplexity(6.0, 4)


def test_no_perplexity_lies_below_1():
  low, high = jackknife([0.0, 0.0, 0.0, 9.0], [3, 3, 3, 3])
  assert low == 1.0 < high


def test_clusters_without_tokens_change_no_interval():
  sums, counts = clusters(4)
  padded = intervals.jackknife_ci95(
    np.r_[0, sums, 0, 0], np.r_[0, counts, 0, 0]
  )
  assert padded == intervals.jackknife_ci95(sums, counts)


@pytest.mark.parametrize("sums", [[800.0, 801.0], [1.0, math.inf]])
def test_an_interval_that_overflows_is_null_not_infinite(sums):
  assert jackknife(sums, [1, 1]) == (None, None)


def test_one_cluster_has_no_interval():
  with pytest.raises(ValueError, match="1 clusters .* at least 2"):
    jackknife([1.0, 0.0], [3, 0])


def make_documents(n_documents, n_regions, seed=0):
  """(loss of each key region by document, key tokens of each)."""
  rng = np.random.default_rng(seed)
  sums = rng.gamma(6, 0.5, (n_documents, n_regions))
  return sums.tolist(), [[3] * n_regions] * n_documents


def test_four_documents_are_left_out_one_by_one():
  sums, counts = make_documents(4, 2)
  sums, counts = [*sums, []], [*counts, []]
  interval, label = intervals.longppl_ci95(sums, counts, np.arange(5))
  assert label == ""
  assert interval == pytest.approx(
    jackknife([sum(x) for x in sums[:4]], [6] * 4)
  )


def test_three_documents_speak_of_these_texts_only():
  sums, counts = make_documents(3, 4)
  sums.insert(1, [])
  counts = [counts[0], [], *counts[1:]]
  interval, label = intervals.longppl_ci95(sums, counts, np.arange(4))
  assert label == "these texts only"
  assert interval == pytest.approx(jackknife(np.concatenate(sums), [3] * 12))


def test_nine_regions_carry_no_interval_and_ten_do():
  for n in (9, 10):
    interval, label = intervals.longppl_ci95(
      *make_documents(1, n), np.zeros(1, int)
    )
    assert (interval is None) == (n < 10)
    assert label == ("few_key_regions" if n < 10 else "these texts only")
  assert intervals.longppl_ci95([], [], np.zeros(0, int)) == (
    None,
    "few_key_regions",
  )


@pytest.mark.parametrize("n_texts", [1, 3, 5])
def test_copies_of_a_text_are_no_evidence(n_texts):
  """12 copies have the interval of the text, and no narrower one."""
  sums, counts = make_documents(n_texts, 12)
  once = intervals.longppl_ci95(sums, counts, np.arange(n_texts))
  copied = intervals.longppl_ci95(
    sums * 12, counts * 12, np.tile(np.arange(n_texts), 12)
  )
  assert copied[1] == once[1]
  assert copied[0] == pytest.approx(once[0])


def test_copies_are_known_by_hash_or_else_by_their_sums():
  labels = intervals.text_labels(
    ["a", "", "b", "a", "", ""], [1.0, 1.0, 1.0, 2.0, 1.0, 1.0],
    [5, 5, 5, 5, 5, 6],
  )  # fmt: skip
  assert labels.tolist() == [0, 1, 2, 0, 1, 3]


def test_sums_and_counts_must_pair():
  with pytest.raises(ValueError, match=r"\[2\] regions .* \[1\]"):
    intervals.longppl_ci95([[1.0, 2.0]], [[3]], np.zeros(1, int))


def test_a_constant_factor_between_models_has_no_uncertainty():
  sums, counts = clusters(12)
  interval = intervals.paired_difference_ci95(
    sums + 0.25 * counts, counts, sums, counts
  )
  assert interval == pytest.approx((0.25, 0.25))
  marginal = intervals.jackknife_ci95(sums, counts)
  assert math.log(marginal[1] / marginal[0]) > 0.3


def test_paired_difference_changes_sign_with_the_order():
  (a, counts), (b, _) = clusters(15), clusters(15, seed=1)
  low, high = intervals.paired_difference_ci95(a, counts, b, counts)
  turned = intervals.paired_difference_ci95(b, counts, a, counts)
  assert (low, high) == pytest.approx((-turned[1], -turned[0]))


def test_paired_difference_uses_the_documents_of_both():
  counts = np.array([2, 2, 0, 2])
  baseline_counts = np.array([3, 3, 3, 0])
  interval = intervals.paired_difference_ci95(
    np.array([4.0, 4.0, 0.0, 900.0]),
    counts,
    np.array([3.0, 3.0, 99.0, 0.0]),
    baseline_counts,
  )
  assert interval == (1.0, 1.0)
