"""The decoder: one stack per parameter [L, ...] and one block body, scanned."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from longctx_jax import sharding
from longctx_jax.model import attention as attention_lib
from longctx_jax.model import rope
from longctx_jax.model.config import ModelConfig

_init = nnx.initializers.normal(0.02)


def _along_last(vector, x):
  """The vector with as many axes as x: no rank is promoted silently."""
  return vector.reshape((1,) * (x.ndim - 1) + vector.shape)


class RMSNorm(nnx.Module):
  """x / rms(x) * scale, in float32, cast once at the end."""

  def __init__(self, dim: int, *, eps: float, dtype, rngs: nnx.Rngs):
    self.scale = nnx.Param(jnp.ones((dim,), dtype))
    self.eps = eps

  def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """Normalises the last axis."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    normed = wide * jax.lax.rsqrt(mean_square + self.eps)
    scale = _along_last(self.scale[...].astype(jnp.float32), x)
    return (normed * scale).astype(x.dtype)


class Linear(nnx.Module):
  """x @ kernel (+ bias), kernel [in, out]."""

  def __init__(
    self, in_dim: int, out_dim: int, *, bias: bool, dtype, rngs: nnx.Rngs
  ):
    self.kernel = nnx.Param(_init(rngs.params(), (in_dim, out_dim), dtype))
    if bias:
      self.bias = nnx.Param(jnp.zeros((out_dim,), dtype))
    self.has_bias = bias

  def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
    """Maps the last axis."""
    x = x @ self.kernel[...]
    return x + _along_last(self.bias[...], x) if self.has_bias else x


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
      kwargs = dict(eps=config.norm_eps, dtype=dtype, rngs=rngs)
      self.q_norm = RMSNorm(head, **kwargs)
      self.k_norm = RMSNorm(head, **kwargs)
    self.config = config

  def __call__(self, x, table, attend, rows):
    """x [B, S, D] -> [B, rows, D]; `attend` is a call of q, k, v."""
    config = self.config

    def heads(projected):
      return projected.reshape(*projected.shape[:2], -1, config.head_dim)

    q, k = heads(self.q_proj(x[:, rows])), heads(self.k_proj(x))
    v = heads(self.v_proj(x))
    if config.qk_norm:
      q, k = self.q_norm(q), self.k_norm(k)
    k = rope.apply_rope(k, table)
    q = rope.apply_rope(q, tuple(part[:, rows] for part in table))
    q, k, v = (
      sharding.constrain(part, sharding.BATCH_AXES, None, "tensor", None)
      for part in (q, k, v)
    )
    out = attend(q, k, v)
    return self.o_proj(out.reshape(*out.shape[:2], -1))


