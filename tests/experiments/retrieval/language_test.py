"""A language of whole words, in which one word says what can follow."""

import numpy as np

from longctx_jax.experiments.retrieval.language import (
  BOS,
  END,
  FIRST_NAME,
  LINE,
  Language,
)

WORDS = Language(names=5, values=7, fillers=11, value_len=2, branches=3)


def test_names_values_and_fillers_share_no_id():
  starts = [FIRST_NAME, WORDS.first_value, WORDS.first_filler]
  assert np.diff([*starts, WORDS.vocab_size]).tolist() == [5, 7, 11]
  assert max(BOS, LINE, END) < FIRST_NAME
  assert WORDS.statement_len == 5  # LINE, name, two values, END


def test_filler_follows_the_chain_at_its_shares():
  ids = WORDS.filler(np.random.default_rng(0), 50, 400)
  assert ids.dtype == np.int32 and (ids[:, 0] == BOS).all()
  words = ids[:, 1:] - WORDS.first_filler
  assert words.min() >= 0 and words.max() <= 10
  pairs = np.zeros((11, 11))
  np.add.at(pairs, (words[:, :-1], words[:, 1:]), 1)
  successors, cumulated = WORDS.chain
  expected = np.zeros((11, 11))
  shares = np.diff(cumulated, axis=1, prepend=0)
  np.put_along_axis(expected, successors, shares, axis=1)
  assert (pairs[expected == 0] == 0).all()
  # Words that came 600 times or more: a standard error of 0.02 at most.
  often = pairs.sum(1) >= 600
  assert often.sum() > 4
  found = pairs[often] / pairs[often].sum(1, keepdims=True)
  np.testing.assert_allclose(found, expected[often], atol=0.08)


def test_a_seed_is_a_chain():
  same, other = (
    Language(names=5, values=7, fillers=11, branches=3, seed=seed)
    for seed in (WORDS.seed, 1)
  )
  np.testing.assert_array_equal(same.chain[0], WORDS.chain[0])
  assert (other.chain[0] != WORDS.chain[0]).any()
