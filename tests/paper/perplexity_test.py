"""Laws of the reported numbers, against plain Python loops."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.paper import perplexity

losses = st.lists(
  st.lists(st.floats(0, 20, width=32), max_size=12), min_size=1, max_size=8
)


def equal(actual, expected):
  if expected is None:
    return actual is None
  return math.isclose(actual, expected, rel_tol=1e-12)


def sums_and_counts(documents):
  return (
    np.array([math.fsum(d) for d in documents]),
    np.array([len(d) for d in documents]),
  )


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
  arrays = np.array([1.0, 27.0]), np.array([1, 9])
  assert math.log(perplexity.paper_ppl(*arrays)) == pytest.approx(32 / 12)
  assert math.log(perplexity.strict_ppl(*arrays)) == pytest.approx(28 / 10)


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


def test_top_documents_share():
  counts = np.array([1, 0, 7, 2, 3, 4, 5])
  assert perplexity.top_documents_share(counts) == pytest.approx(21 / 22)
  assert perplexity.top_documents_share(np.zeros(2, int)) is None
