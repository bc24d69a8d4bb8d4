"""What a part of the work needs at least: operations, bytes, and their rates.

The floor of a part is its matrix products at the rate that the machine's own
reach, or, where nothing is multiplied, its bytes at the rate of a copy.
"""

from __future__ import annotations

import dataclasses
import statistics

from longctx_jax.model import flops
from longctx_jax.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of the work.

  Attributes:
    name: of the part.
    flops: operations of its matrix products, a multiply-add being two.
    moved: bytes read and written by what multiplies no matrices; else 0.
  """

  name: str
  flops: float
  moved: float = 0.0

  def floor(self, *, flops_rate: float, copy_rate: float) -> float:
    """Seconds that it takes at least: flops / rate + bytes / rate.

    Args:
      flops_rate: operations per second of matrix products.
      copy_rate: bytes per second, read and written, of a copy.
    """
    return self.flops / flops_rate + self.moved / copy_rate


def product_shapes(
  config: ModelConfig, *, rows: int, head_rows: int
) -> dict[str, tuple[int, int, int]]:
  """(rows, in, out) of the products that a forward pass is made of.

  Args:
    config: of a model without experts.
    rows: positions that pass the blocks.
    head_rows: positions that pass the output head.
  """
  dim, mlp = config.embed_dim, config.mlp_dim
  width = config.head_dim * config.num_heads
  return {
    "q, o": (rows, dim, width),
    "k, v": (rows, dim, config.head_dim * config.num_kv_heads),
    "gate, up": (rows, dim, mlp),
    "down": (rows, mlp, dim),
    "head": (head_rows, dim, config.vocab_size),
  }


def window_flops(config: ModelConfig, *, short_len: int, stride: int) -> float:
  """Operations of a window pass, the last layer on scored rows alone.

  Args:
    config: of a model without experts and without sliding windows.
    short_len: the paper's K.
    stride: the paper's d.
  """
  length = short_len + stride - 1
  whole = flops.forward_flops(config, length, predicted=stride)
  context = length - stride  # positions without a query in the last layer
  dim = config.embed_dim
  width = config.head_dim * config.num_heads
  weights = 2 * dim * width + 3 * dim * config.mlp_dim
  pairs = context * (context + 1) / 2
  return whole - 2.0 * weights * context - 4 * width * pairs


def attention_flops(config: ModelConfig, length: int) -> float:
  """Operations of one layer's causal attention: 4 N H n (n + 1) / 2."""
  pairs = length * (length + 1) / 2
  return 4.0 * config.num_heads * config.head_dim * pairs


def head_flops(config: ModelConfig, rows: int) -> float:
  """Operations of the output head on some rows: 2 V D rows."""
  return 2.0 * config.vocab_size * config.embed_dim * rows


def format_table(
  parts: list[tuple[Part, list[float]]], *, flops_rate: float, copy_rate: float
) -> str:
  """Operations, seconds (median and all), and share of the floor, per part.

  Args:
    parts: with the seconds of every round.
    flops_rate: as in `Part.floor`.
    copy_rate: as in `Part.floor`.
  """
  lines = [
    f"{'part':<28}  {'GFLOP':>8}  {'CPU s':>8}  {'GFLOP/s':>8}  "
    f"{'of the floor':>12}  all values"
  ]
  for part, seconds in parts:
    middle = statistics.median(seconds)
    floor = part.floor(flops_rate=flops_rate, copy_rate=copy_rate)
    lines.append(
      f"{part.name:<28}  {part.flops / 1e9:8.1f}  {middle:8.4f}  "
      f"{part.flops / middle / 1e9:8.1f}  {floor / middle:12.2f}  "
      + " ".join(f"{value:.4f}" for value in seconds)
    )
  return "\n".join(lines)
