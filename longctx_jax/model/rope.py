"""Rotary position embeddings: one table of inverse frequencies per type.

Everything is computed in float32 (or finer) whatever the model's dtype: in
bfloat16, position 257 equals position 256.
"""

from __future__ import annotations

import dataclasses
import math
import zlib

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

# Fields that each type needs beside `theta`; a missing one is an error.
_REQUIRED = {
  "default": (),
  "linear": ("factor",),
  "dynamic": ("factor", "original_max_position"),
  "llama3": (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position",
  ),
  "yarn": ("factor", "original_max_position"),
  "longrope": ("original_max_position", "short_factor", "long_factor"),
  "eabf": ("original_max_position",),
}


ROPE_TYPES = tuple(_REQUIRED)


_LISTS = ("short_factor", "long_factor")
# Named in a description only where they are not these.
_USUAL = {"beta_fast": 32.0, "beta_slow": 1.0, "rotary_share": 1.0}


@dataclasses.dataclass(frozen=True)
class RopeConfig:
  """Facts that determine the rotary table, all from the checkpoint.

  A number that the type does not use is 0. "Adjusted base frequency" (ABF) is
  the default type with another theta.

  Attributes:
    rope_type: one of `ROPE_TYPES`.
    theta: base of the frequencies.
    factor: by how much the context is stretched.
    original_max_position: length of the original training context.
    low_freq_factor: llama3: wavelengths above original / low are stretched.
    high_freq_factor: llama3: wavelengths below original / high are kept.
    beta_fast: yarn: rotations from which a dimension is kept.
    beta_slow: yarn: rotations below which a dimension is stretched.
    attention_factor: yarn, longrope: factor on cos and sin.
    truncate: yarn: round the ramp's ends to whole dimensions.
    short_factor: longrope: stretch of each pair of dimensions, in passes of at
      most `original_max_position` positions.
    long_factor: longrope: the same, in longer passes.
    rotary_share: share of each head's dimensions, the first ones, that rotate.
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
  short_factor: tuple[float, ...] = ()
  long_factor: tuple[float, ...] = ()
  rotary_share: float = 1.0

  def __post_init__(self):
    if self.rope_type not in _REQUIRED:
      raise ValueError(
        f"rope_type={self.rope_type!r} is not known; known: "
        f"{', '.join(ROPE_TYPES)}"
      )
    if not self.theta > 0:
      raise ValueError(f"rope_theta={self.theta} must be positive")
    for name in _REQUIRED[self.rope_type]:
      value = getattr(self, name)
      if not (min(value, default=0) if name in _LISTS else value) > 0:
        raise ValueError(
          f"rope_type {self.rope_type!r} needs {name} > 0, not {value}"
        )
    if not 0 < self.rotary_share <= 1:
      raise ValueError(
        f"partial_rotary_factor={self.rotary_share} is not in (0, 1]"
      )

  @property
  def depends_on_length(self) -> bool:
    """Whether passes of different lengths use different tables."""
    return self.rope_type in ("dynamic", "longrope")

  def context(self, stated: int) -> int:
    """Longest context of a model with this table.

    yarn: at least original x factor, since some configs state the length
    before the stretch and some the one after it. dynamic: the stated length,
    from which the table grows, x factor. Else the stated one.

    Args:
      stated: `max_position_embeddings` of the config.json.
    """
    stretched = int(self.original_max_position * self.factor)
    if self.rope_type == "dynamic":
      return stretched
    return max(stated, stretched) if self.rope_type == "yarn" else stated

  def rotary_dim(self, head_dim: int) -> int:
    """Number of dimensions of a head that rotate."""
    return int(head_dim * self.rotary_share)

  def describe(self, length: int = 0) -> str:
    """One line for results and manifests.

    Args:
      length: names the table that a pass of this many positions uses; 0
        describes the type.
    """
    facts = [f"theta {self.theta:g}"]
    for name in _REQUIRED[self.rope_type]:
      value = getattr(self, name)
      facts.append(f"{name} {_fingerprint(value)}")
    facts += [
      f"{name} {getattr(self, name):g}"
      for name, usual in _USUAL.items()
      if getattr(self, name) != usual
    ]
    if self.rope_type == "yarn" and not self.truncate:
      facts.append("truncate off")
    usual = self.rope_type == "yarn" and yarn_attention_factor(self.factor)
    if self.attention_factor != (usual or 1.0):
      facts.append(f"attention_factor {self.attention_factor:g}")
    line = f"{self.rope_type}({', '.join(facts)})"
    if not length or not self.depends_on_length:
      return line
    table = name_table(self.rope_type, self.original_max_position, length)
    return f"{line}, {table}"


def name_table(rope_type: str, limit: int, length: int) -> str:
  """Which table a pass of this length uses, for types where it matters.

  Args:
    rope_type: "longrope" or "dynamic".
    limit: `RopeConfig.original_max_position`.
    length: positions of the pass.
  """
  if rope_type == "longrope":
    return "long table" if length > limit else "short table"
  return f"table of length {max(length, limit)}"


def _fingerprint(value: float | tuple[float, ...]) -> str:
  """A number as it is, a list by its checksum."""
  if isinstance(value, tuple):
    return f"{zlib.crc32(np.asarray(value, np.float64).tobytes()):08x}"
  return f"{value:g}"


def yarn_attention_factor(
  factor: float, *, mscale: float = 0.0, mscale_all_dim: float = 0.0
) -> float:
  """YaRN's factor on cos and sin where the checkpoint states none.

  0.1 ln(factor) + 1 (Peng et al., 2023), or the ratio of two such with the
  logarithms weighted, where both weights are given (DeepSeek).
  """

  def of(weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

  if mscale and mscale_all_dim:
    return of(mscale) / of(mscale_all_dim)
  return of(1.0)


def longrope_attention_factor(
  factor: float, original_max_position: int
) -> float:
  """LongRoPE's factor on cos and sin where the checkpoint states none."""
  if factor <= 1:
    return 1.0
  return math.sqrt(1 + math.log(factor) / math.log(original_max_position))


