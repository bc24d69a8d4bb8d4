"""config.json to `ModelConfig` and back, by an allow-list of fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from longctx_jax.checkpoints.facts import allow_list, families, rope_schema
from longctx_jax.model.config import ModelConfig

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


def _read(fields: families.Fields) -> ModelConfig:
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
  facts["max_position"] = rope_schema.read_context(
    fields, ropes[0], aliases=family.rope_aliases
  )
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


def _read_facts(
  fields: families.Fields, family: families.Family
) -> dict[str, Any]:
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
  odd = [
    f"{numbers[ours]}={value!r}"
    for ours, value in facts.items()
    if not isinstance(value, int | float) or not math.isfinite(value)
  ]
  if odd:
    raise ValueError(f"{', '.join(odd)}: not a number")
  for ours, theirs in family.nullable.items():
    facts[ours] = fields[theirs] or 0.0
  for ours, theirs in family.flags.items():
    facts[ours] = bool(fields.get(theirs))
  return facts


def _read_activation(fields: families.Fields, name: str) -> str:
  value = fields[name]
  if value not in _ACTIVATIONS:
    raise ValueError(
      f"{name}={value!r} is not supported (supported: "
      f"{', '.join(_ACTIVATIONS)})"
    )
  return _ACTIVATIONS[value]


def doubtful_context(fields: Mapping[str, Any]) -> str:
  """What to say of a context that no field states for certain, or ""."""
  if fields.get("model_type") == "gemma3":
    fields = families.text_fields(fields)
  family = families.FAMILIES[fields["model_type"]]
  # Gemma 3 states its length after the stretch.
  return (
    "" if family.rope_per_layer_type else rope_schema.doubtful_context(fields)
  )


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


def _query_scalar(scale: float) -> float:
  """The s of scale = s ** -0.5, whole where that gives the same scale."""
  scalar = scale**-2
  return round(scalar) if round(scalar) ** -0.5 == scale else scalar
