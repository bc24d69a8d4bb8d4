"""What a query sees and how its scores are made: one value for all backends."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from longctx_jax.model.config import ModelConfig


@dataclasses.dataclass(frozen=True)
class AttentionSpec:
  """Causal attention of one kind of layer; static, so that it can be hashed.

  Query row t stands at key position p = q_offset + t and sees key s iff
  s <= p and, where there is a window, s > p - window or s < sink_len.

  Attributes:
    scale: factor on the scores, as a rule head_dim ** -0.5.
    q_offset: key position of the first query row.
    window: last positions visible, the present one included; 0 is all.
    sink_len: first positions that stay visible beside a window.
    softcap: cap on the scores (Gemma 2); 0 is none.
  """

  scale: float
  q_offset: int = 0
  window: int = 0
  sink_len: int = 0
  softcap: float = 0.0

  def __post_init__(self):
    for name in ("q_offset", "window", "sink_len", "softcap"):
      if not getattr(self, name) >= 0:
        raise ValueError(f"{name}={getattr(self, name)} must be at least 0")
    if not self.scale > 0:
      raise ValueError(f"scale={self.scale} must be positive")

  @classmethod
  def of_layer(
    cls, config: ModelConfig, *, window: int, q_offset: int = 0
  ) -> AttentionSpec:
    """That of a model's layers with this window, from row `q_offset` on."""
    return cls(
      scale=config.query_scale or config.head_dim**-0.5,
      q_offset=q_offset,
      window=window,
      sink_len=config.sink_len,
      softcap=config.attention_softcap,
    )

  def sees(
    self, rows: np.ndarray | jax.Array, keys: np.ndarray | jax.Array
  ) -> np.ndarray | jax.Array:
    """Whether row t sees key s: bool, of the shape that both broadcast to.

    Args:
      rows: query rows t, counted from 0.
      keys: key positions s.
    """
    rows = rows + self.q_offset
    visible = keys <= rows
    if self.window:
      near = rows - keys < self.window
      visible &= near | (keys < self.sink_len) if self.sink_len else near
    return visible
