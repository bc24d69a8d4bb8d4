"""One sweep over the output head: log-probs, weights and gradients at once.

The weight of a target depends on its own log-prob alone, so three products with
the head give all of them, and [B, T, V] never exists. On a CPU the vocabulary
is taken in blocks: logits and gradients of a block are still in its cache where
they are used next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from longctx_jax.model import log_probs, sharding

_VOCAB_BLOCK = 1024
_LOWEST = float(jnp.finfo(jnp.float32).min)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def sweep(
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

  Args:
    weigh: (log p [B, T], *columns) -> weights [B, T].
    softcap: cap of the final logits (Gemma 2); 0 is none.
    chunk: positions of each row whose logits are held at a time.
    hidden: final hidden states [B, T, D].
    head: output head, one row per vocabulary entry [V, D].
    targets: [B, T].
    loss_mask: where a target bears loss [B, T].
    columns: further arguments of `weigh`, each [B, T].
  """
  log_p = log_probs.target_log_probs(
    hidden, head, targets, softcap=softcap, chunk=chunk
  )
  weights = jnp.where(loss_mask, weigh(log_p, *columns), 0.0)
  return -jnp.sum(jnp.where(loss_mask, weights * log_p, 0.0)), log_p, weights


def _forward(
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
    d_head: Float[Array, "S s v D"], xs: tuple[Any, ...]
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
  d_head = sharding.constrain(
    d_head.reshape(head.shape), "tensor", sharding.PARAMETER_AXES
  )
  total = -jnp.sum(jnp.where(loss_mask, weights * log_p, 0.0))
  # An empty array carries the head's dtype.
  saved = d_hidden, d_head, jnp.zeros(0, head.dtype)
  return (total, log_p, weights), saved


def _backward(
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


sweep.defvjp(_forward, _backward)
