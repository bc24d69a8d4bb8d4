"""Model facts, read from a checkpoint's config.json and written back.

An allow-list: a field that is not understood and could change the numbers is
an error, so that a new kind of checkpoint cannot be silently wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from longctx_jax.model import rope

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

# Facts that every config.json states, by our name.
_FACTS = {
  "vocab_size": "vocab_size",
  "hidden_size": "embed_dim",
  "num_hidden_layers": "num_layers",
  "num_attention_heads": "num_heads",
  "intermediate_size": "mlp_dim",
  "rms_norm_eps": "norm_eps",
  "max_position_embeddings": "max_position",
}
# Read below, each with its rule.
_READ = {
  "model_type",
  "num_key_value_heads",
  "head_dim",
  "hidden_act",
  "tie_word_embeddings",
  "attention_bias",
  "mlp_bias",
  "rope_theta",
  "rope_scaling",
  "rope_parameters",
  "original_max_position_embeddings",
  "sliding_window",
  "use_sliding_window",
  "max_window_layers",
  "layer_types",
  "quantization_config",
}
# Cannot change a forward pass without dropout.
_HARMLESS = {
  "architectures",
  "attention_dropout",
  "attn_implementation",
  "auto_map",
  "bos_token_id",
  "chunk_size_feed_forward",
  "dtype",
  "eos_token_id",
  "finetuning_task",
  "id2label",
  "initializer_range",
  "is_decoder",
  "is_llama_config",
  "keys_to_ignore_at_inference",
  "label2id",
  "max_length",
  "output_attentions",
  "output_hidden_states",
  "pad_token_id",
  "pretraining_tp",
  "return_dict",
  "rope_interleaved",
  "tokenizer_class",
  "torch_dtype",
  "transformers.js_config",
  "transformers_version",
  "unk_token_id",
  "use_cache",
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
    rope: rotary table.
    tied: the output head is the embedding.
    qkv_bias: query, key and value projections have biases.
    output_bias: the attention's output projection has a bias.
    mlp_bias: the MLP's projections have biases.
    qk_norm: RMSNorm over each head's queries and keys (Qwen3).
    windows: per layer, the number of last positions visible; 0 is all.
    sink_len: first positions that stay visible beside a window.
    softcap: cap on the final logits; 0 is none.
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
  rope: rope.RopeConfig
  tied: bool
  qkv_bias: bool
  output_bias: bool
  mlp_bias: bool
  qk_norm: bool
  windows: tuple[int, ...]
  sink_len: int = 0
  softcap: float = 0.0

  def __post_init__(self):
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_attention_heads={self.num_heads} is not a multiple of "
        f"num_key_value_heads={self.num_kv_heads}"
      )
    if self.head_dim % 2:
      raise ValueError(f"head_dim={self.head_dim}: RoPE needs an even one")
    if len(self.windows) != self.num_layers:
      raise ValueError(
        f"{len(self.windows)} layer types for {self.num_layers} layers"
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
  family = fields.get("model_type", "")
  if family not in MODEL_TYPES:
    raise ValueError(
      f"{source}: model_type {family!r} is not supported (supported: "
      f"{', '.join(MODEL_TYPES)}). Log-probs computed elsewhere can be "
      "evaluated all the same: scripts/eval.py --log_probs"
    )
  if fields.get("quantization_config"):
    method = fields["quantization_config"].get("quant_method", "unknown")
    raise ValueError(
      f"{source}: the checkpoint is quantised ({method}), which is not read. "
      "Use the unquantised checkpoint, a GGUF file, or scripts/eval.py "
      "--log_probs with log-probs computed elsewhere"
    )
  known = _READ | _HARMLESS | set(_FACTS)
  # A field that says "nothing" changes nothing.
  unknown = sorted(
    name
    for name, value in fields.items()
    if name not in known
    and not name.startswith("_")
    and value not in (None, False, "", [], {})
  )
  if unknown:
    raise ValueError(
      f"{source}: fields that are not understood and could change the "
      f"numbers: {', '.join(f'{name}={fields[name]!r}' for name in unknown)}"
    )
  missing = [name for name in (*_FACTS, "hidden_act") if name not in fields]
  if missing:
    raise ValueError(f"{source}: missing {', '.join(missing)}")
  if fields["hidden_act"] != "silu":
    raise ValueError(
      f"{source}: hidden_act={fields['hidden_act']!r}; {family} uses 'silu'"
    )
  facts = {ours: fields[theirs] for theirs, ours in _FACTS.items()}
  heads = facts["num_heads"]
  attention_bias = bool(fields.get("attention_bias") or False)
  return ModelConfig(
    model_type=family,
    **facts,
    num_kv_heads=fields.get("num_key_value_heads") or heads,
    head_dim=fields.get("head_dim") or facts["embed_dim"] // heads,
    rope=_read_rope(fields, source),
    tied=bool(fields.get("tie_word_embeddings") or False),
    qkv_bias=attention_bias or family == "qwen2",
    output_bias=attention_bias,
    mlp_bias=bool(fields.get("mlp_bias") or False),
    qk_norm=family == "qwen3",
    windows=_read_windows(fields, source),
  )


def _read_windows(fields, source):
  """Per-layer windows; null, 0 and use_sliding_window=false are full."""
  num_layers = fields["num_hidden_layers"]
  window = fields.get("sliding_window") or 0
  family = fields["model_type"]
  if family == "mistral":
    if "sliding_window" not in fields:
      raise ValueError(
        f"{source}: sliding_window is missing; Mistral models differ in it "
        "(null is full attention)"
      )
    first = 0
  elif family in ("qwen2", "qwen3"):
    window = window if fields.get("use_sliding_window") else 0
    first = fields.get("max_window_layers") or 0
    if window and "max_window_layers" not in fields:
      raise ValueError(f"{source}: max_window_layers is missing")
  elif window:
    raise ValueError(f"{source}: sliding_window={window} on a {family} model")
  else:
    first = 0
  kinds = fields.get("layer_types")
  if kinds is None:
    return (0,) * min(first, num_layers) + (window,) * (num_layers - first)
  unknown = set(kinds) - {"full_attention", "sliding_attention"}
  if unknown:
    raise ValueError(f"{source}: layer_types {sorted(unknown)} are not known")
  if "sliding_attention" in kinds and not window:
    raise ValueError(
      f"{source}: layer_types has sliding_attention, but sliding_window is "
      f"{fields.get('sliding_window')!r} and use_sliding_window is "
      f"{fields.get('use_sliding_window')!r}"
    )
  return tuple(window if kind != "full_attention" else 0 for kind in kinds)


_ROPE_NAMES = {
  "factor": "factor",
  "low_freq_factor": "low_freq_factor",
  "high_freq_factor": "high_freq_factor",
  "original_max_position_embeddings": "original_max_position",
  "beta_fast": "beta_fast",
  "beta_slow": "beta_slow",
  "attention_factor": "attention_factor",
  "truncate": "truncate",
}


def _read_rope(fields, source):
  """RopeConfig from `rope_parameters`, or `rope_theta` and `rope_scaling`."""
  stated = dict(fields.get("rope_parameters") or {})
  for name, value in (fields.get("rope_scaling") or {}).items():
    if stated.setdefault(name, value) != value:
      raise ValueError(
        f"{source}: rope_scaling[{name!r}]={value!r}, but rope_parameters "
        f"says {stated[name]!r}"
      )
  kinds = {stated.pop(key) for key in ("rope_type", "type") if key in stated}
  if len(kinds) > 1:
    raise ValueError(f"{source}: RoPE types {sorted(kinds)} contradict")
  kind = kinds.pop() if kinds else "default"
  theta = stated.pop("rope_theta", fields.get("rope_theta"))
  if fields.get("rope_theta") not in (None, theta):
    raise ValueError(
      f"{source}: rope_theta is {fields['rope_theta']} and, in "
      f"rope_parameters, {theta}"
    )
  if theta is None:
    # Llama 1 and 2 were published before the field existed, with this base.
    if fields["model_type"] != "llama":
      raise ValueError(f"{source}: rope_theta is missing")
    theta = 10000.0
  if kind == "default":
    # A stale scaling factor beside the default type changes nothing.
    return rope.RopeConfig("default", float(theta))
  stated = {name: value for name, value in stated.items() if value is not None}
  if kind in ("yarn", "llama3"):
    stated.setdefault(
      "original_max_position_embeddings",
      fields.get("original_max_position_embeddings")
      or fields["max_position_embeddings"],
    )
  # Yarn-Mistral and its kin mark a fine-tuned table; the table is the same.
  stated.pop("finetuned", None)
  unknown = sorted(set(stated) - set(_ROPE_NAMES))
  if kind in rope.ROPE_TYPES and unknown:
    raise ValueError(
      f"{source}: RoPE fields {unknown} are not understood for type {kind!r}"
    )
  values = {
    _ROPE_NAMES[name]: value
    for name, value in stated.items()
    if name in _ROPE_NAMES
  }
  if kind == "yarn" and "attention_factor" not in values:
    values["attention_factor"] = rope.yarn_attention_factor(
      values.get("factor", 0.0)
    )
  try:
    return rope.RopeConfig(kind, float(theta), **values)
  except ValueError as error:
    raise ValueError(f"{source}: {error}") from error


def to_hf(config: ModelConfig) -> dict[str, Any]:
  """The fields of a config.json that `from_hf` reads back to `config`.

  Both RoPE schemas are written: transformers before version 5 reads
  `rope_theta` and `rope_scaling` only.

  Raises:
    ValueError: for an attention sink, which no Hugging Face config can state.
  """
  if config.sink_len:
    raise ValueError(
      f"sink_len={config.sink_len} cannot be written to a config.json"
    )
  fields = {
    theirs: getattr(config, ours) for theirs, ours in _FACTS.items()
  } | {
    "model_type": config.model_type,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "hidden_act": "silu",
    "tie_word_embeddings": config.tied,
  }
  if config.model_type != "qwen2":
    fields["attention_bias"] = config.output_bias
  if config.model_type == "llama":
    fields["mlp_bias"] = config.mlp_bias
  window = max(config.windows)
  if config.model_type in ("mistral", "qwen2", "qwen3"):
    fields["sliding_window"] = window or None
  if config.model_type in ("qwen2", "qwen3"):
    fields["use_sliding_window"] = bool(window)
    fields["max_window_layers"] = config.windows.count(0)
    fields["layer_types"] = [
      "sliding_attention" if layer else "full_attention"
      for layer in config.windows
    ]
  table = config.rope
  defaults = rope.RopeConfig("default", table.theta)
  scaling = {
    theirs: getattr(table, ours)
    for theirs, ours in _ROPE_NAMES.items()
    if getattr(table, ours) != getattr(defaults, ours)
  }
  if table.rope_type == "yarn":
    scaling["attention_factor"] = table.attention_factor
  named = {"rope_type": table.rope_type} | scaling
  fields["rope_theta"] = table.theta
  fields["rope_scaling"] = named if table.rope_type != "default" else None
  fields["rope_parameters"] = named | {"rope_theta": table.theta}
  return fields
