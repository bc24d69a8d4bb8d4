"""Operations counted by hand, and peaks of devices."""

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
  kinds = dict(rows=4, seq_len=64, windows=Windows(16, 8))
  ce = flops.step_flops(config, n_windows=0, **kinds)
  assert ce == 4 * 3 * flops.forward_flops(config, 64)
  live = flops.step_flops(config, n_windows=5, **kinds)
  window = flops.forward_flops(config, 23, predicted=8)
  assert live - ce == pytest.approx(4 * 5 * window)


@pytest.mark.parametrize(
  ("kind", "peak"),
  [
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5p", 459e12),
    ("TPU v5", 459e12),
    ("TPU v6 lite", 918e12),
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA A100-SXM4-80GB", 312e12),
    ("cpu", None),
    ("TPU v99", None),
  ],
)
def test_peaks_are_those_of_the_data_sheets_or_unknown(kind, peak):
  assert flops.peak_flops(kind) == peak
