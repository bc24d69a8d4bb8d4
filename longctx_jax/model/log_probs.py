"""Target log-probs from hidden states and output head; [B, T, V] never exists.

Rows are taken `chunk` at a time and the vocabulary in blocks with an online
log-sum-exp, so that temporaries grow with chunk x block and not with T x V.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from longctx_jax.model import sharding

_VOCAB_BLOCK = 1024
_LOWEST = float(jnp.finfo(jnp.float32).min)


def soft_cap(logits: Float[Array, "*S"], cap: float) -> Float[Array, "*S"]:
  """cap * tanh(logits / cap), or the logits themselves where cap is 0."""
  return cap * jnp.tanh(logits / cap) if cap else logits


def target_log_probs(
  hidden: Float[Array, "B T D"],
  head: Float[Array, "V D"],
  targets: Int[Array, "B T"],
  *,
  softcap: float,
  chunk: int,
) -> Float[Array, "B T"]:
  """log softmax(hidden @ head.T)[target], in nats and float32.

  Products are accumulated, and everything after them computed, in float32,
  whatever the dtype of the inputs. Differentiable in `hidden` and `head`, with
  the same bound on memory.

  Args:
    hidden: final hidden states [B, T, D].
    head: output head, one row per vocabulary entry [V, D].
    targets: [B, T].
    softcap: cap of the final logits (Gemma 2); 0 is none.
    chunk: number of positions whose logits are held at a time.

  Returns:
    [B, T] float32, each at most 0 up to rounding.
  """
  batch, length, dim = hidden.shape
  # Once, and not for each chunk.
  head = sharding.gather(head, ("tensor", sharding.PARAMETER_AXES))
  chunk = min(chunk, length)
  padding = -length % chunk
  hidden = jnp.pad(hidden, ((0, 0), (0, padding), (0, 0)))
  targets = jnp.pad(targets, ((0, 0), (0, padding)))
  # [chunks, B, chunk, ...]: the batch stays an axis of its own, so that it can
  # be sharded.
  hidden = hidden.reshape(batch, -1, chunk, dim).swapaxes(0, 1)
  targets = targets.reshape(batch, -1, chunk).swapaxes(0, 1)

  @jax.checkpoint
  def of_chunk(
    rows: tuple[Float[Array, "B c D"], Int[Array, "B c"]],
  ) -> Float[Array, "B c"]:
    hidden, targets = rows
    target_logits = soft_cap(
      jnp.einsum(
        "btd,btd->bt",
        hidden,
        head[targets],
        preferred_element_type=jnp.float32,
      ),
      softcap,
    )
    return target_logits - _log_normaliser(hidden, head, softcap)

  log_probs = jax.lax.map(of_chunk, (hidden, targets))
  return log_probs.swapaxes(0, 1).reshape(batch, -1)[:, :length]


def _log_normaliser(
  hidden: Float[Array, "B T D"], head: Float[Array, "V D"], softcap: float
) -> Float[Array, "B T"]:
  """Log-sum-exp over the vocabulary of the logits, [B, T]."""
  # Each device of a sharded vocabulary takes blocks of its own rows.
  shards = sharding.axis_size("tensor")
  dim = head.shape[-1]
  head = head.reshape(shards, -1, dim)

  def of_block(
    carry: tuple[Float[Array, "B T"], Float[Array, "B T"]],
    block: Float[Array, "*s D"],
  ) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    highest, total = carry
    # One plain product: with the shards as an axis of it, the head would be
    # copied into another layout. The shards stay apart, as the outer part.
    block = block.reshape(-1, dim)
    logits = soft_cap(
      jnp.einsum(
        "btd,vd->btv", hidden, block, preferred_element_type=jnp.float32
      ),
      softcap,
    )
    new_highest = jnp.maximum(highest, logits.max(2))
    total = total * jnp.exp(highest - new_highest)
    total += jnp.exp(logits - new_highest[..., None]).sum(2)
    return new_highest, total

  num_blocks = head.shape[1] // _VOCAB_BLOCK
  split = num_blocks * _VOCAB_BLOCK
  shape = (num_blocks, _VOCAB_BLOCK, dim)
  blocks = head[:, :split].reshape(shards, *shape).swapaxes(0, 1)
  if shards == 1:
    # Axes that change places make a copy, even where one of them is 1.
    blocks = head[0, :split].reshape(shape)
  rows = hidden.shape[:2]
  carry, _ = jax.lax.scan(
    lambda carry, block: (jax.checkpoint(of_block)(carry, block), None),
    (jnp.full(rows, _LOWEST), jnp.zeros(rows)),
    blocks,
  )
  if split < head.shape[1]:
    carry = of_block(carry, head[:, split:])
  highest, total = carry
  return highest + jnp.log(total)
