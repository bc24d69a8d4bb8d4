"""Laws of the reported numbers, against plain Python loops."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.paper import document_scores, intervals, perplexity
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows

masks = st.lists(st.booleans(), max_size=120).map(lambda m: np.array(m, bool))
losses = st.lists(
  st.lists(st.floats(0, 20, width=32), max_size=12), min_size=1, max_size=8
)


def equal(actual, expected):
  if expected is None:
    return actual is None
  return math.isclose(actual, expected, rel_tol=1e-12)


def sums_and_counts(documents):
  return [math.fsum(d) for d in documents], [len(d) for d in documents]


@settings(deadline=None)
@given(losses)
def test_pooled_equals_the_concatenation(documents):
  """Cases J1, J10: no mean of means."""
  tokens = [loss for document in documents for loss in document]
  expected = math.exp(math.fsum(tokens) / len(tokens)) if tokens else None
  pooled = perplexity.pooled_perplexity(*sums_and_counts(documents))
  assert equal(pooled, expected)
  assert perplexity.strict_ppl(*sums_and_counts(documents)) == pooled


@settings(deadline=None)
@given(losses, st.randoms())
def test_documents_may_come_in_any_order(documents, random):
  shuffled = random.sample(documents, len(documents))
  for average in (perplexity.pooled_perplexity, perplexity.paper_ppl):
    assert equal(
      average(*sums_and_counts(shuffled)), average(*sums_and_counts(documents))
    )


@settings(deadline=None)
@given(losses)
def test_paper_ppl_weights_a_document_by_its_ids(documents):
  """Cases J10: n ids weigh a mean over n - 1 losses, as the reference does."""
  weighted = [
    (len(d) + 1, math.fsum(d) / len(d)) for d in documents if len(d) > 0
  ]
  total = sum(n for n, _ in weighted)
  expected = (
    math.exp(math.fsum(n * mean for n, mean in weighted) / total)
    if weighted
    else None
  )
  assert equal(perplexity.paper_ppl(*sums_and_counts(documents)), expected)


def test_paper_and_strict_ppl_differ_when_lengths_do():
  """Cases J10: mean 1 over 1 target, mean 3 over 9: 32/12 against 28/10."""
  assert math.log(perplexity.paper_ppl([1.0, 27.0], [1, 9])) == pytest.approx(
    32 / 12
  )
  assert math.log(perplexity.strict_ppl([1.0, 27.0], [1, 9])) == pytest.approx(
    28 / 10
  )


def test_a_truncated_document_counts_only_what_was_scored():
  """Cases C5: dividing by the full length would flatter the model."""
  nll = np.linspace(1, 3, 100)
  half = perplexity.perplexity(nll[:50].sum(), 50)
  assert half == pytest.approx(np.exp(nll[:50].mean()))
  assert half > perplexity.perplexity(nll[:50].sum(), 100)


def test_perplexity_is_a_finite_json_number_or_null():
  """Cases C4: no NaN and no infinity reaches a result file."""
  assert perplexity.perplexity(0.0, 0) is None
  assert perplexity.perplexity(709.79, 1) is None
  assert perplexity.perplexity(math.inf, 3) is None
  almost = perplexity.perplexity(7097.0, 10)
  assert math.isfinite(json.loads(json.dumps(almost)))


@pytest.mark.parametrize("nll_sum, count", [(math.nan, 2), (1.0, -1)])
def test_perplexity_refuses_what_is_no_loss(nll_sum, count):
  with pytest.raises(ValueError, match=f"{nll_sum} over {count}"):
    perplexity.perplexity(nll_sum, count)


def test_bits_per_byte_is_the_log_of_the_byte_perplexity():
  """Cases J3."""
  nll_sum, n_bytes = 321.5, 170
  bits = perplexity.bits_per_byte(nll_sum, n_bytes)
  assert 2**bits == pytest.approx(perplexity.perplexity(nll_sum, n_bytes))
  assert perplexity.bits_per_byte(nll_sum, 0) is None


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


def test_top_documents_share():
  counts = [1, 0, 7, 2, 3, 4, 5]
  assert perplexity.top_documents_share(counts) == pytest.approx(21 / 22)
  assert perplexity.top_documents_share([0, 0]) is None


def test_equal_clusters_have_an_interval_of_zero_width():
  low, high = intervals.bootstrap_ci95([6.0] * 9, [4] * 9, seed=1)
  assert low == high == perplexity.perplexity(6.0, 4)


def test_bootstrap_matches_a_loop_over_resamples():
  rng = np.random.default_rng(5)
  counts = rng.integers(1, 50, 20)
  sums = counts * rng.gamma(2, 0.5, 20)
  values = []
  for _ in range(6000):
    picks = rng.integers(0, 20, 20)
    total = sum(sums[i] for i in picks) / sum(counts[i] for i in picks)
    values.append(math.exp(total))
  values.sort()
  low, high = intervals.bootstrap_ci95(sums, counts, seed=0, resamples=6000)
  assert low == pytest.approx(values[150], rel=0.02)
  assert high == pytest.approx(values[5850], rel=0.02)


def test_bootstrap_is_repeatable_and_blind_to_its_block_size(monkeypatch):
  sums, counts = np.arange(1.0, 31), np.full(30, 10)
  expected = intervals.bootstrap_ci95(sums, counts, seed=3, resamples=200)
  monkeypatch.setattr(intervals, "_GATHER_LIMIT", 64)
  again = intervals.bootstrap_ci95(sums, counts, seed=3, resamples=200)
  assert again == expected
  assert (
    intervals.bootstrap_ci95(sums, counts, seed=4, resamples=200) != expected
  )


def test_clusters_without_tokens_change_no_interval():
  sums, counts = np.array([2.0, 5, 4, 9]), np.array([1, 2, 3, 4])
  padded = intervals.bootstrap_ci95(
    np.r_[0, sums, 0, 0], np.r_[0, counts, 0, 0], seed=0
  )
  assert padded == intervals.bootstrap_ci95(sums, counts, seed=0)


def test_an_interval_that_overflows_is_null_not_infinite():
  assert intervals.bootstrap_ci95([800.0, math.inf], [1, 1], seed=0) == (
    None,
    None,
  )


def test_one_cluster_has_no_interval():
  with pytest.raises(ValueError, match="1 clusters .* at least 2"):
    intervals.bootstrap_ci95([1.0, 0.0], [3, 0], seed=0)


def make_documents(n_documents, n_regions, seed=0):
  rng = np.random.default_rng(seed)
  regions = [np.repeat(np.arange(n_regions), 3) for _ in range(n_documents)]
  shift = rng.normal(0, 0.5, n_documents)
  nlls = [np.abs(rng.normal(1 + s, 0.3, 3 * n_regions)) for s in shift]
  return nlls, regions


def test_eight_documents_are_resampled_as_documents():
  nlls, regions = make_documents(8, 4)
  nlls, regions = [*nlls, np.empty(0)], [*regions, np.empty(0, int)]
  interval, reason = intervals.longppl_ci95(nlls, regions, seed=0)
  assert reason == ""
  assert interval == pytest.approx(
    intervals.bootstrap_ci95([x.sum() for x in nlls[:8]], [12] * 8, seed=0)
  )


def test_seven_documents_are_resampled_as_regions():
  nlls, regions = make_documents(7, 4)
  nlls.insert(3, np.empty(0))
  regions.insert(3, np.empty(0, int))
  interval, reason = intervals.longppl_ci95(nlls, regions, seed=0)
  sums = [
    nlls[d][regions[d] == r].sum() for d in range(8) if d != 3 for r in range(4)
  ]
  assert reason == ""
  assert interval == pytest.approx(
    intervals.bootstrap_ci95(sums, [3] * 28, seed=0)
  )


def test_nine_regions_carry_no_interval_and_ten_do():
  for n_regions in (9, 10):
    interval, reason = intervals.longppl_ci95(
      *make_documents(1, n_regions), seed=0
    )
    assert (interval is None) == (n_regions < 10)
    assert reason == ("few_key_regions" if n_regions < 10 else "")
  assert intervals.longppl_ci95([], [], seed=0) == (None, "few_key_regions")


def test_losses_and_labels_must_pair():
  with pytest.raises(ValueError, match=r"\[2\] tokens .* \[1\]"):
    intervals.longppl_ci95([np.ones(2)], [np.zeros(1, int)], seed=0)


def test_a_constant_factor_between_models_has_no_uncertainty():
  rng = np.random.default_rng(0)
  counts = rng.integers(1, 9, 12)
  sums = rng.gamma(2, 1, 12) * counts
  interval = intervals.paired_difference_ci95(
    sums + 0.25 * counts, counts, sums, counts, seed=0
  )
  assert interval == pytest.approx((0.25, 0.25))
  marginal = intervals.bootstrap_ci95(sums, counts, seed=0)
  assert math.log(marginal[1] / marginal[0]) > 0.3


def test_paired_difference_changes_sign_with_the_order():
  rng = np.random.default_rng(1)
  a, b = rng.gamma(2, 1, (2, 15)) * 10
  counts = np.full(15, 10)
  low, high = intervals.paired_difference_ci95(a, counts, b, counts, seed=0)
  turned = intervals.paired_difference_ci95(b, counts, a, counts, seed=0)
  assert (low, high) == pytest.approx((-turned[1], -turned[0]), abs=0.02)


def test_paired_difference_uses_the_documents_of_both():
  counts = np.array([2, 2, 0, 2])
  baseline_counts = np.array([3, 3, 3, 0])
  interval = intervals.paired_difference_ci95(
    [4.0, 4.0, 0.0, 900.0], counts, [3.0, 3.0, 99.0, 0.0], baseline_counts,
    seed=0,
  )  # fmt: skip
  assert interval == (1.0, 1.0)


def loop_scores(ids, long, short, key, prefix, k, d, alpha, beta):
  """The definitions of the document scores, one token at a time."""
  text = list(ids[prefix:])
  lsd, keys, copied, mirror, near = [], [], [], 0, 0
  for t in range(len(ids) - 1):
    j = t + 1 - prefix
    if math.isnan(short[t]):
      assert j < k
      continue
    gain = long[t] - short[t]
    lsd.append(gain)
    mirror += short[t] - long[t] > alpha and short[t] > beta
    loose = gain > alpha - 0.01 and long[t] > beta - 0.01
    tight = gain > alpha + 0.01 and long[t] > beta + 0.01
    near += loose and not tight
    if key[t] and j >= k + d:
      keys.append(t)
      start = max(s for s in range(0, len(text), d) if s + k <= j)
      gram = text[j - 7 : j + 1]
      copied.append(
        j >= 7
        and any(text[p : p + 8] == gram for p in range(max(0, start - 7)))
      )
  eligible = max(0, len(text) - k - d)
  third = np.array_split(np.array(lsd), 3)
  return {
    "n_key_tokens": len(keys),
    "n_eligible": eligible,
    "key_token_ratio": len(keys) / eligible if eligible else None,
    "mean_context_benefit": np.mean(lsd) if lsd else None,
    "median_context_benefit": np.median(lsd) if lsd else None,
    "std_context_benefit": np.std(lsd) if lsd else None,
    "p75_context_benefit": np.quantile(lsd, 0.75) if lsd else None,
    "p90_context_benefit": np.quantile(lsd, 0.9) if lsd else None,
    "p95_context_benefit": np.quantile(lsd, 0.95) if lsd else None,
    "frac_positive_benefit": np.mean([x > 0 for x in lsd]) if lsd else None,
    "context_benefit_near": third[0].mean() if len(third[0]) else None,
    "context_benefit_mid": third[1].mean() if len(third[1]) else None,
    "context_benefit_far": third[2].mean() if len(third[2]) else None,
    "copied_share": np.mean(copied) if copied else None,
    "n_mirror": mirror,
    "n_near_threshold": near,
  }


@settings(deadline=None, max_examples=150)
@given(
  n=st.integers(0, 90),
  prefix=st.integers(0, 1),
  k=st.integers(1, 24),
  d=st.integers(1, 24),
  period=st.sampled_from([3, 11, 29, 1000]),
  seed=st.integers(0, 99),
)
def test_document_scores_match_the_loop(n, prefix, k, d, period, seed):
  """Cases C9, D3, L7."""
  d = min(d, k)
  rng = np.random.default_rng(seed)
  n = max(n, prefix)
  ids = np.r_[[999] * prefix, rng.permutation(period)[np.arange(n) % period]]
  ids = ids.astype(np.int32)[: n + prefix]
  t = max(len(ids) - 1, 0)
  j = np.arange(t) + 1 - prefix
  long = np.log(rng.uniform(0.05, 1, t)).astype(np.float32)
  short = (long - rng.normal(1, 1.5, t)).astype(np.float32)
  short[(j >= k) & (j < k + d)] = long[(j >= k) & (j < k + d)]
  short[j < k] = np.nan
  key = (long.astype(float) - short > 2.0) & (long > -2.0)
  options = dict(
    prefix_len=prefix, windows=Windows(k, d), thresholds=Thresholds(2.0, -2.0)
  )
  scores = document_scores.document_scores(ids, long, short, key, **options)
  expected = loop_scores(
    ids, long.astype(float), short.astype(float), key, prefix, k, d, 2.0, -2.0
  )
  assert scores == pytest.approx(expected, nan_ok=False)
  json.dumps(scores, allow_nan=False)


def test_a_repeat_counts_as_copied_only_from_before_the_window():
  """A phrase of 8 ids at 0 and at 30; short contexts of 16 and of 24 ids."""
  ids = np.arange(100, 140)
  ids[30:38] = ids[0:8]
  long = np.full(39, -0.1)
  for short_len, stride, copied in [(16, 4, 1.0), (32, 2, 0.0), (24, 8, 1.0)]:
    short = np.where(np.arange(1, 40) < short_len, np.nan, -0.1)
    key = np.arange(1, 40) == 37
    short[36] = -5.0
    scores = document_scores.document_scores(
      ids, long, short, key,
      prefix_len=0, windows=Windows(short_len, stride), thresholds=Thresholds(),
    )  # fmt: skip
    assert scores["copied_share"] == copied, short_len


def test_arrays_that_break_the_alignment_law_are_refused():
  with pytest.raises(ValueError, match=r"9 ids have 8 targets.*\[8, 8, 9\]"):
    document_scores.document_scores(
      np.arange(9), np.zeros(8), np.zeros(8), np.zeros(9, bool),
      prefix_len=0, windows=Windows(2, 1), thresholds=Thresholds(),
    )  # fmt: skip


def test_key_tokens_of_the_first_window_do_not_count():
  """Cases C9: a negative alpha would let what is 0 by construction pass."""
  scores = document_scores.document_scores(
    np.arange(20), np.zeros(19), np.zeros(19), np.ones(19, bool),
    prefix_len=0, windows=Windows(8, 4), thresholds=Thresholds(-1.0, -2.0),
  )  # fmt: skip
  assert (scores["n_key_tokens"], scores["key_token_ratio"]) == (8, 1.0)


def test_near_threshold_is_where_the_decision_could_flip():
  """Cases D3: each of the pair within 0.01, the other not in the way."""
  lsd = [2.005, 1.995, 3.0, 3.0, 3.0, 2.02, 0.0, 2.005]
  long = [-1.0, -1.0, -1.995, -2.005, -1.0, -1.0, -2.0, -3.0]
  scores = document_scores.document_scores(
    np.arange(9), np.array(long), np.array(long) - lsd, np.zeros(8, bool),
    prefix_len=0, windows=Windows(1, 1), thresholds=Thresholds(),
  )  # fmt: skip
  assert scores["n_near_threshold"] == 4
