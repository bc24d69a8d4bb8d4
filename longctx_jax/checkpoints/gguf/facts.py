"""The facts of a GGUF file, in the form of a config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

Fields = Mapping[str, Any]

ARCHITECTURES = (
  "llama",
  "qwen2",
  "qwen3",
  "qwen3moe",
  "gemma2",
  "gemma3",
  "phi3",
)


# Hugging Face names of those that differ.
_MODEL_TYPES = {"qwen3moe": "qwen3_moe", "gemma3": "gemma3_text"}


_GEMMA = ("gemma2", "gemma3")
# Keys behind the architecture's name, and the fields of a config.json.
_FACTS = {
  "embedding_length": "hidden_size",
  "feed_forward_length": "intermediate_size",
  "block_count": "num_hidden_layers",
  "attention.head_count": "num_attention_heads",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "context_length": "max_position_embeddings",
}


_YARN = {
  "rope.scaling.original_context_length": "original_max_position_embeddings",
  "rope.scaling.yarn_beta_fast": "beta_fast",
  "rope.scaling.yarn_beta_slow": "beta_slow",
}


# Read by name below, or without influence on the numbers.
_OTHERS = {
  "attention.head_count_kv",
  "attention.key_length",
  "attention.value_length",
  "attention.sliding_window",
  "rope.dimension_count",
  "rope.freq_base",
  "rope.scaling.type",
  "rope.scaling.factor",
  "rope.scaling.finetuned",
  "tensor_data_layout",
  "vocab_size",
}


_OWN = {
  "llama": {"expert_count", "expert_used_count"},
  "qwen3moe": {
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
  },
  "gemma2": {"attn_logit_softcapping", "final_logit_softcapping"},
  "gemma3": {"final_logit_softcapping", "rope.freq_base_swa"},
  "phi3": {"rope.scaling.attn_factor"},
}


_NEUTRAL = {
  "attention.causal": True,
  "rope.scaling.yarn_ext_factor": 1.0,
  "expert_count": 0,
  "expert_used_count": 0,
}


# What llama.cpp, whose format this is, computes for an architecture without
# the file saying so: the period of full attention, and the largest model, whose
# queries are scaled by the mean width of a head.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6}


_LARGEST = {"gemma2": 46, "gemma3": 62}


_LOCAL_ROPE_BASE = 10000.0


def need(fields: Fields, key: str) -> Any:
  """The field.

  Raises:
    ValueError: where it is missing.
  """
  if key not in fields:
    raise ValueError(f"{key} is missing")
  return fields[key]


def read_family(fields: Fields) -> str:
  """The architecture of a file.

  Raises:
    ValueError: for one that is not supported, or a part of a split file.
  """
  family = fields.get("general.architecture")
  if family not in ARCHITECTURES:
    raise ValueError(
      f"architecture {family!r} is not supported (supported: "
      f"{', '.join(ARCHITECTURES)}); use the safetensors checkpoint"
    )
  if (fields.get("split.count") or 1) > 1:
    raise ValueError(
      f"one of {fields['split.count']} parts; join them with "
      "llama-gguf-split --merge"
    )
  return family


def is_mixture(family: str, fields: Fields) -> bool:
  """Whether the MLPs are routed experts."""
  return bool(fields.get(f"{family}.expert_count"))


def read_config(
  family: str,
  fields: Fields,
  shapes: Mapping[str, tuple[int, ...]],
  rope_tables: Mapping[str, np.ndarray],
) -> dict[str, Any]:
  """The facts in the form of a config.json.

  Args:
    family: the architecture.
    fields: metadata of the file.
    shapes: Hugging Face tensor name -> shape.
    rope_tables: factors of rotary frequencies stored as tensors, by name.

  Raises:
    ValueError: for a fact that is missing, contradicts another, or is not
      understood and could change the numbers.
  """
  facts = _known_facts(family, fields)
  config = {theirs: need(facts, key) for key, theirs in _FACTS.items()}
  heads = config["num_attention_heads"]
  head_dim, rotary = _head_sizes(family, facts, config["hidden_size"] // heads)
  config |= {
    "model_type": _MODEL_TYPES.get(family, family),
    "num_key_value_heads": facts.get("attention.head_count_kv") or heads,
    "head_dim": head_dim,
    "vocab_size": need(shapes, "model.embed_tokens.weight")[0],
    "tie_word_embeddings": "lm_head.weight" not in shapes,
    "rope_parameters": _rope(facts, rope_tables, head_dim),
  }
  if family in _GEMMA:
    config |= _gemma(family, facts, config)
  elif family == "phi3":
    config |= _phi3(facts, rope_tables, config, rotary)
  else:
    config |= _llama_like(family, facts, shapes, config["model_type"])
  return config | {
    name: fields[f"tokenizer.ggml.{name}"]
    for name in ("bos_token_id", "eos_token_id")
    if f"tokenizer.ggml.{name}" in fields
  }


def _known_facts(family: str, fields: Fields) -> Fields:
  """The architecture's own fields, without its name in front."""
  facts = {
    key.removeprefix(f"{family}."): value
    for key, value in fields.items()
    if key.startswith(f"{family}.")
  }
  known = {*_FACTS, *_YARN, *_OTHERS, *_OWN.get(family, ())}
  for key, value in facts.items():
    if isinstance(value, np.ndarray | list):
      raise ValueError(f"{family}.{key} differs between layers")
    if key not in known and (key not in _NEUTRAL or value != _NEUTRAL[key]):
      raise ValueError(
        f"{family}.{key}={value} is not understood and could change the "
        "numbers; use the safetensors checkpoint"
      )
  return facts