class Mlp(nnx.Module):
  """down(silu(gate(x)) * up(x))."""

  def __init__(self, config: ModelConfig, *, dtype, rngs: nnx.Rngs):
    kwargs = dict(bias=config.mlp_bias, dtype=dtype, rngs=rngs)
    self.gate_proj = Linear(config.embed_dim, config.mlp_dim, **kwargs)
    self.up_proj = Linear(config.embed_dim, config.mlp_dim, **kwargs)
    self.down_proj = Linear(config.mlp_dim, config.embed_dim, **kwargs)

  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Maps each position by itself."""
    return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nnx.Module):
  """Pre-norm attention and MLP, each added to the residual stream."""

  def __init__(self, config: ModelConfig, *, dtype, rngs: nnx.Rngs):
    dim, eps = config.embed_dim, config.norm_eps
    self.attention_norm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
    self.attention = Attention(config, dtype=dtype, rngs=rngs)
    self.mlp_norm = RMSNorm(dim, eps=eps, dtype=dtype, rngs=rngs)
    self.mlp = Mlp(config, dtype=dtype, rngs=rngs)

  def __call__(self, x, table, attend, rows=slice(None)):
    """x [B, S, D] -> [B, rows, D]; every position is a key in any case."""
    attended = self.attention(self.attention_norm(x), table, attend, rows)
    x = x[:, rows] + attended
    x = x + self.mlp(self.mlp_norm(x))
    return sharding.constrain(x, sharding.BATCH_AXES, None, None)


class Transformer(nnx.Module):
  """Decoder-only language model; ids -> final hidden states.

  Parameters carry no sharding; `model/partition.py` does.
  """

  def __init__(self, config: ModelConfig, *, dtype, rngs: nnx.Rngs):
    shape = (config.vocab_size, config.embed_dim)
    self.embedding = nnx.Param(_init(rngs.params(), shape, dtype))

    @nnx.split_rngs(splits=config.num_layers)
    @nnx.vmap(in_axes=0, out_axes=0)
    def make_layers(rngs):
      return Block(config, dtype=dtype, rngs=rngs)

    self.layers = make_layers(rngs)
    self.norm = RMSNorm(
      config.embed_dim, eps=config.norm_eps, dtype=dtype, rngs=rngs
    )
    if not config.tied:
      self.output = nnx.Param(_init(rngs.params(), shape, dtype))
    self.config = config

  def head(self) -> Float[Array, "V D"]:
    """The output head, one row per vocabulary entry."""
    return (self.embedding if self.config.tied else self.output)[...]

  def __call__(
    self,
    ids: Int[Array, "B S"],
    *,
    positions: Int[Array, "B S"] | None = None,
    segment_ids: Int[Array, "B S"] | None = None,
    score_rows: tuple[int, int] | None = None,
    backend: str = "blockwise",
  ) -> Float[Array, "B T D"]:
    """Final hidden states, after the last norm.

    Args:
      ids: token ids [B, S].
      positions: for RoPE; default 0, 1, 2, ... [B, S].
      segment_ids: documents of packed rows, at least 0 [B, S].
      score_rows: static (start, stop): the only rows whose output is needed.
        The last layer computes queries and MLP only there. For inference: the
        layers are scanned by index, which costs memory under gradient.
      backend: one of `attention.BACKENDS`.

    Returns:
      [B, S, D], or [B, stop - start, D] with `score_rows`.

    Raises:
      ValueError: for packed rows with an attention sink, which is counted from
        the start of the row and not of the document.
    """
    config = self.config
    if config.sink_len and segment_ids is not None:
      raise ValueError(f"sink_len={config.sink_len} with packed documents")
    if positions is None:
      positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    table = rope.rope_table(config.rope, config.head_dim, positions)
    x = sharding.constrain(
      self.embedding[...][ids], sharding.BATCH_AXES, None, None
    )
    graphdef, stack = nnx.split(self.layers)
    kinds = sorted(set(config.windows))

    def attend(window, q_offset=0):
      return lambda q, k, v: attention_lib.attention(
        q,
        k,
        v,
        q_offset=q_offset,
        window=window,
        sink_len=config.sink_len,
        segment_ids=segment_ids,
        scale=config.head_dim**-0.5,
        backend=backend,
      )

    def apply(x, layer, kind):
      def attend_by_kind(q, k, v):
        branches = [attend(window) for window in kinds]
        if len(branches) == 1:
          return branches[0](q, k, v)
        return jax.lax.switch(kind, branches, q, k, v)

      return nnx.merge(graphdef, layer)(x, table, attend_by_kind), None

    layer_kinds = jnp.asarray([kinds.index(w) for w in config.windows])
    if score_rows is None:
      x, _ = jax.lax.scan(lambda x, xs: apply(x, *xs), x, (stack, layer_kinds))
      return self.norm(x)

    def layer_at(i):
      # Slicing the stack for the last layer would copy all of it.
      return jax.tree.map(
        lambda p: jax.lax.dynamic_index_in_dim(p, i, keepdims=False), stack
      )

    last = config.num_layers - 1
    x, _ = jax.lax.scan(
      lambda x, i: apply(x, layer_at(i), layer_kinds[i]), x, jnp.arange(last)
    )
    start, stop = score_rows
    x = nnx.merge(graphdef, layer_at(last))(
      x, table, attend(config.windows[-1], start), slice(start, stop)
    )
    return self.norm(x)
