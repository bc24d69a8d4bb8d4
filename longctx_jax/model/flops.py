"""Floating-point operations of a pass and of a step."""

from __future__ import annotations

import dataclasses
import math

from longctx_jax.model import parameters
from longctx_jax.model.config import ModelConfig
from longctx_jax.paper.windows import Windows


@dataclasses.dataclass(frozen=True)
class Operations:
  """Of a program, a multiply-add being two.

  Attributes:
    long: of the layers, over whole rows; backward included.
    short: of the layers, over short windows.
    head: of the output head, for both.
  """

  long: float
  short: float
  head: float

  @property
  def total(self) -> float:
    """All of them."""
    return self.long + self.short + self.head


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
  head = _head_flops(config, predicted or length)
  return _layers_flops(config, length) + head


def row_operations(
  config: ModelConfig,
  *,
  rows: int,
  length: int,
  n_windows: int,
  windows: Windows,
  trained: bool,
) -> Operations:
  """Operations of rows and their windows: backward counts twice, remat nothing.

  Args:
    config: facts of the model.
    rows: over all devices and micro-batches.
    length: targets of a row.
    n_windows: short windows of a row, forward only.
    windows: of the short contexts.
    trained: whether the rows go backward too.
  """
  times = rows * (3 if trained else 1)
  short = rows * n_windows
  return Operations(
    long=times * _layers_flops(config, length),
    short=short * _layers_flops(config, windows.length - 1),
    head=times * _head_flops(config, length)
    + short * _head_flops(config, windows.stride),
  )


def _layers_flops(config: ModelConfig, length: int) -> float:
  """Of one row through all layers."""
  matrices = sum(
    math.prod(shape) * _active_share(config, name)
    for name, shape in parameters.parameter_shapes(config).items()
    if name.endswith("kernel")
  )
  pairs = sum(
    _visible_pairs(length, window or length) for window in config.windows
  )
  attention = 4 * config.num_heads * config.head_dim * pairs
  return 2.0 * matrices * length + attention


def _head_flops(config: ModelConfig, predicted: int) -> float:
  return 2.0 * config.vocab_size * config.embed_dim * predicted


def _active_share(config: ModelConfig, name: str) -> float:
  """Share of a parameter that a position meets: experts are routed to."""
  routed = config.num_experts and ".mlp." in name and "router" not in name
  return config.experts_per_token / config.num_experts if routed else 1.0


def _visible_pairs(length: int, window: int) -> float:
  """Causal pairs of query and key, at most `window` keys per query."""
  window = min(window, length)
  return window * (window + 1) / 2 + (length - window) * window