def inverse_frequencies(
  config: RopeConfig, head_dim: int, length: int = 0
) -> np.ndarray:
  """Angle per position of each rotating pair, float32 [rotary_dim / 2].

  Args:
    config: facts of the table.
    head_dim: size of a head.
    length: positions of the pass, for types whose table depends on it.
  """
  dim = config.rotary_dim(head_dim)
  exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
  plain = np.float32(1.0) / np.float32(config.theta) ** exponent
  match config.rope_type:
    case "default" | "eabf":
      return plain
    case "linear":
      return plain / np.float32(config.factor)
    case "dynamic":
      return _dynamic(config, exponent, np.full((1,), length, np.int32))[0]
    case "llama3":
      return _llama3(plain, config)
    case "yarn":
      return _yarn(plain, config, dim)
    case "longrope":
      is_long = length > config.original_max_position
      stretch = config.long_factor if is_long else config.short_factor
      return plain / np.asarray(stretch, np.float32)
  raise AssertionError(config.rope_type)


def _dynamic(
  config: RopeConfig,
  exponent: Float[np.ndarray, " P"],
  lengths: Int[np.ndarray, " N"] | Int[Array, " N"],
) -> Float[np.ndarray, "N P"] | Float[Array, "N P"]:
  """NTK scaling that grows with the pass; lengths [N] -> [N, rotary / 2]."""
  original, dim = config.original_max_position, 2 * exponent.size
  stretched = config.factor * lengths.clip(original).astype(np.float32)
  growth = stretched / original - (config.factor - 1)
  base = config.theta * growth ** (dim / (dim - 2))
  return 1.0 / base[:, None] ** exponent[None]


def _llama3(
  plain: Float[np.ndarray, " P"], config: RopeConfig
) -> Float[np.ndarray, " P"]:
  """Llama 3.1: long wavelengths stretched, short kept, a ramp in between."""
  wavelength = 2 * np.pi / plain
  rotations = config.original_max_position / wavelength
  low, high = config.low_freq_factor, config.high_freq_factor
  kept = np.clip((rotations - low) / (high - low), 0, 1)
  ramp = (1 - kept) * plain / config.factor + kept * plain
  stretched = np.where(rotations < low, plain / config.factor, ramp)
  return np.where(rotations > high, plain, stretched).astype(np.float32)


