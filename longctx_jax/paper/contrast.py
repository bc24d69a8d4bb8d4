"""The long-short contrast: LSD, key tokens, LongCE weights. All in nats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


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
  long_log_probs = jnp.asarray(long_log_probs, jnp.float32)
  return long_log_probs - jnp.asarray(short_log_probs, jnp.float32)


def key_token_mask(
  long_log_probs: Float[Array, "*B T"],
  short_log_probs: Float[Array, "*B T"],
  *,
  alpha: float,
  beta: float,
) -> Bool[Array, "*B T"]:
  """Marks key tokens: LSD > alpha and LCL > beta, both strict (paper, Eq. 5).

  Args:
    long_log_probs: LCL = log P(target | full context) [B, T], nats.
    short_log_probs: log P(target | truncated context) [B, T], nats; NaN where
      not scored, and such a target is never key.
    alpha: threshold on LSD, nats (paper: 2).
    beta: threshold on LCL, nats (paper: -2).

  Returns:
    bool [B, T].
  """
  return (lsd(long_log_probs, short_log_probs) > alpha) & (
    jnp.asarray(long_log_probs, jnp.float32) > beta
  )


def longce_weights(
  long_log_probs: Float[Array, "*B T"],
  short_log_probs: Float[Array, "*B T"],
  short_mask: Bool[Array, "*B T"],
  *,
  gamma: float,
  floor: float = 0.0,
) -> Float[Array, "*B T"]:
  """LongCE token weights, outside the gradient (paper, Eq. 7).

  w_i = max(floor, min(exp(LSD_i), gamma)), and 1 where no short context was
  scored. The minimum is taken in log space: a difference of 800 nats gives
  gamma, not inf.

  Args:
    long_log_probs: [B, T], nats.
    short_log_probs: [B, T], nats; never read where `short_mask` is False.
    short_mask: True where the short pass scored the target [B, T].
    gamma: cap (paper: 5).
    floor: lower clip; the paper has none (0).

  Returns:
    float32 [B, T] without gradient.

  Raises:
    ValueError: unless 0 <= floor <= gamma and gamma > 0.
  """
  if not (gamma > 0 and 0 <= floor <= gamma):
    raise ValueError(
      f"gamma={gamma}, floor={floor}: LongCE weights need gamma > 0 and "
      "0 <= floor <= gamma (paper: gamma 5, floor 0)"
    )
  # Masked on the input side, so that a NaN can reach neither value nor
  # gradient.
  difference = jnp.where(
    short_mask,
    lsd(long_log_probs, jnp.where(short_mask, short_log_probs, 0.0)),
    0.0,
  )
  capped = jnp.exp(jnp.minimum(difference, jnp.log(gamma)))
  # exp(log(gamma)) may round past gamma.
  weights = jnp.where(short_mask, jnp.clip(capped, floor, gamma), 1.0)
  return jax.lax.stop_gradient(weights)
