"""The decoder: one stack per parameter [L, ...] and one block body, scanned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from longctx_jax.model import attention, log_probs, rope, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.layers import Linear, Mlp, RMSNorm, init
from longctx_jax.model.moe import Experts


def _norm(dim, config, *, dtype, rngs):
  return RMSNorm(
    dim,
    eps=config.norm_eps,
    plus_one=config.norm_plus_one,
    dtype=dtype,
    rngs=rngs,
  )


class Attention(nnx.Module):
  """Grouped-query attention with RoPE."""

  def __init__(self, config: ModelConfig, *, dtype, rngs: nnx.Rngs):
    dim, head = config.embed_dim, config.head_dim
    q_dim, kv_dim = config.num_heads * head, config.num_kv_heads * head
    kwargs = dict(bias=config.qkv_bias, dtype=dtype, rngs=rngs)
    self.q_proj = Linear(dim, q_dim, **kwargs)
    self.k_proj = Linear(dim, kv_dim, **kwargs)
    self.v_proj = Linear(dim, kv_dim, **kwargs)
    self.o_proj = Linear(
      q_dim, dim, bias=config.output_bias, dtype=dtype, rngs=rngs
    )
    if config.qk_norm:
      self.q_norm = _norm(head, config, dtype=dtype, rngs=rngs)
      self.k_norm = _norm(head, config, dtype=dtype, rngs=rngs)
    self.config = config

  def __call__(self, x, attend, rows):
    """x [B, S, D] -> [B, rows, D]; `attend` rotates and attends."""
    config = self.config

    def heads(projected):
      return projected.reshape(*projected.shape[:2], -1, config.head_dim)

    q, k = heads(self.q_proj(x[:, rows])), heads(self.k_proj(x))
    v = heads(self.v_proj(x))
    if config.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    q, k, v = (
      sharding.constrain(part, sharding.BATCH_AXES, None, "tensor", None)
      for part in (q, k, v)
    )
    out = attend(q, k, v)
    return self.o_proj(out.reshape(*out.shape[:2], -1))


class Block(nnx.Module):
  """Pre-norm attention and MLP, each added to the residual stream."""

  def __init__(self, config: ModelConfig, *, dtype, rngs: nnx.Rngs):
    kwargs = dict(dtype=dtype, rngs=rngs)
    self.attention_norm = _norm(config.embed_dim, config, **kwargs)
    self.attention = Attention(config, **kwargs)
    self.mlp_norm = _norm(config.embed_dim, config, **kwargs)
    self.mlp = (Experts if config.num_experts else Mlp)(config, **kwargs)
    if config.post_norms:
      self.attention_post_norm = _norm(config.embed_dim, config, **kwargs)
      self.mlp_post_norm = _norm(config.embed_dim, config, **kwargs)
    self.has_post_norms = config.post_norms

  def __call__(self, x, attend, rows=slice(None)):
    """x [B, S, D] -> [B, rows, D]; every position is a key in any case."""
    attended = self.attention(self.attention_norm(x), attend, rows)
    if self.has_post_norms:
      attended = self.attention_post_norm(attended)
    x = x[:, rows] + attended
    mapped = self.mlp(self.mlp_norm(x))
    x = x + (self.mlp_post_norm(mapped) if self.has_post_norms else mapped)
    return sharding.constrain(x, sharding.BATCH_AXES, None, None)


class Transformer(nnx.Module):
  """Decoder-only language model; ids -> final hidden states.

  Parameters carry no sharding; `model/partition.py` does.
  """

  def __init__(self, config: ModelConfig, *, dtype, rngs: nnx.Rngs):
    shape = (config.vocab_size, config.embed_dim)
    self.embedding = nnx.Param(init(rngs.params(), shape, dtype))

    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make_layers(rngs):
      return Block(config, dtype=dtype, rngs=rngs)

    self.layers = make_layers(rngs)
    self.norm = _norm(config.embed_dim, config, dtype=dtype, rngs=rngs)
    if not config.tied:
      self.output = nnx.Param(init(rngs.params(), shape, dtype))
    self.config = config

  def head(self) -> Float[Array, "V D"]:
    """The output head, one row per vocabulary entry."""
    return (self.embedding if self.config.tied else self.output)[...]

  def logits(self, hidden: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
    """Float32 logits, capped where the model caps them; memory B x T x V."""
    logits = jnp.einsum(
      "btd,vd->btv", hidden, self.head(), preferred_element_type=jnp.float32
    )
    return log_probs.soft_cap(logits, self.config.softcap)

  def __call__(
    self,
    ids: Int[Array, "B S"],
    *,
    positions: Int[Array, "B S"] | None = None,
    segment_ids: Int[Array, "B S"] | None = None,
    lengths: Int[Array, "*N"] | None = None,
    score_rows: tuple[int, int] | None = None,
    backend: str = "blockwise",
    remat: bool = False,
  ) -> Float[Array, "B T D"]:
    """Final hidden states, after the last norm.

    Args:
      ids: token ids [B, S].
      positions: for RoPE; default 0, 1, 2, ... [B, S].
      segment_ids: documents of packed rows, at least 0 [B, S].
      lengths: real length of each row [B] or, of packed rows, of each
        position's document [B, S]; for RoPE tables that depend on it. Default
        S: no padding.
      score_rows: static (start, stop): the only rows whose output is needed.
        The last layer computes queries and MLP only there. For inference: the
        layers are scanned by index, which costs memory under gradient.
      backend: one of `attention.BACKENDS`.
      remat: keep only the inputs of each block for the backward pass, which
        runs the block once more. For training.

    Returns:
      [B, S, D], or [B, stop - start, D] with `score_rows`.

    Raises:
      ValueError: for packed rows with an attention sink, which is counted from
        the start of the row and not of the document, or without the lengths
        that their RoPE tables depend on.
    """
    config = self.config
    if segment_ids is not None and config.sink_len:
      raise ValueError(f"sink_len={config.sink_len} with packed documents")
    if lengths is None:
      if segment_ids is not None and config.rope_by_length:
        raise ValueError(
          f"{config.describe_rope()}: packed documents need their lengths"
        )
      lengths = jnp.full(ids.shape[:1], ids.shape[1])
    if positions is None:
      positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    tables = [
      rope.rope_table(table, config.head_dim, positions, lengths)
      for table in config.ropes
    ]
    gains = [rope.query_gain(table, positions) for table in config.ropes]
    # Looked up in rows that are whole: in split ones, every device would hold
    # the activations of the whole batch.
    x = sharding.constrain(self.embedding[...], "tensor", None)[ids]
    if config.embed_scale:
      x *= jnp.asarray(config.embed_scale, x.dtype)
    x = sharding.constrain(x, sharding.BATCH_AXES, None, None)

    def attend(kind, rows=slice(None)):
      """Rotates and attends as layers of this kind do."""
      window, table = kind

      def run(q, k, v):
        gain = gains[table]
        q = rope.apply_rope(
          q,
          tuple(part[:, rows] for part in tables[table]),
          None if gain is None else gain[:, rows],
        )
        return attention.attention(
          q,
          rope.apply_rope(k, tables[table]),
          v,
          q_offset=rows.start or 0,
          window=window,
          sink_len=config.sink_len,
          segment_ids=segment_ids,
          softcap=config.attention_softcap,
          scale=config.query_scale or config.head_dim**-0.5,
          backend=backend,
        )

      return run

    graphdef, stack = nnx.split(self.layers)
    kinds = sorted(set(config.layer_kinds))
    kind_of = jnp.asarray([kinds.index(k) for k in config.layer_kinds])
    branches = [attend(kind) for kind in kinds]

    def apply(x, layer, kind):
      def attend_by_kind(*qkv):
        if len(branches) == 1:
          return branches[0](*qkv)
        return jax.lax.switch(kind, branches, *qkv)

      return nnx.merge(graphdef, layer)(x, attend_by_kind), None

    if score_rows is None:
      if remat:
        # Inside a scan nothing can be merged with the second run anyway.
        apply = jax.checkpoint(apply, prevent_cse=False)
      x, _ = jax.lax.scan(lambda x, xs: apply(x, *xs), x, (stack, kind_of))
      return self.norm(x)

    def layer_at(i):
      # Slicing the stack for the last layer would copy all of it.
      return jax.tree.map(
        lambda p: jax.lax.dynamic_index_in_dim(p, i, keepdims=False), stack
      )

    last = config.num_layers - 1
    x, _ = jax.lax.scan(
      lambda x, i: apply(x, layer_at(i), kind_of[i]), x, jnp.arange(last)
    )
    rows = slice(*score_rows)
    attend_last = attend(config.layer_kinds[-1], rows)
    x = nnx.merge(graphdef, layer_at(last))(x, attend_last, rows)
    return self.norm(x)
