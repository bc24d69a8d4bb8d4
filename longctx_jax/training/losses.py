"""Weighted likelihood losses. Each returns (sum, count); the caller divides.

The fused ones start from hidden states. The weight of a target depends on its
own log-prob alone, so one sweep over the output head gives log-probs, weights
and gradients: three products with the head, and [B, T, V] never exists. On a
CPU the vocabulary is taken in blocks: logits and gradients of a block are still
in its cache where they are used next.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from longctx_jax.model import log_probs, sharding
from longctx_jax.paper import contrast
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows

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


_VOCAB_BLOCK = 1024
_LOWEST = float(jnp.finfo(jnp.float32).min)


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
  total, log_p, weights = _sweep(
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
  total, log_p, weights = _sweep(
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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _sweep(
  weigh: Callable[..., Array],
  softcap: float,
  chunk: int,
  hidden: Float[Array, "B T D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B T"],
  loss_mask: Bool[Array, "B T"],
  columns: tuple[Array, ...],
) -> tuple[Array, Array, Array]:
  """(sum_t w_t * -log p_t, log p [B, T], w [B, T]), w = weigh(log p, *columns).

  Weights are 0 where there is no loss. The gradient is that of the sum alone,
  at fixed weights.
  """
  log_p = log_probs.target_log_probs(
    hidden, head, targets, softcap=softcap, chunk=chunk
  )
  weights = jnp.where(loss_mask, weigh(log_p, *columns), 0.0)
  return -jnp.sum(jnp.where(loss_mask, weights * log_p, 0.0)), log_p, weights


def _sweep_forward(
  weigh: Callable[..., Array],
  softcap: float,
  chunk: int,
  hidden: Float[Array, "B T D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B T"],
  loss_mask: Bool[Array, "B T"],
  columns: tuple[Array, ...],
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
  """The sweep with, as what the backward pass needs, the gradients."""
  batch, length, dim = hidden.shape
  chunk = min(chunk, length)
  # Each shard of the batch sums the head's gradient by itself: one reduction
  # at the end in place of one per chunk. Likewise the head is gathered once.
  ways = sharding.batch_axis_size()
  shards = ways if batch % ways == 0 else 1
  rows = sharding.BATCH_AXES if shards > 1 else None
  gathered = sharding.constrain(head, "tensor", None)
  # Each device of a sharded vocabulary takes blocks of its own rows.
  gathered = gathered.reshape(sharding.axis_size("tensor"), -1, dim)
  vocabulary = jnp.arange(head.shape[0]).reshape(gathered.shape[:2])
  own = gathered.shape[1]
  # Elsewhere large products are the fast ones.
  block = min(_VOCAB_BLOCK, own) if sharding.on_cpu() else own

  def place(i: Int[Array, ""]) -> Int[Array, ""]:
    # The last block ends with the rows, and begins among those of the one
    # before: what it has seen again is masked.
    return jnp.minimum(i * block, own - block)

  def take(x: Array, i: Int[Array, ""]) -> Array:
    """Block i of every shard, one after the other: [shards x block, ...]."""
    x = jax.lax.dynamic_slice_in_dim(x, place(i), block, axis=1)
    return x.reshape(-1, *x.shape[2:])

  def seen(ids: Int[Array, " v"], i: Int[Array, ""]) -> Bool[Array, "1 1 v"]:
    return (ids % own < i * block).reshape(1, 1, -1)

  def split(x: Array) -> Array:
    """[B, T, ...] -> [chunks, B, chunk, ...]."""
    x = jnp.pad(x, ((0, 0), (0, -length % chunk), *((0, 0),) * (x.ndim - 2)))
    return x.reshape(batch, -1, chunk, *x.shape[2:]).swapaxes(0, 1)

  def join(x: Array) -> Array:
    return x.swapaxes(0, 1).reshape(batch, -1, *x.shape[3:])[:, :length]

  def of_chunk(
    d_head: Float[Array, "S Vs D"], xs: tuple[Any, ...]
  ) -> tuple[Array, tuple[Array, Array, Array]]:
    hidden, targets, loss_mask, columns = xs

    def of_block(
      carry: tuple[Array, Array, Array], i: Int[Array, ""]
    ) -> tuple[tuple[Array, Array, Array], Float[Array, "B c v"]]:
      highest, total, target_logits = carry
      ids = take(vocabulary, i)
      logits = log_probs.soft_cap(
        jnp.einsum(
          "btd,vd->btv",
          hidden,
          take(gathered, i),
          preferred_element_type=jnp.float32,
        ),
        softcap,
      )
      if own % block:
        logits = jnp.where(seen(ids, i), _LOWEST, logits)
      new_highest = jnp.maximum(highest, logits.max(-1))
      total = total * jnp.exp(highest - new_highest)
      total += jnp.exp(logits - new_highest[..., None]).sum(-1)
      is_target = ids.reshape(1, 1, -1) == targets[..., None]
      if own % block:
        is_target &= ~seen(ids, i)
      target_logits += jnp.where(is_target, logits, 0.0).sum(-1)
      return (new_highest, total, target_logits), logits

    zeros = jnp.zeros(targets.shape)
    (highest, total, target_logits), kept = jax.lax.scan(
      of_block, (jnp.full_like(zeros, _LOWEST), zeros, zeros), blocks
    )
    normaliser = highest + jnp.log(total)
    log_p = target_logits - normaliser
    weights = jnp.where(loss_mask, weigh(log_p, *columns), 0.0)

    def gradients_of_block(
      carry: tuple[Array, Array], xs: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
      (d_hidden, d_head), (i, logits) = carry, xs
      ids = take(vocabulary, i)
      is_target = ids.reshape(1, 1, -1) == targets[..., None]
      d_logits = jnp.exp(logits - normaliser[..., None]) - is_target
      d_logits *= weights[..., None]
      if softcap:
        d_logits *= 1.0 - (logits / softcap) ** 2
      if own % block:
        d_logits = jnp.where(seen(ids, i), 0.0, d_logits)
      d_logits = d_logits.astype(hidden.dtype)
      d_hidden += jnp.einsum(
        "btv,vd->btd",
        d_logits,
        take(gathered, i),
        preferred_element_type=jnp.float32,
      )
      d_block = jnp.einsum(
        "sbtv,sbtd->svd",
        d_logits.reshape(shards, -1, *d_logits.shape[1:]),
        hidden.reshape(shards, -1, *hidden.shape[1:]),
        preferred_element_type=jnp.float32,
      )
      # One block is read and written where it lies: the sum of the whole head
      # is touched once per chunk.
      old = jax.lax.dynamic_slice_in_dim(d_head, place(i), block, axis=2)
      d_head = jax.lax.dynamic_update_slice_in_dim(
        d_head, old + d_block.reshape(old.shape), place(i), axis=2
      )
      d_head = sharding.constrain(d_head, rows, "tensor", None, None)
      return (d_hidden, d_head), None

    (d_hidden, d_head), _ = jax.lax.scan(
      gradients_of_block,
      (jnp.zeros(hidden.shape, jnp.float32), d_head),
      (blocks, kept),
    )
    return d_head, (log_p, weights, d_hidden.astype(hidden.dtype))

  blocks = jnp.arange(-(-own // block))
  start = jnp.zeros((shards, *gathered.shape), jnp.float32)
  d_head, outs = jax.lax.scan(
    of_chunk,
    sharding.constrain(start, rows, "tensor", None, None),
    jax.tree.map(split, (hidden, targets, loss_mask, columns)),
  )
  log_p, weights, d_hidden = jax.tree.map(join, outs)
  d_head = sharding.constrain(d_head.sum(0), "tensor", None, None)
  d_head = sharding.constrain(d_head.reshape(head.shape), "tensor", "fsdp")
  total = -jnp.sum(jnp.where(loss_mask, weights * log_p, 0.0))
  # An empty array carries the head's dtype.
  saved = d_hidden, d_head, jnp.zeros(0, head.dtype)
  return (total, log_p, weights), saved


def _sweep_backward(
  weigh: Callable[..., Array],
  softcap: float,
  chunk: int,
  saved: tuple[Array, Array, Array],
  cotangents: tuple[Array, Array, Array],
) -> tuple[Array | None, ...]:
  d_hidden, d_head, like_head = saved
  d_total = cotangents[0]
  return (
    (d_hidden * d_total).astype(d_hidden.dtype),
    (d_head * d_total).astype(like_head.dtype),
    None,
    None,
    None,
  )


_sweep.defvjp(_sweep_forward, _sweep_backward)
