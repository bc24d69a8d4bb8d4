"""The decoder: one stack per parameter [L, ...] and one block body, scanned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from longctx_jax.model import (
  attention,
  layers,
  log_probs,
  rope,
  row_parts,
  sharding,
)
from longctx_jax.model import remat as remat_lib
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.layers import Linear, Mlp, RMSNorm
from longctx_jax.model.moe import Experts

# (q, k, v), not yet rotated, to the mixed values.
Attend = Callable[[Array, Array, Array], Array]


def _norm(dim: int, config: ModelConfig, *, dtype: DTypeLike) -> RMSNorm:
  return RMSNorm(
    dim,
    eps=config.norm_eps,
    plus_one=config.norm_plus_one,
    dtype=dtype,
  )


class Attention(nnx.Module):
  """Grouped-query attention with RoPE."""

  def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
    dim, head = config.embed_dim, config.head_dim
    q_dim, kv_dim = config.num_heads * head, config.num_kv_heads * head
    kwargs = dict(bias=config.qkv_bias, dtype=dtype, axes=layers.INTO)
    self.q_proj = Linear(dim, q_dim, **kwargs)
    self.k_proj = Linear(dim, kv_dim, **kwargs)
    self.v_proj = Linear(dim, kv_dim, **kwargs)
    self.o_proj = Linear(
      q_dim, dim, bias=config.output_bias, dtype=dtype, axes=layers.OUT_OF
    )
    if config.qk_norm:
      self.q_norm = _norm(head, config, dtype=dtype)
      self.k_norm = _norm(head, config, dtype=dtype)
    self.config = config

  def __call__(
    self, x: Float[Array, "B S D"], attend: Attend, rows: slice
  ) -> Float[Array, "B T D"]:
    """x [B, S, D] -> [B, rows, D]; `attend` rotates and attends."""
    config = self.config

    def heads(projected: Float[Array, "B S E"]) -> Float[Array, "B S n H"]:
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

  def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
    kwargs = dict(dtype=dtype)
    self.attention_norm = _norm(config.embed_dim, config, **kwargs)
    self.attention = Attention(config, **kwargs)
    self.mlp_norm = _norm(config.embed_dim, config, **kwargs)
    self.mlp = (Experts if config.num_experts else Mlp)(config, **kwargs)
    if config.post_norms:
      self.attention_post_norm = _norm(config.embed_dim, config, **kwargs)
      self.mlp_post_norm = _norm(config.embed_dim, config, **kwargs)
    self.has_post_norms = config.post_norms

  def __call__(
    self,
    x: Float[Array, "B S D"],
    attend: Attend,
    rows: slice = slice(None),
  ) -> Float[Array, "B T D"]:
    """x [B, S, D] -> [B, rows, D]; every position is a key in any case."""
    attended = self.attention(self.attention_norm(x), attend, rows)
    if self.has_post_norms:
      attended = self.attention_post_norm(attended)
    x = x[:, rows] + attended
    mapped = self.mlp(self.mlp_norm(x))
    x = x + (self.mlp_post_norm(mapped) if self.has_post_norms else mapped)
    return sharding.constrain(x, sharding.BATCH_AXES, None, None)


@dataclasses.dataclass(frozen=True, eq=False)
class _Pass:
  """What all layers share in one call.

  Attributes:
    config: facts of the model.
    tables: cos and sin of each RoPE table.
    gains: factors on queries of each RoPE table; None is none.
    segment_ids: documents of packed rows.
    in_parts: whether rows are parts of rows.
    backend: of attention.
  """

  config: ModelConfig
  tables: list[tuple[Float[Array, "B S R"], Float[Array, "B S R"]]]
  gains: list[Float[Array, "B S"] | None]
  segment_ids: Int[Array, "B S"] | None
  in_parts: bool
  backend: str

  @property
  def kinds(self) -> list[tuple[int, int]]:
    """The kinds of layer that occur."""
    return sorted(set(self.config.layer_kinds))

  @property
  def kind_of(self) -> Int[Array, " L"]:
    """Of each layer, its index in `kinds`."""
    kinds = self.kinds
    return jnp.asarray([kinds.index(k) for k in self.config.layer_kinds])

  def attend(self, kind: tuple[int, int], rows: slice = slice(None)) -> Attend:
    """Rotates and attends as layers of this kind do; queries are `rows`."""
    window, table = kind
    spec = AttentionSpec.of_layer(
      self.config, window=window, q_offset=rows.start or 0
    )
    gain = self.gains[table]

    def run(q: Array, k: Array, v: Array) -> Array:
      q = rope.apply_rope(
        q,
        tuple(part[:, rows] for part in self.tables[table]),
        None if gain is None else gain[:, rows],
      )
      k = rope.apply_rope(k, self.tables[table])
      return attention.attention(
        q,
        k,
        v,
        spec,
        segment_ids=self.segment_ids,
        in_parts=self.in_parts,
        backend=self.backend,
      )

    return run

  def attend_by(self, kind: Int[Array, ""]) -> Attend:
    """The same for a layer whose kind is known as the scan runs."""
    branches = [self.attend(kind) for kind in self.kinds]
    if len(branches) == 1:
      return branches[0]
    return lambda *qkv: jax.lax.switch(kind, branches, *qkv)


class Transformer(nnx.Module):
  """Decoder-only language model; ids -> final hidden states.

  Made with zeros, and as a rule with shapes alone: parameters come from a
  checkpoint. They carry no sharding; `model/partition.py` does.
  """

  def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
    shape = (config.vocab_size, config.embed_dim)
    self.embedding = nnx.Param(jnp.zeros(shape, dtype))

    @nnx.vmap
    def make_layers(_: Int[Array, ""]) -> Block:
      return Block(config, dtype=dtype)

    self.layers = make_layers(jnp.arange(config.num_layers))
    self.norm = _norm(config.embed_dim, config, dtype=dtype)
    if not config.tied:
      self.output = nnx.Param(jnp.zeros(shape, dtype))
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
    in_parts: bool = False,
    backend: str = "blockwise",
    remat: str = "none",
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
      in_parts: whether rows are parts of longer rows, as `row_parts.split`
        makes them of ids, positions, segment ids and lengths; so is the result.
        The mesh axis "context" then splits rows, and else the batch.
      backend: one of `attention.BACKENDS`.
      remat: what is kept of each block for the backward pass: one of
        `remat.POLICIES`.

    Returns:
      [B, S, D], or [B, stop - start, D] with `score_rows`.

    Raises:
      ValueError: for packed rows with an attention sink, which is counted from
        the start of the row and not of the document, or without the lengths
        that their RoPE tables depend on; for `score_rows` of parts.
    """
    if in_parts and score_rows is not None:
      raise ValueError(f"score_rows={score_rows} of rows in parts")
    passing = self._start_pass(
      ids, positions, segment_ids, lengths, in_parts=in_parts, backend=backend
    )
    x = self._embed(ids)
    if score_rows is None:
      return self.norm(self._run_all(x, passing, remat=remat))
    return self.norm(self._run_rows(x, passing, slice(*score_rows)))

  def _start_pass(
    self,
    ids: Int[Array, "B S"],
    positions: Int[Array, "B S"] | None,
    segment_ids: Int[Array, "B S"] | None,
    lengths: Int[Array, "*N"] | None,
    *,
    in_parts: bool,
    backend: str,
  ) -> _Pass:
    """What all layers share, from the arguments of a call."""
    config = self.config
    if segment_ids is not None and config.sink_len:
      raise ValueError(f"sink_len={config.sink_len} with packed documents")
    if lengths is None:
      if segment_ids is not None and config.rope_by_length:
        raise ValueError(
          f"{config.describe_rope()}: packed documents need their lengths"
        )
      parts = row_parts.count() if in_parts else 1
      lengths = jnp.full(ids.shape[:1], ids.shape[1] * parts)
    if positions is None and in_parts:
      positions = row_parts.positions(*ids.shape)
    elif positions is None:
      positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    return _Pass(
      config=config,
      tables=[
        rope.rope_table(table, config.head_dim, positions, lengths)
        for table in config.ropes
      ],
      gains=[rope.query_gain(table, positions) for table in config.ropes],
      segment_ids=segment_ids,
      in_parts=in_parts,
      backend=backend,
    )

  def _embed(self, ids: Int[Array, "B S"]) -> Float[Array, "B S D"]:
    # Looked up in rows that are whole: in split ones, every device would hold
    # the activations of the whole batch.
    x = sharding.constrain(self.embedding[...], "tensor", None)[ids]
    if self.config.embed_scale:
      x *= jnp.asarray(self.config.embed_scale, x.dtype)
    return sharding.constrain(x, sharding.BATCH_AXES, None, None)

  def _run_all(
    self, x: Float[Array, "B S D"], passing: _Pass, *, remat: str
  ) -> Float[Array, "B S D"]:
    """All rows through all layers; the stack is scanned."""
    graphdef, stack = nnx.split(self.layers)

    def apply(
      x: Float[Array, "B S D"], layer_and_kind: tuple[nnx.State, Array]
    ) -> tuple[Float[Array, "B S D"], None]:
      layer, kind = layer_and_kind
      return nnx.merge(graphdef, layer)(x, passing.attend_by(kind)), None

    apply = remat_lib.apply_policy(apply, remat)
    return jax.lax.scan(apply, x, (stack, passing.kind_of))[0]

  def _run_rows(
    self, x: Float[Array, "B S D"], passing: _Pass, rows: slice
  ) -> Float[Array, "B T D"]:
    """The last layer computes these rows alone; layers are scanned by index."""
    graphdef, stack = nnx.split(self.layers)

    def layer_at(i: int | Int[Array, ""]) -> Block:
      # Slicing the stack for the last layer would copy all of it.
      layer = jax.tree.map(
        lambda p: jax.lax.dynamic_index_in_dim(p, i, keepdims=False), stack
      )
      return nnx.merge(graphdef, layer)

    def apply(
      x: Float[Array, "B S D"], i: Int[Array, ""]
    ) -> tuple[Float[Array, "B S D"], None]:
      return layer_at(i)(x, passing.attend_by(passing.kind_of[i])), None

    last = self.config.num_layers - 1
    x, _ = jax.lax.scan(apply, x, jnp.arange(last))
    attend_last = passing.attend(self.config.layer_kinds[-1], rows)
    return layer_at(last)(x, attend_last, rows)