def _head_sizes(family: str, facts: Fields, usual: int) -> tuple[int, int]:
  """Dimensions of a head, and how many of them rotate."""
  head_dim = facts.get("attention.key_length") or usual
  if facts.get("attention.value_length") not in (None, head_dim):
    raise ValueError(
      f"{family}.attention.value_length={facts['attention.value_length']}, "
      f"but head_dim={head_dim}"
    )
  rotary = facts.get("rope.dimension_count") or head_dim
  if rotary != head_dim and family != "phi3":
    raise ValueError(
      f"{family}.rope.dimension_count={rotary}, but head_dim={head_dim}"
    )
  return head_dim, rotary


def _llama_like(
  family: str,
  facts: Fields,
  shapes: Mapping[str, tuple[int, ...]],
  model_type: str,
) -> dict[str, Any]:
  """Llama, Mistral, Mixtral and Qwen, which their tensors tell apart."""
  config = {"hidden_act": "silu", "model_type": model_type}
  if family in ("llama", "qwen3moe") and facts.get("expert_count"):
    config |= _mixture(family, facts)
  elif family == "llama":
    layer = "model.layers.0."
    config["attention_bias"] = f"{layer}self_attn.q_proj.bias" in shapes
    config["mlp_bias"] = f"{layer}mlp.gate_proj.bias" in shapes
  return config | _window(family, facts, config["model_type"])


def _window(family: str, facts: Fields, model_type: str) -> dict[str, Any]:
  window = facts.get("attention.sliding_window")
  if model_type == "mixtral":
    return {"sliding_window": window or None}
  if not window:
    return {}
  if family != "llama":
    raise ValueError(
      f"{family}.attention.sliding_window={window}: the file does not state "
      "which layers have it; use the safetensors checkpoint"
    )
  return {"model_type": "mistral", "sliding_window": window}


def _mixture(family: str, facts: Fields) -> dict[str, Any]:
  config = {"num_experts_per_tok": need(facts, "expert_used_count")}
  if family == "llama":
    config["model_type"] = "mixtral"
    config["num_local_experts"] = facts["expert_count"]
    return config
  return config | {
    "num_experts": facts["expert_count"],
    "moe_intermediate_size": need(facts, "expert_feed_forward_length"),
    "norm_topk_prob": True,  # As llama.cpp computes the architecture.
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
  }


