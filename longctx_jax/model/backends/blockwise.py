"""Attention in blocks with an online softmax: any platform, memory O(T + S).

One query block at a time meets only the key blocks that it can see. The
backward pass is written out: recomputing block by block keeps it as small.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from longctx_jax.model import remat, row_parts
from longctx_jax.model.attention_spec import AttentionSpec

# An index that a loop counts.
_Index = int | Int[Array, ""]
_Carry = tuple[Array, Array, Array]
# First position, q, k, v, segments of both, output, log-normaliser.
_Saved = tuple[
  Array, Array, Array, Array, Array | None, Array | None, Array, Array
]

_BLOCK = 256
_MASKED = -1e30


@dataclasses.dataclass(frozen=True)
class _Sight:
  """What a query row may see; static, so that loops have known bounds."""

  spec: AttentionSpec
  block_q: int
  block_k: int
  num_k: int  # key blocks

  def begins(
    self, q_segments: Int[Array, " T"] | None, k_segments: Int[Array, " S"]
  ) -> Int[Array, " n"]:
    """Of each query block, the first key block with one of its documents.

    Documents that lie before it are passed over, and not just masked.
    """
    own = q_segments.reshape(-1, self.block_q)
    keys = k_segments.reshape(-1, self.block_k)
    apart = own.max(1)[:, None] < keys.min(1)[None]
    apart |= own.min(1)[:, None] > keys.max(1)[None]
    return jnp.argmin(apart, axis=1)

  def loop(
    self,
    first: Int[Array, ""],
    i: _Index,
    begins: Int[Array, " n"] | None,
  ) -> tuple[_Index, Callable[[_Index], _Index]]:
    """(iterations, index -> key block) for query block i.

    Args:
      first: position of the first query; the spec's own is not asked.
      i: index of the block.
      begins: see there; None where all keys are of one document.
    """
    first_row = first + i * self.block_q
    stop = (first_row + self.block_q - 1) // self.block_k + 1
    stop = jnp.minimum(stop, self.num_k)
    sinks = -(-self.spec.sink_len // self.block_k)
    start = 0
    if self.spec.window:
      start = jnp.maximum(0, first_row - self.spec.window + 1) // self.block_k
      start = jnp.maximum(start, sinks)
    if begins is not None:
      start = jnp.maximum(start, begins[i])
    start = jnp.minimum(start, stop)
    sinks = jnp.minimum(sinks, start)
    return (
      sinks + stop - start,
      lambda j: j + jnp.where(j < sinks, 0, start - sinks),
    )

  def mask(
    self,
    first: Int[Array, ""],
    i: _Index,
    block: _Index,
    repeats: int,
    q_segments: Int[Array, " q"] | None,
    k_segments: Int[Array, " k"] | None,
  ) -> Bool[Array, "r k"]:
    """bool [rows, block_k], rows = block_q query positions x repeats."""
    rows = jnp.repeat(jnp.arange(self.block_q), repeats)
    rows += first + i * self.block_q
    keys = block * self.block_k + jnp.arange(self.block_k)
    visible = self.spec.sees(rows[:, None], keys[None])
    if q_segments is not None:
      same = jnp.repeat(q_segments, repeats)[:, None] == k_segments[None]
      visible &= same
    return visible


def _dot(
  a: Float[Array, "i j"],
  b: Float[Array, "k l"],
  contract: tuple[tuple[int, ...], tuple[int, ...]],
) -> Float[Array, "m n"]:
  return jax.lax.dot_general(
    a, b, (contract, ((), ())), preferred_element_type=jnp.float32
  )


def _slice(x: Array, block: _Index, size: int) -> Array:
  return jax.lax.dynamic_slice_in_dim(x, block * size, size)


def _scores(
  q: Float[Array, "r H"], k: Float[Array, "k H"], softcap: float
) -> tuple[Float[Array, "r k"], Float[Array, "r k"] | float]:
  """Capped scores and the derivative of the cap."""
  scores = _dot(q, k, ((1,), (1,)))
  if not softcap:
    return scores, 1.0
  tanh = jnp.tanh(scores / softcap)
  return softcap * tanh, 1.0 - tanh * tanh


def _segments_of(
  segments: Int[Array, " S"] | None, block: _Index, size: int
) -> Int[Array, " b"] | None:
  return None if segments is None else _slice(segments, block, size)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
  sight: _Sight,
  first: Int[Array, ""],
  q: Float[Array, "n r H"],
  k: Float[Array, "S H"],
  v: Float[Array, "S H"],
  q_segments: Int[Array, " T"] | None,
  k_segments: Int[Array, " S"] | None,
) -> Float[Array, "n r H"]:
  return _forward(sight, first, q, k, v, q_segments, k_segments)[0]


def _forward(
  sight: _Sight,
  first: Int[Array, ""],
  q: Float[Array, "n r H"],
  k: Float[Array, "S H"],
  v: Float[Array, "S H"],
  q_segments: Int[Array, " T"] | None,
  k_segments: Int[Array, " S"] | None,
) -> tuple[Float[Array, "n r H"], Float[Array, "n r"]]:
  """One head: q [nq, rows, H], k and v [S, H] -> out, log-normaliser."""
  rows, dim = q.shape[1:]
  repeats = rows // sight.block_q
  begins = None
  if q_segments is not None:
    begins = sight.begins(q_segments, k_segments)

  def of_block(args: tuple[Array, Array]) -> tuple[Array, Array]:
    i, q = args
    count, key_block = sight.loop(first, i, begins)
    own_segments = _segments_of(q_segments, i, sight.block_q)

    def step(j: _Index, carry: _Carry) -> _Carry:
      highest, total, out = carry
      block = key_block(j)
      scores, _ = _scores(
        q, _slice(k, block, sight.block_k), sight.spec.softcap
      )
      seen = sight.mask(
        first,
        i,
        block,
        repeats,
        own_segments,
        _segments_of(k_segments, block, sight.block_k),
      )
      scores = jnp.where(seen, scores, _MASKED)
      new_highest = jnp.maximum(highest, scores.max(1))
      probs = jnp.exp(scores - new_highest[:, None])
      scale = jnp.exp(highest - new_highest)
      values = _slice(v, block, sight.block_k)
      out = out * scale[:, None] + _dot(
        probs.astype(v.dtype), values, ((1,), (0,))
      )
      return new_highest, total * scale + probs.sum(1), out

    start = (
      jnp.full((rows,), _MASKED),
      jnp.zeros((rows,)),
      jnp.zeros((rows, dim)),
    )
    highest, total, out = jax.lax.fori_loop(0, count, step, start)
    return (out / total[:, None]).astype(q.dtype), highest + jnp.log(total)

  return jax.lax.map(of_block, (jnp.arange(q.shape[0]), q))


def _attend_forward(
  sight: _Sight,
  first: Int[Array, ""],
  q: Float[Array, "n r H"],
  k: Float[Array, "S H"],
  v: Float[Array, "S H"],
  q_segments: Int[Array, " T"] | None,
  k_segments: Int[Array, " S"] | None,
) -> tuple[Float[Array, "n r H"], _Saved]:
  out, normaliser = map(
    remat.keep, _forward(sight, first, q, k, v, q_segments, k_segments)
  )
  return out, (first, q, k, v, q_segments, k_segments, out, normaliser)


def _attend_backward(
  sight: _Sight, saved: _Saved, d_out: Float[Array, "n r H"]
) -> tuple[None, Array, Array, Array, None, None]:
  first, q, k, v, q_segments, k_segments, out, normaliser = saved
  repeats = q.shape[1] // sight.block_q
  begins = None
  if q_segments is not None:
    begins = sight.begins(q_segments, k_segments)

  def of_block(
    carry: tuple[Array, Array], args: tuple[Array, ...]
  ) -> tuple[tuple[Array, Array], Array]:
    i, q, out, normaliser, d_out = args
    count, key_block = sight.loop(first, i, begins)
    own_segments = _segments_of(q_segments, i, sight.block_q)
    d_out = d_out.astype(jnp.float32)
    inner = jnp.sum(d_out * out.astype(jnp.float32), axis=1)

    def step(j: _Index, carry: _Carry) -> _Carry:
      d_q, d_k, d_v = carry
      block = key_block(j)
      keys = _slice(k, block, sight.block_k)
      values = _slice(v, block, sight.block_k)
      scores, d_cap = _scores(q, keys, sight.spec.softcap)
      seen = sight.mask(
        first,
        i,
        block,
        repeats,
        own_segments,
        _segments_of(k_segments, block, sight.block_k),
      )
      probs = jnp.where(seen, jnp.exp(scores - normaliser[:, None]), 0.0)
      d_probs = _dot(d_out, values.astype(jnp.float32), ((1,), (1,)))
      d_scores = probs * (d_probs - inner[:, None]) * d_cap
      d_q += _dot(d_scores, keys.astype(jnp.float32), ((1,), (0,)))
      at = block * sight.block_k

      def add(total: Array, part: Array) -> Array:
        old = jax.lax.dynamic_slice_in_dim(total, at, sight.block_k)
        return jax.lax.dynamic_update_slice_in_dim(total, old + part, at, 0)

      d_k = add(d_k, _dot(d_scores, q.astype(jnp.float32), ((0,), (0,))))
      d_v = add(d_v, _dot(probs, d_out, ((0,), (0,))))
      return d_q, d_k, d_v

    d_q, d_k, d_v = jax.lax.fori_loop(
      0, count, step, (jnp.zeros(q.shape), *carry)
    )
    return (d_k, d_v), d_q.astype(q.dtype)

  (d_k, d_v), d_q = jax.lax.scan(
    of_block,
    (jnp.zeros(k.shape), jnp.zeros(v.shape)),
    (jnp.arange(q.shape[0]), q, out, normaliser, d_out),
  )
  return None, d_q, d_k.astype(k.dtype), d_v.astype(v.dtype), None, None


_attend.defvjp(_attend_forward, _attend_backward)


def block_length() -> int:
  """Positions of a block, on this machine."""
  # Half of it on a CPU: products are as fast there, and less is computed of
  # what no query sees.
  return _BLOCK // 2 if jax.default_backend() == "cpu" else _BLOCK


@row_parts.chunk_by_chunk
def blockwise_attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  spec: AttentionSpec,
  segment_ids: Int[Array, "B S"] | None,
  first: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
  """Causal attention; see `attention.attention` for the arguments."""
  if segment_ids is None or first is not None:
    return _attend_rows(q, k, v, spec, segment_ids, first)
  # Each shard passes over the blocks that its own rows do not see.
  return row_parts.on_shards(
    lambda q, k, v, segment_ids, _: _attend_rows(
      q, k, v, spec, segment_ids, None
    ),
    q,
    k,
    v,
    segment_ids,
    in_parts=False,
  )


def _attend_rows(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  spec: AttentionSpec,
  segment_ids: Int[Array, "B S"] | None,
  first: Int[Array, ""] | None,
) -> Float[Array, "B T N H"]:
  batch, num_q, num_heads, dim = q.shape
  num_k, kv_heads = k.shape[1:3]
  repeats = num_heads // kv_heads
  block = block_length()
  block_q, block_k = min(block, num_q), min(block, num_k)
  pad_q, pad_k = -num_q % block_q, -num_k % block_k
  # An argument, and not known to the program: chunks of a row share one.
  first = jnp.int32(spec.q_offset) if first is None else first
  sight = _Sight(
    spec=dataclasses.replace(spec, q_offset=0),
    block_q=block_q,
    block_k=block_k,
    num_k=(num_k + pad_k) // block_k,
  )
  # The query heads that share a key head become rows of one product.
  q = jnp.pad(q * spec.scale, ((0, 0), (0, pad_q), (0, 0), (0, 0)))
  q = q.reshape(batch, -1, block_q, kv_heads, repeats, dim)
  q = q.transpose(0, 3, 1, 2, 4, 5).reshape(
    batch, kv_heads, -1, block_q * repeats, dim
  )
  k, v = (
    jnp.pad(x, ((0, 0), (0, pad_k), (0, 0), (0, 0))).swapaxes(1, 2)
    for x in (k, v)
  )
  q_segments = k_segments = None
  if segment_ids is not None:
    q_segments = jax.lax.dynamic_slice_in_dim(segment_ids, first, num_q, axis=1)
    # No real segment is -1, and padded query rows are dropped below.
    q_segments = jnp.pad(q_segments, ((0, 0), (0, pad_q)), mode="edge")
    k_segments = jnp.pad(segment_ids, ((0, 0), (0, pad_k)), constant_values=-1)
  per_head = jax.vmap(
    functools.partial(_attend, sight, first), in_axes=(0, 0, 0, None, None)
  )
  if segment_ids is None:
    out = jax.vmap(lambda *qkv: per_head(*qkv, None, None))(q, k, v)
  else:
    # One after the other: their blocks are not the same.
    out = jax.lax.map(
      lambda row: per_head(*row), (q, k, v, q_segments, k_segments)
    )
  out = out.reshape(batch, kv_heads, -1, block_q, repeats, dim)
  out = out.transpose(0, 2, 3, 1, 4, 5).reshape(batch, -1, num_heads, dim)
  return out[:, :num_q]