def _yarn(
  plain: Float[np.ndarray, " P"], config: RopeConfig, dim: int
) -> Float[np.ndarray, " P"]:
  """YaRN (Peng et al., 2023): a ramp over dimensions by rotations."""

  def dimension(rotations: float) -> float:
    turns = config.original_max_position / (rotations * 2 * math.pi)
    return dim * math.log(turns) / (2 * math.log(config.theta))

  low, high = dimension(config.beta_fast), dimension(config.beta_slow)
  if config.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, dim - 1)
  # The reference widens an empty ramp by a thousandth.
  high = high + 0.001 if low == high else high
  dims = np.arange(dim // 2, dtype=np.float32)
  stretched = np.clip((dims - low) / (high - low), 0, 1).astype(np.float32)
  return (
    plain / np.float32(config.factor) * stretched + plain * (1 - stretched)
  ).astype(np.float32)


def rope_table(
  config: RopeConfig,
  head_dim: int,
  positions: Int[Array, "B T"],
  lengths: Int[Array, "*N"] | None = None,
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
  """cos and sin of position x inverse frequency, float32 [B, T, rotary / 2].

  Args:
    config: facts of the table.
    head_dim: size of a head.
    positions: [B, T].
    lengths: positions of each row's whole pass [B], or of each position's
      document [B, T]; needed where the table depends on them.
  """
  if config.depends_on_length:
    frequencies = _frequencies_by_length(config, head_dim, lengths)
    if lengths.ndim < positions.ndim:
      frequencies = frequencies[:, None]
  else:
    frequencies = jnp.asarray(inverse_frequencies(config, head_dim))
    frequencies = frequencies.reshape((1,) * positions.ndim + (-1,))
  angles = positions[..., None].astype(jnp.float32) * frequencies
  scale = config.attention_factor
  return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def _frequencies_by_length(
  config: RopeConfig, head_dim: int, lengths: Int[Array, "*N"]
) -> Float[Array, "*N P"]:
  """float32 [*lengths.shape, rotary / 2]."""
  flat = lengths.reshape(-1)
  if config.rope_type == "dynamic":
    dim = config.rotary_dim(head_dim)
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    found = _dynamic(config, exponent, flat)
  else:
    last = config.original_max_position
    short, long = (
      inverse_frequencies(config, head_dim, length)[None]
      for length in (last, last + 1)
    )
    found = jnp.where(flat[:, None] > last, long, short)
  return found.reshape(*lengths.shape, -1)


def query_gain(
  config: RopeConfig, positions: Int[Array, "B T"]
) -> Float[Array, "B T"] | None:
  """EABF's factor on queries, max(1, ln(position + 1) / ln(original length)).

  It keeps the entropy of attention from growing with the context. None for
  the other types, which have none.
  """
  if config.rope_type != "eabf":
    return None
  entropy = jnp.log(positions.astype(jnp.float32) + 1)
  return jnp.maximum(1.0, entropy / math.log(config.original_max_position))


def apply_rope(
  x: Float[Array, "B T N H"],
  table: tuple[Float[Array, "B T half"], Float[Array, "B T half"]],
  gain: Float[Array, "B T"] | None = None,
) -> Float[Array, "B T N H"]:
  """Rotates each pair (x[i], x[i + R / 2]) by its angle (Hugging Face order).

  The first R dimensions rotate, the others pass. Computed in float32; the
  result has the dtype of x.

  Args:
    x: heads of queries or keys.
    table: cos and sin.
    gain: factor on the result; see `query_gain`.
  """
  cos, sin = (part[..., None, :] for part in table)
  half = cos.shape[-1]
  wide = x.astype(jnp.float32)
  first, second = wide[..., :half], wide[..., half : 2 * half]
  parts = [first * cos - second * sin, second * cos + first * sin]
  if 2 * half < x.shape[-1]:
    parts.append(wide[..., 2 * half :])
  rotated = jnp.concatenate(parts, axis=-1)
  if gain is not None:
    rotated *= gain[..., None, None]
  return rotated.astype(x.dtype)
