"""Weighted likelihood losses. Each returns (sum, count); the caller divides."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from longctx_jax import contrast


def weighted_nll(
  log_probs: Float[Array, "*B T"],
  weights: Float[Array, "*B T"],
  loss_mask: Bool[Array, "*B T"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Weighted negative log-likelihood: (-sum_t w_t log P_t, number of targets).

  The count is the number of loss-bearing targets, not the sum of the weights
  (paper, Eq. 8).

  Args:
    log_probs: log P(target) [B, T], nats.
    weights: token weights [B, T].
    loss_mask: True where the target bears loss [B, T]; elsewhere neither
      log-prob nor weight is read.

  Returns:
    (sum in nats, count), float32 scalars.
  """
  nll = -jnp.where(loss_mask, log_probs, 0.0).astype(jnp.float32)
  weights = jnp.where(loss_mask, weights, 0.0).astype(jnp.float32)
  return jnp.sum(weights * nll), jnp.sum(loss_mask, dtype=jnp.float32)


def longce(
  long_log_probs: Float[Array, "*B T"],
  short_log_probs: Float[Array, "*B T"],
  loss_mask: Bool[Array, "*B T"],
  short_mask: Bool[Array, "*B T"],
  *,
  gamma: float,
  floor: float = 0.0,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """LongCE: cross-entropy weighted by min(exp(LSD), gamma) (paper, Eq. 8).

  Args:
    long_log_probs: log P(target | full context) [B, T], nats; the gradient
      flows through these as log-probs and not as weights.
    short_log_probs: log P(target | truncated context) [B, T], nats.
    loss_mask: True where the target bears loss [B, T].
    short_mask: True where the short pass scored the target [B, T].
    gamma: cap on the weight (paper: 5).
    floor: lower clip of the weight; the paper has none (0).

  Returns:
    (sum in nats, count of loss-bearing targets), float32 scalars.
  """
  weights = contrast.longce_weights(
    long_log_probs, short_log_probs, short_mask, gamma=gamma, floor=floor
  )
  return weighted_nll(long_log_probs, weights, loss_mask)
