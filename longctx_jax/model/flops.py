"""Floating-point operations of a pass, and what a device can do of them."""

from __future__ import annotations

import math
import re

from longctx_jax.model import parameters
from longctx_jax.model.config import ModelConfig
from longctx_jax.paper.windows import Windows

# Dense bfloat16 operations per second, by the vendors' data sheets.
_PEAKS = (
  (r"TPU v4", 275e12),
  (r"TPU v5 lite|TPU v5e", 197e12),
  (r"TPU v5p?", 459e12),
  (r"TPU v6 lite|TPU v6e", 918e12),
  (r"TPU ?7x", 2307e12),
  (r"NVIDIA A100.*", 312e12),
  (r"NVIDIA (H100 80GB HBM3|H200|GH200).*", 989e12),
  (r"NVIDIA B200.*", 2250e12),
)


def peak_flops(device_kind: str) -> float | None:
  """Peak bfloat16 operations per second of a device; None where unknown."""
  for pattern, peak in _PEAKS:
    if re.fullmatch(pattern, device_kind):
      return peak
  return None


def forward_flops(
  config: ModelConfig, length: int, *, predicted: int = 0
) -> float:
  """Operations of one row's forward pass, a multiply-add being two.

  2 x (weights that a position meets) x length, and 4 N H per layer and pair of
  query and visible key; attention is causal.

  Args:
    config: facts of the model.
    length: positions of the row.
    predicted: positions that go through the output head; 0 is all.
  """
  shapes = parameters.parameter_shapes(config)
  head = config.vocab_size * config.embed_dim
  matrices = sum(
    math.prod(shape) * _active_share(config, name)
    for name, shape in shapes.items()
    if name.endswith("kernel")
  )
  pairs = sum(
    _visible_pairs(length, window or length) for window in config.windows
  )
  attention = 4 * config.num_heads * config.head_dim * pairs
  return 2.0 * (matrices * length + head * (predicted or length)) + attention


def step_flops(
  config: ModelConfig,
  *,
  rows: int,
  seq_len: int,
  n_windows: int,
  windows: Windows,
) -> float:
  """Operations of a training step: backward counts twice, remat nothing.

  Args:
    config: facts of the model.
    rows: of the step, over all devices and micro-batches.
    seq_len: targets of a row.
    n_windows: short windows of a row, forward only; 0 without live weights.
    windows: of the short contexts.
  """
  long = 3 * forward_flops(config, seq_len)
  if not n_windows:
    return rows * long
  short = forward_flops(config, windows.length - 1, predicted=windows.stride)
  return rows * (long + n_windows * short)


def _active_share(config: ModelConfig, name: str) -> float:
  """Share of a parameter that a position meets: experts are routed to."""
  routed = config.num_experts and ".mlp." in name and "router" not in name
  return config.experts_per_token / config.num_experts if routed else 1.0


def _visible_pairs(length: int, window: int) -> float:
  """Causal pairs of query and key, at most `window` keys per query."""
  window = min(window, length)
  return window * (window + 1) / 2 + (length - window) * window
