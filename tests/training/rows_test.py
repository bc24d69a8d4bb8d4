"""Rows: padding and boundaries bear no loss, no window leaves its document."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longctx_jax.paper.windows import Windows
from longctx_jax.training import rows


@st.composite
def packed_rows(draw):
  """(documents, seq_len), with room left or none."""
  lengths = draw(st.lists(st.integers(1, 25), min_size=1, max_size=5))
  seq_len = max(1, sum(lengths) - 1 + draw(st.integers(0, 9)))
  documents = [
    np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    for n in lengths
  ]
  return documents, seq_len


@st.composite
def loss_windows(draw):
  short_len = draw(st.integers(1, 12))
  return Windows(short_len, draw(st.integers(1, short_len)))


@given(packed_rows())
def test_a_packed_row_holds_each_document_whole_and_once(case):
  """Cases I1, I5: weight count = sum(n_i - 1), by position."""
  documents, seq_len = case
  row = rows.make_row(documents, seq_len=seq_len, packed=True, pad_id=7)
  assert row["loss_mask"].sum() == sum(len(ids) - 1 for ids in documents)
  ids = np.append(row["inputs"], row["targets"][-1])
  at = 0
  for number, document in enumerate(documents, 1):
    inside = slice(at, at + len(document))
    np.testing.assert_array_equal(ids[inside], document)
    own = row["segment_ids"][inside]  # One short where the row is full.
    assert (own == number).all()
    np.testing.assert_array_equal(row["positions"][inside], np.arange(len(own)))
    mask = row["loss_mask"][at : at + len(document) - 1]
    assert (mask == 1).all()
    if at:
      assert row["loss_mask"][at - 1] == 0
    at += len(document)
  assert (ids[at:] == 7).all() and (row["segment_ids"][at:] == 0).all()


@given(packed_rows(), loss_windows())
def test_windows_of_a_row_are_those_of_its_documents(case, windows):
  """Case I6: planned per document, without each one's window 0."""
  documents, seq_len = case
  plan = rows.plan_row(
    [len(d) for d in documents], seq_len=seq_len, windows=windows
  )
  expected, at = [], 0
  for document in documents:
    own = windows.plan(len(document))
    for w in range(1, len(own)):
      place = own.start[w], own.score_start[w], own.score_end[w]
      expected.append(tuple(at + int(i) for i in place))
    at += len(document)
  names = ("window_start", "score_start", "score_end")
  planned = list(zip(*(plan[name].tolist() for name in names), strict=True))
  assert len(planned) == rows.max_windows(seq_len, windows)
  assert planned == expected + [(0, 0, 0)] * (len(planned) - len(expected))


@given(st.integers(1, 60), loss_windows())
def test_the_bound_on_windows_is_met_by_one_whole_document(seq_len, windows):
  plan = windows.plan(seq_len + 1)
  assert rows.max_windows(seq_len, windows) == max(0, len(plan) - 1)


@given(packed_rows(), loss_windows())
def test_targets_with_a_short_context_have_that_much_of_their_own_text(
  case, windows
):
  """Case I6: no id before K of its document is scored; K or more are read."""
  documents, seq_len = case
  row = rows.make_row(documents, seq_len=seq_len, packed=True, windows=windows)
  segment = np.append(row["segment_ids"], 0)
  for start, first, last in zip(
    row["window_start"], row["score_start"], row["score_end"], strict=True
  ):
    for i in range(first, last):
      assert row["loss_mask"][i - 1] == 1
      assert segment[start] == segment[i - 1]
      assert row["positions"][i - 1] + 1 >= windows.short_len
      assert 0 <= i - start - windows.short_len < windows.stride


def test_padding_is_known_by_its_position_and_not_by_its_id():
  """Cases I1, I2, I3: real ids that equal the padding id bear loss."""
  eos = 5
  document = np.array([1, eos, 2, eos])
  row = rows.make_row([document], seq_len=6, packed=False, pad_id=eos)
  assert row["targets"].tolist() == [eos, 2, eos, eos, eos, eos]
  assert row["loss_mask"].tolist() == [1, 1, 1, 0, 0, 0]
  other = rows.make_row([document], seq_len=6, packed=False, pad_id=0)
  np.testing.assert_array_equal(row["loss_mask"], other["loss_mask"])
  assert set(row) == {"inputs", "targets", "loss_mask"}


