"""Model facts, read from a checkpoint's config.json and written back.

An allow-list: a field that is not understood and could change the numbers is
an error, so that a new kind of checkpoint cannot be silently wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from longctx_jax.model import allow_list, families, rope_schema
from longctx_jax.model.rope import RopeConfig

MODEL_TYPES = (*families.FAMILIES, "gemma3")
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# Facts that every config.json states: our name -> field.
_FACTS = {
  "vocab_size": "vocab_size",
  "embed_dim": "hidden_size",
  "num_layers": "num_hidden_layers",
  "num_heads": "num_attention_heads",
  "mlp_dim": "intermediate_size",
  "norm_eps": "rms_norm_eps",
  "max_position": "max_position_embeddings",
}
# Read below or in `families`, each with its rule, whatever the family.
_READ = {
  "model_type",
  "num_key_value_heads",
  "head_dim",
  "hidden_act",
  "tie_word_embeddings",
  "quantization_config",
  *rope_schema.FIELDS,
}


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


def from_hf(fields: Mapping[str, Any], *, source: str) -> ModelConfig:
  """Reads the fields of a config.json, old and new schema.

  Args:
    fields: the parsed file.
    source: its name, for messages.

  Raises:
    ValueError: for an unsupported family or quantisation, a missing fact, or
      a field that is not understood and could change the numbers.
  """
  try:
    return _read(fields)
  except ValueError as error:
    raise ValueError(f"{source}: {error}") from error


def _read(fields):
  name = fields.get("model_type")
  if name not in MODEL_TYPES:
    raise ValueError(
      f"model_type {name!r} is not supported (supported: "
      f"{', '.join(MODEL_TYPES)}). Log-probs computed elsewhere can be "
      "evaluated all the same: scripts/eval.py --log_probs"
    )
  if name == "gemma3":
    known = families.GEMMA3_OUTER | allow_list.HARMLESS
    allow_list.refuse_unknown(fields, known, {})
    fields = families.text_fields(fields)
    name = "gemma3_text"
  family = families.FAMILIES[name]
  fields = {family.aliases.get(key, key): fields[key] for key in fields}
  if fields.get("quantization_config"):
    method = fields["quantization_config"].get("quant_method") or "unknown"
    raise ValueError(
      f"the checkpoint is quantised ({method}), which is not read. Use the "
      "unquantised checkpoint, a GGUF file, or scripts/eval.py --log_probs "
      "with log-probs computed elsewhere"
    )
  facts = _read_facts(fields, family)
  windows = family.read_windows(fields, facts["num_layers"])
  ropes = rope_schema.read_ropes(
    fields,
    per_layer_type=family.rope_per_layer_type,
    missing_theta=family.missing_theta,
    aliases=family.rope_aliases,
  )
  if not family.partial_rotary and any(t.rotary_share != 1 for t in ropes):
    share = ropes[0].rotary_share
    raise ValueError(f"partial_rotary_factor={share} on a {name} model")
  if len(ropes) > 1:
    facts["rope_kinds"] = tuple(int(window > 0) for window in windows)
  if family.query_field:
    facts["query_scale"] = fields[family.query_field] ** -0.5
  if family.scaled_embedding:
    facts["embed_scale"] = facts["embed_dim"] ** 0.5
  tied = fields.get("tie_word_embeddings")
  absent = dict.fromkeys(("output_bias", "mlp_bias", "qk_norm"), False)
  facts = absent | facts | family.constants
  return ModelConfig(
    model_type=name,
    **{"qkv_bias": facts["output_bias"]} | facts,
    num_kv_heads=fields.get("num_key_value_heads") or facts["num_heads"],
    head_dim=fields.get("head_dim") or facts["embed_dim"] // facts["num_heads"],
    activation=_read_activation(fields, family.activation_field),
    ropes=ropes,
    tied=family.tied if tied is None else bool(tied),
    windows=windows,
  )


def _read_facts(fields, family):
  """What stands in a field of its own, by our names."""
  numbers = _FACTS | family.facts
  needed = {*numbers.values(), family.activation_field}
  needed |= {family.query_field} if family.query_field else set()
  needed |= {"head_dim"} if family.stated_head_dim else set()
  nullable = set(family.nullable.values())
  known = needed | nullable | set(family.flags.values()) | _READ
  known |= allow_list.HARMLESS | family.harmless | family.window_fields
  allow_list.refuse_unknown(fields, known, family.neutral)
  missing = {name for name in needed if fields.get(name) is None}
  missing |= nullable - set(fields)
  if missing:
    raise ValueError(f"missing {', '.join(sorted(missing))}")
  facts = {ours: fields[theirs] for ours, theirs in numbers.items()}
  for ours, theirs in family.nullable.items():
    facts[ours] = fields[theirs] or 0.0
  for ours, theirs in family.flags.items():
    facts[ours] = bool(fields.get(theirs))
  return facts


def _read_activation(fields, name):
  value = fields[name]
  if value not in _ACTIVATIONS:
    raise ValueError(
      f"{name}={value!r} is not supported (supported: "
      f"{', '.join(_ACTIVATIONS)})"
    )
  return _ACTIVATIONS[value]


def to_hf(config: ModelConfig) -> dict[str, Any]:
  """The fields of a config.json that `from_hf` reads back to `config`.

  Both RoPE schemas are written, since transformers before version 5 reads
  `rope_theta` and `rope_scaling` only; a table per layer type (Gemma 3) fits
  the new schema alone.

  Raises:
    ValueError: for what no config.json of the family can state: an attention
      sink, or windows that its layers cannot have.
  """
  if config.sink_len:
    raise ValueError(
      f"sink_len={config.sink_len} cannot be written to a config.json"
    )
  family = families.FAMILIES[config.model_type]
  numbers = _FACTS | family.facts | family.flags
  fields = {theirs: getattr(config, ours) for ours, theirs in numbers.items()}
  for ours, theirs in family.nullable.items():
    fields[theirs] = getattr(config, ours) or None
  names = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
  fields |= {
    "architectures": [family.architecture],
    "model_type": config.model_type,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    family.activation_field: names[config.activation],
    "tie_word_embeddings": config.tied,
    **family.neutral,
    **family.write_windows(config.windows),
  }
  if family.query_field:
    fields[family.query_field] = _query_scalar(config.query_scale)
  return fields | rope_schema.write_ropes(
    config.ropes,
    max_position=config.max_position,
    original_on_top=family.original_on_top,
  )


def _query_scalar(scale):
  """The s of scale = s ** -0.5, whole where that gives the same scale."""
  scalar = scale**-2
  return round(scalar) if round(scalar) ** -0.5 == scale else scalar
