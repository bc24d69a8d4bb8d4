"""Rotary position embeddings: one table of inverse frequencies per type.

Everything is computed in float32 (or finer) whatever the model's dtype: in
bfloat16, position 257 equals position 256.
"""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Fields that each type needs beside `theta`; a missing one is an error.
_REQUIRED = {
  "default": (),
  "linear": ("factor",),
  "llama3": (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position",
  ),
  "yarn": ("factor", "original_max_position"),
}
ROPE_TYPES = tuple(_REQUIRED)


@dataclasses.dataclass(frozen=True)
class RopeConfig:
  """Facts that determine the rotary table, all from the checkpoint.

  A number that the type does not use is 0.

  Attributes:
    rope_type: one of `ROPE_TYPES`.
    theta: base of the frequencies.
    factor: by how much the context is stretched.
    original_max_position: length of the original training context.
    low_freq_factor: llama3: wavelengths above original / low are stretched.
    high_freq_factor: llama3: wavelengths below original / high are kept.
    beta_fast: yarn: rotations from which a dimension is kept.
    beta_slow: yarn: rotations below which a dimension is stretched.
    attention_factor: yarn: factor on cos and sin.
    truncate: yarn: round the ramp's ends to whole dimensions.
  """

  rope_type: str
  theta: float
  factor: float = 0.0
  original_max_position: int = 0
  low_freq_factor: float = 0.0
  high_freq_factor: float = 0.0
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  attention_factor: float = 1.0
  truncate: bool = True

  def __post_init__(self):
    if self.rope_type not in _REQUIRED:
      raise ValueError(
        f"rope_type={self.rope_type!r} is not known; known: "
        f"{', '.join(ROPE_TYPES)}"
      )
    if not self.theta > 0:
      raise ValueError(f"rope_theta={self.theta} must be positive")
    for name in _REQUIRED[self.rope_type]:
      if not getattr(self, name) > 0:
        raise ValueError(
          f"rope_type {self.rope_type!r} needs {name} > 0, not "
          f"{getattr(self, name)}"
        )

  def describe(self) -> str:
    """One line for results and manifests."""
    facts = [f"theta {self.theta:g}"]
    facts += [
      f"{name} {getattr(self, name):g}" for name in _REQUIRED[self.rope_type]
    ]
    return f"{self.rope_type}({', '.join(facts)})"


def yarn_attention_factor(factor: float) -> float:
  """YaRN's factor on cos and sin where the checkpoint states none."""
  return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def inverse_frequencies(config: RopeConfig, head_dim: int) -> np.ndarray:
  """Angle per position of each pair of dimensions, float32 [head_dim / 2]."""
  exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
  plain = np.float32(1.0) / np.float32(config.theta) ** exponent
  match config.rope_type:
    case "default":
      return plain
    case "linear":
      return plain / np.float32(config.factor)
    case "llama3":
      return _llama3(plain, config)
    case "yarn":
      return _yarn(plain, config, head_dim)
  raise AssertionError(config.rope_type)


def _llama3(plain, config):
  """Llama 3.1: long wavelengths stretched, short kept, a ramp in between."""
  wavelength = 2 * np.pi / plain
  rotations = config.original_max_position / wavelength
  low, high = config.low_freq_factor, config.high_freq_factor
  kept = np.clip((rotations - low) / (high - low), 0, 1)
  ramp = (1 - kept) * plain / config.factor + kept * plain
  stretched = np.where(rotations < low, plain / config.factor, ramp)
  return np.where(rotations > high, plain, stretched).astype(np.float32)


def _yarn(plain, config, head_dim):
  """YaRN (Peng et al., 2023): a ramp over dimensions by rotations."""

  def dimension(rotations):
    turns = config.original_max_position / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(config.theta))

  low, high = dimension(config.beta_fast), dimension(config.beta_slow)
  if config.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, head_dim - 1)
  # The reference widens an empty ramp by a thousandth.
  high = high + 0.001 if low == high else high
  dims = np.arange(head_dim // 2, dtype=np.float32)
  stretched = np.clip((dims - low) / (high - low), 0, 1).astype(np.float32)
  return (
    plain / np.float32(config.factor) * stretched + plain * (1 - stretched)
  ).astype(np.float32)


def rope_table(
  config: RopeConfig, head_dim: int, positions: Int[Array, "*B T"]
) -> tuple[Float[Array, "*B T H/2"], Float[Array, "*B T H/2"]]:
  """cos and sin of position x inverse frequency, float32 [B, T, H / 2]."""
  frequencies = jnp.asarray(inverse_frequencies(config, head_dim))
  frequencies = frequencies.reshape((1,) * positions.ndim + (-1,))
  angles = positions[..., None].astype(jnp.float32) * frequencies
  scale = config.attention_factor
  return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def apply_rope(
  x: Float[Array, "B T N H"],
  table: tuple[Float[Array, "B T H/2"], Float[Array, "B T H/2"]],
) -> Float[Array, "B T N H"]:
  """Rotates each pair (x[i], x[i + H / 2]) by its angle (Hugging Face order).

  Computed in float32; the result has the dtype of x.
  """
  cos, sin = (part[..., None, :] for part in table)
  first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  rotated = (first * cos - second * sin, second * cos + first * sin)
  return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