def test_one_document_changes_nothing_of_its_neighbours():
  """Case I4, the part of the data: ids, mask, positions, windows."""
  a, b = (
    rows.make_row(
      [np.full(7, value), np.arange(9)],
      seq_len=19,
      packed=True,
      windows=Windows(3, 2),
    )
    for value in (0, 1)
  )
  changed = {name for name in a if not np.array_equal(a[name], b[name])}
  assert changed == {"inputs", "targets"}
  np.testing.assert_array_equal(a["inputs"][7:], b["inputs"][7:])


def test_lengths_are_those_of_all_ids_of_the_document():
  documents = [np.arange(4), np.arange(3)]
  packed = rows.make_row(documents, seq_len=9, packed=True, with_lengths=True)
  assert packed["lengths"].tolist() == [4, 4, 4, 4, 3, 3, 3, 3, 3]
  alone = rows.make_row(
    documents[:1], seq_len=9, packed=False, with_lengths=True
  )
  assert alone["lengths"].tolist() == 4


def test_weights_stand_at_their_targets_and_are_1_elsewhere():
  weights = [np.array([2.0, 3.0]), np.array([4.0])]
  row = rows.make_row(
    [np.arange(3), np.arange(2)], seq_len=7, packed=True, weights=weights
  )
  assert row["weights"].tolist() == [2, 3, 1, 4, 1, 1, 1]
  assert row["loss_mask"].tolist() == [1, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(("lengths", "packed"), [([5], True), ([2, 2], False)])
def test_what_does_not_fit_is_refused(lengths, packed):
  with pytest.raises(ValueError, match="a row holds 4 ids, and one document"):
    rows.make_row([np.zeros(n, int) for n in lengths], seq_len=3, packed=packed)


def test_a_batch_stacks_rows_also_without_windows():
  windows = Windows(8, 4)
  row = rows.make_row([np.arange(5)], seq_len=4, packed=False, windows=windows)
  batch = rows.stack([row, row])
  assert batch["inputs"].shape == (2, 4)
  assert batch["window_start"].shape == (2, 0)


def best_fit(lengths, order, capacity):
  """The definition, by looking at every row."""
  found = []
  for item in order:
    room = [capacity - sum(lengths[i] for i in row) for row in found]
    fitting = [r for r in range(len(found)) if room[r] >= lengths[item]]
    if fitting:
      found[min(fitting, key=lambda r: (room[r], r))].append(item)
    else:
      found.append([item])
  return found


@given(st.data())
def test_packing_is_best_fit_and_loses_and_repeats_nothing(data):
  capacity = data.draw(st.integers(1, 12))
  lengths = data.draw(st.lists(st.integers(1, capacity), max_size=30))
  order = data.draw(st.permutations(range(len(lengths))))
  packed = rows.pack(lengths, order, capacity=capacity)
  assert [row.tolist() for row in packed] == best_fit(lengths, order, capacity)
  assert sorted(i for row in packed for i in row) == list(range(len(lengths)))


def test_the_example_of_packing():
  packed = rows.pack([5, 3, 4, 2], range(4), capacity=7)
  assert [row.tolist() for row in packed] == [[0, 3], [1, 2]]


@pytest.mark.parametrize("length", [0, 8])
def test_an_item_that_fits_nowhere_is_named(length):
  with pytest.raises(ValueError, match=f"item 1 has length {length}; a row"):
    rows.pack([5, length], range(2), capacity=7)


def test_most_of_a_row_is_used():
  lengths = np.random.default_rng(0).integers(1, 65, 2000)
  packed = rows.pack(lengths, np.arange(2000), capacity=64)
  assert lengths.sum() > 0.97 * 64 * len(packed)
