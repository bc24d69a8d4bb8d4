"""Packing: each item once, whole, where it fits best."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longctx_jax.training import rows as rows_lib


def best_fit(lengths, order, capacity):
  """The definition, by looking at every row."""
  rows = []
  for item in order:
    room = [capacity - sum(lengths[i] for i in row) for row in rows]
    fitting = [r for r in range(len(rows)) if room[r] >= lengths[item]]
    if fitting:
      rows[min(fitting, key=lambda r: (room[r], r))].append(item)
    else:
      rows.append([item])
  return rows


@given(st.data())
def test_packing_is_best_fit_and_loses_and_repeats_nothing(data):
  capacity = data.draw(st.integers(1, 12))
  lengths = data.draw(st.lists(st.integers(1, capacity), max_size=30))
  order = data.draw(st.permutations(range(len(lengths))))
  rows = rows_lib.pack(lengths, order, capacity=capacity)
  assert [row.tolist() for row in rows] == best_fit(lengths, order, capacity)
  assert sorted(i for row in rows for i in row) == list(range(len(lengths)))


def test_the_example():
  rows = rows_lib.pack([5, 3, 4, 2], range(4), capacity=7)
  assert [row.tolist() for row in rows] == [[0, 3], [1, 2]]


@pytest.mark.parametrize("length", [0, 8])
def test_an_item_that_fits_nowhere_is_named(length):
  with pytest.raises(ValueError, match=f"item 1 has length {length}; a row"):
    rows_lib.pack([5, length], range(2), capacity=7)


def test_most_of_a_row_is_used():
  lengths = np.random.default_rng(0).integers(1, 65, 2000)
  rows = rows_lib.pack(lengths, np.arange(2000), capacity=64)
  assert lengths.sum() > 0.97 * 64 * len(rows)
