"""Weighted likelihood losses. Each returns (sum, count); the caller divides.

The fused ones start from hidden states and take one sweep over the output head,
see `head_sweep`.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from longctx_jax.paper import contrast
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.training import head_sweep

WEIGHTS = ("none", "live", "stored")


@dataclasses.dataclass(frozen=True)
class LossConfig:
  """Which weights the targets carry.

  Attributes:
    weights: "none" (cross-entropy), "live" (LongCE: of the model's own two
      passes), or "stored" (the batch brings them).
    short_len: the paper's K, in ids.
    stride: the paper's d, in ids.
    gamma: cap on the weight (paper: 5).
    weight_floor: lower clip of live weights; 0 is none, as in the paper. At 1
      it keeps locally predictable targets from drifting.
    alpha: LSD threshold of the key tokens that are counted, nats.
    beta: LCL threshold of the same, nats.
    chunk: positions of each row whose logits are held at a time.
    window_batch: windows per device in the short pass; 0:
      `defaults.window_batch`.
  """

  weights: str = "live"
  short_len: int = 4096
  stride: int = 1024
  gamma: float = 5.0
  weight_floor: float = 0.0
  alpha: float = 2.0
  beta: float = -2.0
  chunk: int = 256
  window_batch: int = 0

  def __post_init__(self):
    if self.weights not in WEIGHTS:
      raise ValueError(
        f"weights={self.weights!r} is not one of {', '.join(WEIGHTS)}"
      )
    # Raise for what neither can be.
    _ = self.windows, self.thresholds
    if not (self.gamma > 0 and 0 <= self.weight_floor <= self.gamma):
      raise ValueError(
        f"gamma={self.gamma}, weight_floor={self.weight_floor}: weights need "
        "gamma > 0 and 0 <= weight_floor <= gamma (paper: 5 and 0)"
      )
    if self.weight_floor and self.weights != "live":
      raise ValueError(
        f"weight_floor={self.weight_floor} with weights={self.weights!r}: "
        "only live weights have a floor"
      )
    if self.chunk < 1:
      raise ValueError(f"chunk={self.chunk} must be at least 1")
    if self.window_batch < 0:
      raise ValueError(
        f"window_batch={self.window_batch} must be positive, or 0: automatic"
      )

  @property
  def windows(self) -> Windows:
    """Of the short contexts."""
    return Windows(self.short_len, self.stride)

  @property
  def thresholds(self) -> Thresholds:
    """Of the key tokens that are counted."""
    return Thresholds(self.alpha, self.beta)


def weighted_nll(
  target_log_probs: Float[Array, "*B T"],
  weights: Float[Array, "*B T"],
  loss_mask: Bool[Array, "*B T"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
  """Weighted negative log-likelihood: (-sum_t w_t log P_t, number of targets).

  The count is the number of loss-bearing targets, not the sum of the weights
  (paper, Eq. 8).

  Args:
    target_log_probs: log P(target) [B, T], nats.
    weights: token weights [B, T].
    loss_mask: True where the target bears loss [B, T]; elsewhere neither
      log-prob nor weight is read.

  Returns:
    (sum in nats, count), float32 scalars.
  """
  nll = -jnp.where(loss_mask, target_log_probs, 0.0).astype(jnp.float32)
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
  return weighted_nll(long_log_probs, jax.lax.stop_gradient(weights), loss_mask)


def fused_weighted_nll(
  hidden: Float[Array, "B T D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B T"],
  weights: Float[Array, "B T"],
  loss_mask: Array,
  *,
  gamma: float = math.inf,
  softcap: float = 0.0,
  chunk: int,
) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Array]]:
  """`weighted_nll` of the targets' log-probs, in one sweep over the head.

  Args:
    hidden: final hidden states [B, T, D].
    head: output head, one row per vocabulary entry [V, D].
    targets: [B, T].
    weights: token weights [B, T]; no gradient flows through them.
    loss_mask: nonzero where the target bears loss [B, T].
    gamma: weights that reach it are counted as clipped, and as key tokens.
    softcap: cap of the final logits (Gemma 2); 0 is none.
    chunk: positions of each row whose logits are held at a time.

  Returns:
    (sum in nats, count of loss-bearing targets, sums); `sums` are float32
    scalars without gradient, all over loss-bearing targets: `targets` (the
    count), `nll` (unweighted), `weighted_nll` (the sum again), `weight` (of
    the weights), `scored` (targets with a short log-prob: 0 here), `clipped`
    (targets whose weight is gamma), `key` (key tokens) and `key_nll`.
  """
  loss_mask = loss_mask.astype(bool)
  total, log_p, weights = head_sweep.sweep(
    _given, softcap, chunk, hidden, head, targets, loss_mask, (weights,)
  )
  nowhere = jnp.zeros_like(loss_mask)
  clipped = loss_mask & (weights >= jnp.float32(gamma))
  sums = _sums(total, log_p, weights, loss_mask, nowhere, clipped, clipped)
  return total, sums["targets"], sums


def fused_longce(
  hidden: Float[Array, "B T D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B T"],
  short_log_probs: Float[Array, "B T"],
  short_mask: Bool[Array, "B T"],
  loss_mask: Array,
  *,
  gamma: float,
  floor: float = 0.0,
  thresholds: Thresholds,
  softcap: float = 0.0,
  chunk: int,
) -> tuple[Float[Array, ""], Float[Array, ""], dict[str, Array]]:
  """`longce` of the targets' log-probs, in one sweep over the head.

  Args:
    hidden: final hidden states [B, T, D].
    head: output head, one row per vocabulary entry [V, D].
    targets: [B, T].
    short_log_probs: log P(target | truncated context) [B, T], nats; never read
      where `short_mask` is False.
    short_mask: True where the short pass scored the target [B, T].
    loss_mask: nonzero where the target bears loss [B, T].
    gamma: cap on the weight (paper: 5).
    floor: lower clip of the weight; the paper has none (0).
    thresholds: of what `sums` counts as key.
    softcap: cap of the final logits (Gemma 2); 0 is none.
    chunk: positions of each row whose logits are held at a time.

  Returns:
    (sum in nats, count of loss-bearing targets, sums); for `sums` see
    `fused_weighted_nll`: here `scored` are those that bear loss and have a
    short log-prob, and `key` the model's own key tokens among them.
  """
  loss_mask = loss_mask.astype(bool)
  weigh = functools.partial(contrast.longce_weights, gamma=gamma, floor=floor)
  total, log_p, weights = head_sweep.sweep(
    weigh,
    softcap,
    chunk,
    hidden,
    head,
    targets,
    loss_mask,
    (short_log_probs, short_mask),
  )
  scored = loss_mask & short_mask
  key = scored & contrast.key_token_mask(log_p, short_log_probs, thresholds)
  clipped = scored & (weights >= jnp.float32(gamma))
  sums = _sums(total, log_p, weights, loss_mask, scored, clipped, key)
  return total, sums["targets"], sums


def _given(
  log_p: Float[Array, "B T"], weights: Float[Array, "B T"]
) -> Float[Array, "B T"]:
  return weights.astype(jnp.float32)


def _count(mask: Bool[Array, "B T"]) -> Float[Array, ""]:
  return jnp.sum(mask, dtype=jnp.float32)


def _sums(
  total: Float[Array, ""],
  log_p: Float[Array, "B T"],
  weights: Float[Array, "B T"],
  loss_mask: Bool[Array, "B T"],
  scored: Bool[Array, "B T"],
  clipped: Bool[Array, "B T"],
  key: Bool[Array, "B T"],
) -> dict[str, Array]:
  return {
    "targets": _count(loss_mask),
    "nll": -jnp.sum(jnp.where(loss_mask, log_p, 0.0)),
    "weighted_nll": jax.lax.stop_gradient(total),
    "weight": jnp.sum(weights),
    "scored": _count(scored),
    "clipped": _count(clipped),
    "key": _count(key),
    "key_nll": -jnp.sum(jnp.where(key, log_p, 0.0)),
  }
