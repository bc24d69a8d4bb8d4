"""Operations counted by hand."""

import pytest

from longctx_jax import testing
from longctx_jax.model import flops
from longctx_jax.paper.windows import Windows


def test_a_forward_pass_by_hand():
  # D 40, 4 heads of 8, 2 kv heads, F 56, V 263, 2 layers, 10 positions.
  layer = 40 * 32 + 2 * 40 * 16 + 32 * 40 + 3 * 40 * 56
  attention = 2 * 4 * 4 * 8 * 55  # Two layers, 55 causal pairs.
  expected = 2 * 10 * (2 * layer + 263 * 40) + attention
  config = testing.tiny_config()
  assert flops.forward_flops(config, 10) == expected
  fewer = flops.forward_flops(config, 10, predicted=3)
  assert expected - fewer == 2 * 7 * 263 * 40


def test_a_window_limits_the_pairs():
  config = testing.tiny_config(windows=(3, 0))
  full = flops.forward_flops(testing.tiny_config(), 10)
  # 1 + 2 + 8 x 3 pairs in place of 55.
  assert full - flops.forward_flops(config, 10) == 4 * 4 * 8 * (55 - 27)


def test_a_token_meets_its_own_experts_only():
  kinds = dict(model_type="mixtral", num_experts=8, expert_dim=56)
  one, two = (
    flops.forward_flops(
      testing.tiny_config(**kinds, experts_per_token=count), 10
    )
    for count in (1, 2)
  )
  assert two - one == 2 * 10 * 2 * 3 * 40 * 56


def test_a_step_is_three_passes_and_the_windows_one_each():
  config = testing.tiny_config()
  kinds = dict(rows=4, length=64, windows=Windows(16, 8), trained=True)
  ce = flops.row_operations(config, n_windows=0, **kinds)
  assert ce.total == 4 * 3 * flops.forward_flops(config, 64)
  live = flops.row_operations(config, n_windows=5, **kinds)
  window = flops.forward_flops(config, 23, predicted=8)
  assert live.total - ce.total == pytest.approx(4 * 5 * window)
  assert live.long == ce.long and ce.short == 0
  assert live.head - ce.head == 4 * 5 * 2 * 263 * 40 * 8


def test_a_scored_row_goes_forward_alone():
  config = testing.tiny_config()
  kinds = dict(rows=3, length=64, n_windows=5, windows=Windows(16, 8))
  scored, trained = (
    flops.row_operations(config, trained=trained, **kinds)
    for trained in (False, True)
  )
  assert trained.long == 3 * scored.long and trained.short == scored.short
