import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.paper import windows as windows_lib
from longctx_jax.paper.windows import Windows


def reference_loop(n, short_len, stride):
  """The paper's loop (appendix A.1): (window start, scored id) pairs."""
  return [
    (start, i)
    for start in range(0, n - short_len, stride)
    for i in range(start + short_len, min(start + short_len + stride, n))
  ]


@settings(deadline=None, max_examples=300)
@given(
  n=st.integers(0, 400),
  short_len=st.integers(1, 60),
  stride=st.integers(1, 60),
)
def test_plan_is_the_papers_loop_and_scores_each_id_once(n, short_len, stride):
  # cases C1, J1
  if stride > short_len:
    with pytest.raises(ValueError, match="1 <= stride <= short_len"):
      Windows(short_len, stride)
    return
  windows = Windows(short_len, stride)
  plan = windows.plan(n)
  scored = [
    (start, i)
    for start, first, end in zip(
      plan.start, plan.score_start, plan.score_end, strict=True
    )
    for i in range(first, end)
  ]
  assert scored == reference_loop(n, short_len, stride)
  assert [i for _, i in scored] == list(range(short_len, n))
  past_first = sum(start > 0 for start, _ in scored)
  assert past_first == windows.count_eligible(n)
  for start, i in scored:
    assert short_len <= i - start < windows.length


@pytest.mark.parametrize("n", [0, 1, 2, 12, 13, 15, 16, 17, 128, 129])
def test_lengths_at_the_edges(n):
  plan = Windows(12, 3).plan(n)
  assert len(plan) == (0 if n <= 12 else -(-(n - 12) // 3))


@pytest.mark.parametrize("bad", [(0, 0), (4, 0), (4, 5), (4, -1)])
def test_bad_windows_are_refused_with_both_numbers(bad):
  short_len, stride = bad
  with pytest.raises(ValueError, match=f"stride={stride}.*={short_len}"):
    Windows(short_len, stride)


def test_alignment_law():
  inputs, targets = windows_lib.align(np.array([7, 8, 9]))
  assert inputs.tolist() == [7, 8] and targets.tolist() == [8, 9]
