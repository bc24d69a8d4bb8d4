"""The columns that documents are filtered by, against a loop over tokens."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.typechecked import unchecked

from longctx_jax.paper import document_scores
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows


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
    unchecked(document_scores.document_scores)(
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
