"""What sets each model family apart, as rows of data over its config.json.

All families are one decoder. A row says which fields state which facts, what
holds for the family as a whole, and how its windows are written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

Fields = Mapping[str, Any]


Windows = tuple[int, ...]


_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclasses.dataclass(frozen=True)
class Family:
  """A model family.

  Attributes:
    architecture: class name in transformers.
    read_windows: (fields, number of layers) -> windows.
    write_windows: windows -> fields.
    window_fields: what `read_windows` reads.
    facts: our name -> field; every config states it.
    nullable: the same, where null is 0.
    flags: the same, where absent is false.
    constants: facts of ours that no config states.
    neutral: field -> the one value that is understood, beside null.
    harmless: fields that cannot change a forward pass.
    aliases: other names of fields.
    activation_field: the field that names the activation.
    query_field: the field s of which the attention scores are s ** -0.5 times
      the products; "" where s is head_dim.
    scaled_embedding: embeddings are multiplied by hidden_size ** 0.5.
    tied: whether the head is the embedding where no field says so.
    missing_theta: RoPE base of configs older than the field; 0 where none is.
    rope_per_layer_type: layers with a window have a RoPE table of their own.
    rope_aliases: other names of RoPE types.
    original_on_top: the original context stands among the model's own fields.
    partial_rotary: a share of each head may rotate.
    stated_head_dim: head_dim need not be hidden_size / num_attention_heads,
      so that every config states it.
  """

  architecture: str
  read_windows: Callable[[Fields, int], Windows]
  write_windows: Callable[[Windows], dict[str, Any]]
  window_fields: frozenset[str] = frozenset({"sliding_window", "layer_types"})
  facts: Mapping[str, str] = dataclasses.field(default_factory=dict)
  nullable: Mapping[str, str] = dataclasses.field(default_factory=dict)
  flags: Mapping[str, str] = dataclasses.field(default_factory=dict)
  constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  neutral: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  harmless: frozenset[str] = frozenset()
  aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
  activation_field: str = "hidden_act"
  query_field: str = ""
  scaled_embedding: bool = False
  tied: bool = False
  missing_theta: float = 0.0
  rope_per_layer_type: bool = False
  rope_aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
  original_on_top: bool = False
  partial_rotary: bool = False
  stated_head_dim: bool = False


def _need(fields: Fields, name: str, why: str) -> Any:
  if name not in fields:
    raise ValueError(f"{name} is missing; {why}")
  return fields[name]


def _by_type(fields: Fields, window: int) -> Windows:
  """Windows by `layer_types`."""
  kinds = fields["layer_types"]
  unknown = set(kinds) - {_FULL, _SLIDING}
  if unknown:
    raise ValueError(f"layer_types {sorted(unknown)} are not known")
  if _SLIDING in kinds and not window:
    raise ValueError(
      "layer_types has sliding_attention, but sliding_window is "
      f"{fields.get('sliding_window')!r} and use_sliding_window is "
      f"{fields.get('use_sliding_window')!r}"
    )
  return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def _types(windows: Windows) -> list[str]:
  return [_SLIDING if window else _FULL for window in windows]


def _read_none(fields: Fields, num_layers: int) -> Windows:
  if fields.get("sliding_window"):
    raise ValueError(
      f"sliding_window={fields['sliding_window']} on a "
      f"{fields['model_type']} model, which has none"
    )
  return _agreeing(fields, (0,) * num_layers)


def _write_none(windows: Windows) -> dict[str, Any]:
  if any(windows):
    raise ValueError(
      f"windows {windows}: a config.json of the family cannot state any"
    )
  return {}


def _agreeing(fields: Fields, windows: Windows) -> Windows:
  """The windows, unless `layer_types`, which the family ignores, differ."""
  kinds = fields.get("layer_types")
  if kinds is not None and list(kinds) != _types(windows):
    raise ValueError(
      f"layer_types={list(kinds)} on a model whose layers are all "
      f"{_types(windows)[0]} by its other fields"
    )
  return windows


def _read_uniform(fields: Fields, num_layers: int) -> Windows:
  window = _need(
    fields, "sliding_window", "models of the family differ in it (null is full)"
  )
  if window and fields.get("use_sliding_window") is False:
    raise ValueError(
      f"sliding_window={window} beside use_sliding_window=false, which the "
      "family does not have: set sliding_window to null, or remove the other"
    )
  return _agreeing(fields, (window or 0,) * num_layers)


def _write_uniform(windows: Windows) -> dict[str, Any]:
  if len(set(windows)) > 1:
    raise ValueError(
      f"windows {windows}: a config.json of the family states one for all"
    )
  return {"sliding_window": windows[0] or None}


def _read_qwen(fields: Fields, num_layers: int) -> Windows:
  """Full up to max_window_layers; use_sliding_window=false is full."""
  window = fields.get("sliding_window") or 0
  window = window if fields.get("use_sliding_window") else 0
  if fields.get("layer_types") is not None:
    return _by_type(fields, window)
  if not window:
    return (0,) * num_layers
  first = _need(fields, "max_window_layers", "it says which layers are full")
  first = min(first, num_layers)
  return (0,) * first + (window,) * (num_layers - first)


def _write_qwen(windows: Windows) -> dict[str, Any]:
  return {
    "sliding_window": max(windows) or None,
    "use_sliding_window": any(windows),
    "max_window_layers": windows.count(0),
    "layer_types": _types(windows),
  }


def _read_qwen_moe(fields: Fields, num_layers: int) -> Windows:
  """All layers or none: transformers reads no max_window_layers here."""
  if not fields.get("use_sliding_window"):
    return _agreeing(fields, (0,) * num_layers)
  if fields.get("max_window_layers"):
    raise ValueError(
      f"max_window_layers={fields['max_window_layers']} beside "
      "use_sliding_window=true: transformers ignores it on this family, "
      "others do not"
    )
  return _read_uniform(fields, num_layers)


def _write_qwen_moe(windows: Windows) -> dict[str, Any]:
  return _write_uniform(windows) | {"use_sliding_window": any(windows)}


def _read_gemma2(fields: Fields, num_layers: int) -> Windows:
  """Every second layer has a window, the first one of them."""
  window = _need(fields, "sliding_window", "every second layer has it")
  older = fields.get("sliding_window_size")
  if older not in (None, window):
    raise ValueError(
      f"sliding_window={window}, but sliding_window_size={older}"
    )
  if fields.get("layer_types") is not None:
    return _by_type(fields, window or 0)
  return tuple(0 if layer % 2 else window or 0 for layer in range(num_layers))


def _read_gemma3(fields: Fields, num_layers: int) -> Windows:
  """Every `sliding_window_pattern`-th layer is full."""
  window = _need(fields, "sliding_window", "most layers have it") or 0
  if fields.get("layer_types") is not None:
    return _by_type(fields, window)
  if "_sliding_window_pattern" in fields:
    pattern = fields["_sliding_window_pattern"]
  else:
    pattern = _need(
      fields, "sliding_window_pattern", "it says which layers are full"
    )
  return tuple(
    0 if (layer + 1) % pattern == 0 else window for layer in range(num_layers)
  )


def _write_types(windows: Windows) -> dict[str, Any]:
  return {
    "sliding_window": max(windows) or None,
    "layer_types": _types(windows),
  }


_ROUTING = frozenset(
  {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"}
)


_QWEN_FIELDS = frozenset(
  {"sliding_window", "layer_types", "use_sliding_window", "max_window_layers"}
)


_QWEN = Family(
  architecture="Qwen2ForCausalLM",
  read_windows=_read_qwen,
  write_windows=_write_qwen,
  window_fields=_QWEN_FIELDS,
)


_GEMMA = Family(
  architecture="Gemma2ForCausalLM",
  read_windows=_read_gemma2,
  write_windows=_write_types,
  window_fields=frozenset(
    {"sliding_window", "layer_types", "sliding_window_size"}
  ),
  nullable={
    "softcap": "final_logit_softcapping",
    "attention_softcap": "attn_logit_softcapping",
  },
  flags={"output_bias": "attention_bias"},
  constants={"norm_plus_one": True, "post_norms": True},
  harmless=frozenset({"cache_implementation"}),
  activation_field="hidden_activation",
  query_field="query_pre_attn_scalar",
  scaled_embedding=True,
  tied=True,
  stated_head_dim=True,
)


FAMILIES = {
  # Llama 1 to 3.x, Yi, CodeLlama, SmolLM.
  "llama": Family(
    architecture="LlamaForCausalLM",
    read_windows=_read_none,
    write_windows=_write_none,
    flags={"output_bias": "attention_bias", "mlp_bias": "mlp_bias"},
    # Llama 1 and 2 were published before the field existed, with this base.
    missing_theta=10000.0,
  ),
  "mistral": Family(
    architecture="MistralForCausalLM",
    read_windows=_read_uniform,
    write_windows=_write_uniform,
  ),
  "mixtral": Family(
    architecture="MixtralForCausalLM",
    read_windows=_read_uniform,
    write_windows=_write_uniform,
    facts={
      "num_experts": "num_local_experts",
      "experts_per_token": "num_experts_per_tok",
      "expert_dim": "intermediate_size",
    },
    constants={"norm_topk": True},
    harmless=_ROUTING,
  ),
  # Qwen 1.5, 2 and 2.5.
  "qwen2": dataclasses.replace(_QWEN, constants={"qkv_bias": True}),
  "qwen3": dataclasses.replace(
    _QWEN,
    architecture="Qwen3ForCausalLM",
    flags={"output_bias": "attention_bias"},
    constants={"qk_norm": True},
    stated_head_dim=True,
  ),
  "qwen3_moe": Family(
    architecture="Qwen3MoeForCausalLM",
    read_windows=_read_qwen_moe,
    write_windows=_write_qwen_moe,
    window_fields=_QWEN_FIELDS,
    facts={
      "num_experts": "num_experts",
      "experts_per_token": "num_experts_per_tok",
      "expert_dim": "moe_intermediate_size",
      "norm_topk": "norm_topk_prob",
    },
    flags={"output_bias": "attention_bias"},
    constants={"qk_norm": True},
    # Other values leave layers without experts: shapes would differ.
    neutral={"decoder_sparse_step": 1, "mlp_only_layers": []},
    harmless=_ROUTING,
    aliases={"num_local_experts": "num_experts"},
  ),
  # Phi-3, 3.5 and 4 (dense).
  "phi3": Family(
    architecture="Phi3ForCausalLM",
    read_windows=_read_uniform,
    write_windows=_write_uniform,
    neutral={"full_attn_mod": 1, "interpolate_factor": 1},
    harmless=frozenset({"embd_pdrop", "resid_pdrop"}),
    rope_aliases={"su": "longrope", "yarn": "longrope"},
    original_on_top=True,
    partial_rotary=True,
  ),
  "gemma2": _GEMMA,
  "gemma3_text": dataclasses.replace(
    _GEMMA,
    architecture="Gemma3ForCausalLM",
    read_windows=_read_gemma3,
    window_fields=frozenset(
      {"sliding_window", "layer_types", "sliding_window_pattern"}
    ),
    constants={**_GEMMA.constants, "qk_norm": True},
    rope_per_layer_type=True,
  ),
}


# A `gemma3` checkpoint sees images; its text model is that of gemma3_text. Its
# text_config was published as the difference from these values of the class
# Gemma3TextConfig, and means nothing without them.
_GEMMA3_CLASS = {
  "vocab_size": 262208,
  "hidden_size": 2304,
  "intermediate_size": 9216,
  "num_hidden_layers": 26,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 256,
  "hidden_activation": "gelu_pytorch_tanh",
  "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-6,
  "query_pre_attn_scalar": 256,
  "sliding_window": 4096,
  "final_logit_softcapping": None,
  "attn_logit_softcapping": None,
}


_GEMMA3_CLASS_OLD = {
  "rope_parameters": {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
  "layer_types": {"sliding_window_pattern": 6},
}


GEMMA3_OUTER = frozenset(
  {
    "model_type",
    "text_config",
    "vision_config",
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "tie_word_embeddings",
    "quantization_config",
  }
)


def text_fields(fields: Fields) -> dict[str, Any]:
  """The text model's fields of a `gemma3` config."""
  text = dict(fields.get("text_config") or {})
  found = dict(_GEMMA3_CLASS)
  for newer, older in _GEMMA3_CLASS_OLD.items():
    if newer not in text:
      found |= older
  for name in ("tie_word_embeddings", "quantization_config"):
    if name in fields:
      found[name] = fields[name]
  return found | text | {"model_type": "gemma3_text"}