def _gemma(family: str, facts: Fields, config: Fields) -> dict[str, Any]:
  layers, every = config["num_hidden_layers"], _FULL_EVERY[family]
  scalar = config["head_dim"]
  if layers == _LARGEST[family]:
    scalar = config["hidden_size"] // config["num_attention_heads"]
  rope = config["rope_parameters"]
  if family == "gemma2":
    rope.setdefault("rope_theta", _LOCAL_ROPE_BASE)
  else:
    local = facts.get("rope.freq_base_swa") or _LOCAL_ROPE_BASE
    rope = {
      "full_attention": rope,
      "sliding_attention": {"rope_type": "default", "rope_theta": local},
    }
  return {
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "query_pre_attn_scalar": scalar,
    "attn_logit_softcapping": facts.get("attn_logit_softcapping"),
    "final_logit_softcapping": facts.get("final_logit_softcapping"),
    "sliding_window": need(facts, "attention.sliding_window"),
    "layer_types": [
      "sliding_attention" if (layer + 1) % every else "full_attention"
      for layer in range(layers)
    ],
    "rope_parameters": rope,
  }


def _phi3(
  facts: Fields,
  rope_tables: Mapping[str, np.ndarray],
  config: Fields,
  rotary: int,
) -> dict[str, Any]:
  original = facts.get("rope.scaling.original_context_length")
  rope = dict(config["rope_parameters"])
  if rope_tables:
    rope |= {
      "rope_type": "longrope",
      "long_factor": need(rope_tables, "rope_factors_long").tolist(),
      "short_factor": need(rope_tables, "rope_factors_short").tolist(),
      "attention_factor": need(facts, "rope.scaling.attn_factor"),
    }
    need(facts, "rope.scaling.original_context_length")
  rope["partial_rotary_factor"] = rotary / config["head_dim"]
  return {
    "hidden_act": "silu",
    "rope_parameters": rope,
    "original_max_position_embeddings": original
    or config["max_position_embeddings"],
    "sliding_window": facts.get("attention.sliding_window") or None,
  }


def _rope(
  facts: Fields, rope_tables: Mapping[str, np.ndarray], head_dim: int
) -> dict[str, Any]:
  """`rope_parameters`, without a base where the file states none."""
  factor = facts.get("rope.scaling.factor")
  kind = facts.get("rope.scaling.type") or ("linear" if factor else "none")
  if kind not in ("none", "linear", "yarn"):
    raise ValueError(
      f"RoPE scaling {kind!r} is not supported (supported: none, linear, "
      "yarn); use the safetensors checkpoint"
    )
  rope = {"rope_type": "default" if kind == "none" else kind}
  if "rope.freq_base" in facts:
    rope["rope_theta"] = facts["rope.freq_base"]
  if "rope_freqs" in rope_tables:
    if kind != "none":
      raise ValueError(f"rope_freqs.weight beside RoPE scaling {kind!r}")
    theta = need(facts, "rope.freq_base")
    return rope | _llama3(rope_tables["rope_freqs"], theta, head_dim)
  if kind != "none":
    rope["factor"] = need(facts, "rope.scaling.factor")
  if kind == "yarn":
    need(facts, "rope.scaling.original_context_length")
    rope |= {_YARN[key]: facts[key] for key in _YARN if key in facts}
  return rope


def _llama3(
  stored: Float[np.ndarray, " pairs"], theta: float, head_dim: int
) -> dict[str, Any]:
  """The llama3 parameters whose factors a file stores instead of them.

  Llama 3.1 to 3.3 have the frequency factors 1 and 4 and an original context
  of 8,192, and differ in the factor, which is the largest of the table. That
  the whole table follows is checked.

  Raises:
    ValueError: where it does not.
  """
  low, high, original = 1.0, 4.0, 8192
  factor = float(stored.max())
  exponent = np.arange(0, head_dim, 2) / head_dim
  wavelength = 2 * math.pi * theta**exponent
  smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
  expected = 1 / ((1 - smooth) / factor + smooth)
  if stored.shape != expected.shape or not np.allclose(
    stored, expected, rtol=1e-4
  ):
    raise ValueError(
      "rope_freqs.weight is not the table of Llama 3.1 to 3.3, and the file "
      "does not state the parameters of another; use the safetensors checkpoint"
    )
  return {
    "rope_type": "llama3",
    "factor": factor,
    "low_freq_factor": low,
    "high_freq_factor": high,
    "original_max_position_embeddings": original,
  }
