"""One entry point to attention, and plain attention as its oracle."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from longctx_jax.model import blockwise

BACKENDS = ("plain", "blockwise")


def attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  *,
  q_offset: int = 0,
  window: int = 0,
  sink_len: int = 0,
  segment_ids: Int[Array, "B S"] | None = None,
  softcap: float = 0.0,
  scale: float,
  backend: str = "blockwise",
) -> Float[Array, "B T N H"]:
  """Causal grouped-query attention.

  Query row t stands at key position p = q_offset + t and sees key s iff
  s <= p, s > p - window or s < sink_len (where there is a window), and both
  are of one segment. Softmax and its sums are in float32.

  Args:
    q: queries [B, T, N, H]; T may be less than S.
    k: keys [B, S, K, H], N a multiple of K.
    v: values [B, S, K, H].
    q_offset: key position of the first query row.
    window: last positions visible, the present one included; 0 is all.
    sink_len: first positions that stay visible beside a window.
    segment_ids: document of each key position, at least 0 [B, S].
    softcap: cap on the scores (Gemma 2); 0 is none.
    scale: factor on the scores, as a rule H ** -0.5.
    backend: one of `BACKENDS`.

  Returns:
    [B, T, N, H] in the dtype of q.

  Raises:
    ValueError: for an unknown backend.
  """
  arguments = dict(
    q_offset=q_offset,
    window=window,
    sink_len=sink_len,
    segment_ids=segment_ids,
    softcap=softcap,
    scale=scale,
  )
  if backend == "blockwise":
    return blockwise.blockwise_attention(q, k, v, **arguments)
  if backend == "plain":
    return plain_attention(q, k, v, **arguments)
  raise ValueError(
    f"attention backend {backend!r} is not one of {', '.join(BACKENDS)}"
  )


def plain_attention(
  q, k, v, *, q_offset, window, sink_len, segment_ids, softcap, scale
):
  """The definition, with all scores in memory: the oracle of the others."""
  batch, num_q, num_heads, dim = q.shape
  num_k, kv_heads = k.shape[1:3]
  grouped = q.reshape(batch, num_q, kv_heads, num_heads // kv_heads, dim)
  scores = scale * jnp.einsum(
    "btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32
  )
  if softcap:
    scores = softcap * jnp.tanh(scores / softcap)
  rows = q_offset + jnp.arange(num_q)[:, None]
  keys = jnp.arange(num_k)[None]
  visible = keys <= rows
  if window:
    visible &= (rows - keys < window) | (keys < sink_len)
  visible = visible[None]
  if segment_ids is not None:
    own = segment_ids[:, q_offset : q_offset + num_q, None]
    visible = visible & (own == segment_ids[:, None])
  scores = jnp.where(visible[:, None, None], scores, -1e30)
  probs = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum(
    "bkgts,bskh->btkgh", probs, v, preferred_element_type=jnp.float32
  )
  return out.reshape(q.shape).astype(q.dtype)
