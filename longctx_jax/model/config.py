"""Model facts, read from a checkpoint's config.json and written back.

An allow-list: a field that is not understood and could change the numbers is
an error, so that a new kind of checkpoint cannot be silently wrong.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from longctx_jax.model.rope import RopeConfig


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Facts that determine the forward pass. Sizes as in docs/design.md.

  Attributes:
    model_type: Hugging Face name of the family.
    vocab_size: V, rows of the embedding.
    embed_dim: D.
    num_layers: L.
    num_heads: N, query heads.
    num_kv_heads: K, key and value heads.
    head_dim: H.
    mlp_dim: F.
    norm_eps: epsilon of every RMSNorm.
    max_position: longest context, after RoPE scaling.
    ropes: rotary tables.
    tied: the output head is the embedding.
    qkv_bias: query, key and value projections have biases.
    output_bias: the attention's output projection has a bias.
    mlp_bias: the MLP's projections have biases.
    qk_norm: RMSNorm over each head's queries and keys (Qwen3, Gemma 3).
    windows: per layer, the number of last positions visible; 0 is all.
    rope_kinds: per layer, its table in `ropes`; () is the first for all.
    sink_len: first positions that stay visible beside a window.
    softcap: cap on the final logits; 0 is none.
    activation: "silu" or "gelu_tanh".
    attention_softcap: cap on the attention scores; 0 is none.
    query_scale: factor on the attention scores; 0 is head_dim ** -0.5.
    embed_scale: factor on the embeddings, in the model's dtype; 0 is none.
    norm_plus_one: RMSNorm multiplies by 1 + scale (Gemma).
    post_norms: the output of attention and MLP is normed too (Gemma).
    num_experts: E, MLPs of each layer that tokens are routed to; 0 is none.
    experts_per_token: how many of them a token goes to.
    expert_dim: F of an expert.
    norm_topk: the weights of a token's experts sum to 1.
  """

  model_type: str
  vocab_size: int
  embed_dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  mlp_dim: int
  norm_eps: float
  max_position: int
  ropes: tuple[RopeConfig, ...]
  tied: bool
  qkv_bias: bool
  output_bias: bool
  mlp_bias: bool
  qk_norm: bool
  windows: tuple[int, ...]
  rope_kinds: tuple[int, ...] = ()
  sink_len: int = 0
  softcap: float = 0.0
  activation: str = "silu"
  attention_softcap: float = 0.0
  query_scale: float = 0.0
  embed_scale: float = 0.0
  norm_plus_one: bool = False
  post_norms: bool = False
  num_experts: int = 0
  experts_per_token: int = 0
  expert_dim: int = 0
  norm_topk: bool = False

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_attention_heads={self.num_heads} is not a multiple of "
        f"num_key_value_heads={self.num_kv_heads}"
      )
    if self.num_experts and not (
      0 < self.experts_per_token <= self.num_experts
    ):
      raise ValueError(
        f"num_experts_per_tok={self.experts_per_token} of {self.num_experts} "
        "experts"
      )
    for kinds in (self.windows, self.rope_kinds or self.windows):
      if len(kinds) != self.num_layers:
        raise ValueError(
          f"{len(kinds)} layer types for {self.num_layers} layers"
        )
    for table in self.ropes:
      rotary_dim = table.rotary_dim(self.head_dim)
      if rotary_dim % 2 or rotary_dim == 0:
        raise ValueError(
          f"head_dim={self.head_dim}, of which {rotary_dim} rotate: RoPE needs "
          "an even number"
        )
      for name in ("short_factor", "long_factor"):
        if len(getattr(table, name)) not in (0, rotary_dim // 2):
          raise ValueError(
            f"{name} has {len(getattr(table, name))} values for "
            f"{rotary_dim // 2} pairs of dimensions"
          )

  @property
  def rope(self) -> RopeConfig:
    """The rotary table of a model with one.

    Raises:
      ValueError: where layers have tables of their own.
    """
    if len(self.ropes) > 1:
      raise ValueError(f"{self.model_type} has {len(self.ropes)} RoPE tables")
    return self.ropes[0]

  @property
  def layer_kinds(self) -> tuple[tuple[int, int], ...]:
    """(window, index of the RoPE table) of each layer."""
    kinds = self.rope_kinds or (0,) * self.num_layers
    return tuple(zip(self.windows, kinds, strict=True))

  @property
  def rope_by_length(self) -> dict[str, Any]:
    """For `rope.name_table`, where a pass's length matters; else empty."""
    for table in self.ropes:
      if table.depends_on_length:
        limit = table.original_max_position
        return {"rope_type": table.rope_type, "limit": limit}
    return {}

  def describe_rope(self, length: int = 0) -> str:
    """The RoPE table, or tables, in one line for results and manifests.

    Args:
      length: names the table that a pass of this many positions uses; 0
        describes the model.
    """
    if len(self.ropes) == 1:
      return self.rope.describe(length)
    return "; ".join(
      f"{table.describe(length)} x {self.rope_kinds.count(kind)}"
      for kind, table in enumerate(self.ropes)
    )

  def with_attention(self, *, window: int, sink_len: int) -> ModelConfig:
    """The same weights with every layer limited to sink_len + window.

    Args:
      window: last positions visible, the present one included; 0 is all.
      sink_len: first positions that stay visible.

    Raises:
      ValueError: for negative sizes, or a sink without a window.
    """
    if window < 0 or sink_len < 0 or (sink_len and not window):
      raise ValueError(
        f"window={window}, sink_len={sink_len}: both must be at least 0, and "
        "a sink needs a window beside it"
      )
    windows = (window,) * self.num_layers
    return dataclasses.replace(self, windows=windows, sink_len=sink_len)

  def describe_attention(self) -> str:
    """'full', 'last 512', 'first 4 + last 512', or a count of layer kinds."""
    kinds = sorted(set(self.windows))
    names = [
      f"{f'first {self.sink_len} + ' if self.sink_len else ''}last {window}"
      if window
      else "full"
      for window in kinds
    ]
    if len(names) == 1:
      return names[0]
    counts = [self.windows.count(window) for window in kinds]
    return ", ".join(
      f"{name} x {count}" for name, count in zip(names, counts, strict=True)
    )
