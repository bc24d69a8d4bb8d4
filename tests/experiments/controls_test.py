"""The controls on log-probs whose answer is known."""

import json
import math

import numpy as np
import pytest
from support import records, tiny_runs

from longctx_jax.experiments import controls
from longctx_jax.text import corpus

NAN = float("nan")
# One key token, one mirror of one, two that gain nothing.
LONG = [-5.0, -1.0, -9.0, -1.0, -1.0]
SHORT = [NAN, -9.0, -1.0, -1.0, -1.5]
ROW = records.make_row("abcdef", LONG, SHORT)


def test_key_mirror_and_scored_targets_are_counted():
  assert controls.count_scored(ROW, slice(None)) == (1, 1, 4)
  assert controls.count_scored(ROW, slice(0, 2)) == (1, 0, 1)


def test_positions_are_drawn_among_those_that_can_be_key():
  """Never the first target, of 5 nats, which has no short context."""
  found = controls.shuffle_keys(records.make_store(ROW), seed=0, shuffles=99)
  assert (found.n_key_tokens, found.longppl) == (1, pytest.approx(math.e))
  assert found.ppl == pytest.approx(math.exp((1 + 9 + 1 + 1) / 4))
  assert found.interval == pytest.approx((math.e, math.exp(9)))
  drawn = np.array([math.e, math.exp(9)])
  share = (found.shuffled - drawn[0]) / (drawn[1] - drawn[0])
  # One of four; the standard error is 0.044.
  assert share == pytest.approx(0.25, abs=0.15)


def test_a_document_follows_the_beginning_of_the_next(tmp_path):
  texts = ["ab" * 4000, "cd" * 10, "ef" * 3]
  path = tiny_runs.write_jsonl(tmp_path / "texts.jsonl", texts)
  out = tmp_path / "data" / "foreign.jsonl"
  cuts = controls.write_foreign(corpus.open_corpus(path), out)
  written = [json.loads(line) for line in out.read_text().splitlines()]
  assert [row["text"] for row in written] == [
    "cd" * 10 + "ab" * 2000,
    "ef" * 3 + "cd" * 5,
    "ab" * 3000 + "fef",
  ]
  assert cuts == {"d0": 20, "d1": 6, "d2": 6000}


def test_the_first_window_behind_the_foreign_text_is_counted():
  """K = 4; target t is character t + 1."""
  behind = controls.behind_foreign(ROW, 3)
  assert behind == slice(2, 6)


@pytest.mark.parametrize("side", [0, 1])
def test_one_bit_of_a_log_prob_makes_another_store(side):
  def store(change=0.0):
    sides = [list(LONG), list(SHORT)]
    sides[side][-1] += change
    return records.make_store(records.make_row("abcdef", *sides))

  assert controls.same_bits(store(), store())
  assert not controls.same_bits(store(), store(2e-7))
