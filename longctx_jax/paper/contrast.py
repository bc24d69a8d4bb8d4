"""The long-short contrast: LSD, key tokens, LongCE weights. All in nats.

Written once: what comes in as NumPy stays NumPy, what comes in as JAX stays
JAX, traced or not.
"""

from __future__ import annotations

import dataclasses
import math
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

# Of whichever library: it has `__array_namespace__`.
Array = Any


@dataclasses.dataclass(frozen=True)
class Thresholds:
  """When a target is key: LSD > alpha and LCL > beta (paper, Eq. 5).

  Attributes:
    alpha: of long - short, nats (paper: 2).
    beta: of long, nats (paper: -2).
  """

  alpha: float = 2.0
  beta: float = -2.0

  def __post_init__(self):
    for name, value in (("alpha", self.alpha), ("beta", self.beta)):
      if not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{name}={value!r} is no number: thresholds are nats")

  def moved(self, margin: float) -> Thresholds:
    """Both thresholds higher by `margin` nats: fewer tokens are key."""
    return Thresholds(self.alpha + margin, self.beta + margin)


def lsd(
  long_log_probs: Float[Array, "*B T"],
  short_log_probs: Float[Array, "*B T"],
) -> Float[Array, "*B T"]:
  """Long-short difference, in nats (paper, Eq. 3).

  LSD(x_i) = log P(x_i | full context) - log P(x_i | last K tokens)

  Args:
    long_log_probs: log P(target | full context) [B, T].
    short_log_probs: log P(target | truncated context) [B, T].

  Returns:
    float32 [B, T]; NaN where the short log-prob is NaN (not scored).
  """
  # An impossible target (-inf) under both contexts is no warning.
  with np.errstate(invalid="ignore"):
    return _float32(long_log_probs) - _float32(short_log_probs)


def key_token_mask(
  long_log_probs: Float[Array, "*B T"],
  short_log_probs: Float[Array, "*B T"],
  thresholds: Thresholds,
) -> Bool[Array, "*B T"]:
  """Marks key tokens: LSD > alpha and LCL > beta, both strict (paper, Eq. 5).

  With the two exchanged it marks mirror tokens: those that would be key if the
  short context were the long one, the noise floor of the count.

  Args:
    long_log_probs: LCL = log P(target | full context) [B, T], nats.
    short_log_probs: log P(target | truncated context) [B, T], nats; NaN where
      not scored, and such a target is never key.
    thresholds: compared in float32.

  Returns:
    bool [B, T].

  >>> long, short = np.array([-1.0, -1.0, -3.0]), np.array([-4.0, -3.0, -9.0])
  >>> key_token_mask(long, short, Thresholds(alpha=2.0, beta=-2.0)).tolist()
  [True, False, False]
  """
  alpha, beta = np.float32(thresholds.alpha), np.float32(thresholds.beta)
  return (lsd(long_log_probs, short_log_probs) > alpha) & (
    _float32(long_log_probs) > beta
  )


def longce_weights(
  long_log_probs: Float[Array, "*B T"],
  short_log_probs: Float[Array, "*B T"],
  short_mask: Bool[Array, "*B T"],
  *,
  gamma: float,
  floor: float = 0.0,
) -> Float[Array, "*B T"]:
  """LongCE token weights (paper, Eq. 7).

  w_i = max(floor, min(exp(LSD_i), gamma)), and 1 where no short context was
  scored. The minimum is taken in log space: a difference of 800 nats gives
  gamma, not inf. The paper takes them outside the gradient; who trains on them
  stops it.

  Args:
    long_log_probs: [B, T], nats.
    short_log_probs: [B, T], nats; never read where `short_mask` is False.
    short_mask: True where the short pass scored the target [B, T].
    gamma: cap (paper: 5).
    floor: lower clip; the paper has none (0).

  Returns:
    float32 [B, T].

  Raises:
    ValueError: unless 0 <= floor <= gamma and gamma > 0.

  >>> long, short = np.array([-1.0, -0.5]), np.array([-1.0, -9.0])
  >>> longce_weights(long, short, ~np.isnan(short), gamma=5.0).tolist()
  [1.0, 5.0]
  """
  if not (gamma > 0 and 0 <= floor <= gamma):
    raise ValueError(
      f"gamma={gamma}, floor={floor}: LongCE weights need gamma > 0 and "
      "0 <= floor <= gamma (paper: gamma 5, floor 0)"
    )
  xp = _namespace(long_log_probs)
  # Masked on the input side, so that a NaN can reach neither value nor
  # gradient.
  difference = xp.where(
    short_mask,
    lsd(long_log_probs, xp.where(short_mask, short_log_probs, 0.0)),
    0.0,
  )
  capped = xp.exp(xp.minimum(difference, xp.log(gamma)))
  # exp(log(gamma)) may round past gamma.
  return _float32(xp.where(short_mask, xp.clip(capped, floor, gamma), 1.0))


def _namespace(array: Array) -> ModuleType:
  return array.__array_namespace__()


def _float32(array: Array) -> Array:
  xp = _namespace(array)
  return xp.asarray(array, dtype=xp.float32)
