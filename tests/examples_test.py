"""The examples in the docstrings run, and what a user calls first has one."""

import doctest
import inspect
import sys

import pytest

import longctx_jax
from longctx_jax import longppl
from longctx_jax.paper import contrast, intervals, perplexity, spans, windows

FUNCTIONS = (
  longctx_jax.load_model,
  longppl.find_key_tokens,
  longppl.compute_longppl,
  longppl.longppl_from_log_probs,
  windows.Windows.plan,
  contrast.key_token_mask,
  contrast.longce_weights,
  perplexity.perplexity,
  perplexity.bits_per_byte,
  perplexity.pooled_perplexity,
  perplexity.paper_ppl,
  spans.merge_adjacent,
  spans.project,
  intervals.region_labels,
  intervals.text_labels,
  intervals.jackknife_ci95,
  intervals.paired_difference_ci95,
)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_example_runs(function):
  module = sys.modules[inspect.unwrap(function).__module__]
  (test,) = doctest.DocTestFinder(recurse=False).find(
    function, function.__name__, module=module, globs=dict(vars(module))
  )
  assert test.examples
  said = []
  doctest.DocTestRunner().run(test, out=said.append)
  assert not said, "".join(said)
