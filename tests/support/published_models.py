"""Fields of config.json files as published, and the size of the weights.

Every field that could change a number is here; of the factors of longrope, how
many there are. The number of parameters is that of the published weights.
"""

import copy

import numpy as np

from longctx_jax.checkpoints.facts import config_json, published
from longctx_jax.model.config import ModelConfig

_LLAMA = {
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_act": "silu",
  "initializer_range": 0.02,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-05,
  "rope_scaling": None,
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.33.1",
  "use_cache": True,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
# What the package knows of a model, and what else the published file states.
_LLAMA2_7B = _LLAMA | published.FIELDS["meta-llama/Llama-2-7b-hf"]
_LLAMA3 = (
  _LLAMA
  | published.FIELDS["meta-llama/Llama-3.1-8B"]
  | {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "mlp_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
  }
)
_MISTRAL_7B = published.FIELDS["mistralai/Mistral-7B-v0.1"] | {
  "architectures": ["MistralForCausalLM"],
  "bos_token_id": 1,
  "eos_token_id": 2,
  "initializer_range": 0.02,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.34.0.dev0",
  "use_cache": True,
}
_QWEN2 = {
  "architectures": ["Qwen2ForCausalLM"],
  "model_type": "qwen2",
  "attention_dropout": 0.0,
  "bos_token_id": 151643,
  "eos_token_id": 151643,
  "hidden_act": "silu",
  "initializer_range": 0.02,
  "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0,
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.40.1",
  "use_cache": True,
  "use_sliding_window": False,
}
_QWEN3 = _QWEN2 | {
  "architectures": ["Qwen3ForCausalLM"],
  "model_type": "qwen3",
  "attention_bias": False,
  "head_dim": 128,
  "max_position_embeddings": 40960,
  "rope_scaling": None,
  "sliding_window": None,
  "vocab_size": 151936,
}
_PHI3_MINI = {
  "architectures": ["Phi3ForCausalLM"],
  "model_type": "phi3",
  "attention_bias": False,
  "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
  "bos_token_id": 1,
  "embd_pdrop": 0.0,
  "eos_token_id": 32000,
  "hidden_act": "silu",
  "hidden_size": 3072,
  "initializer_range": 0.02,
  "intermediate_size": 8192,
  "max_position_embeddings": 131072,
  "num_attention_heads": 32,
  "num_hidden_layers": 32,
  "num_key_value_heads": 32,
  "original_max_position_embeddings": 4096,
  "pad_token_id": 32000,
  "resid_pdrop": 0.0,
  "rms_norm_eps": 1e-05,
  "rope_scaling": {"long_factor": 48, "short_factor": 48, "type": "longrope"},
  "rope_theta": 10000.0,
  "sliding_window": 262144,
  "tie_word_embeddings": False,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.40.2",
  "use_cache": True,
  "vocab_size": 32064,
}
_GEMMA2 = {
  "architectures": ["Gemma2ForCausalLM"],
  "model_type": "gemma2",
  "attention_bias": False,
  "attention_dropout": 0.0,
  "attn_logit_softcapping": 50.0,
  "bos_token_id": 2,
  "cache_implementation": "hybrid",
  "eos_token_id": 1,
  "final_logit_softcapping": 30.0,
  "head_dim": 256,
  "hidden_act": "gelu_pytorch_tanh",
  "hidden_activation": "gelu_pytorch_tanh",
  "initializer_range": 0.02,
  "max_position_embeddings": 8192,
  "pad_token_id": 0,
  "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0,
  "sliding_window": 4096,
  "torch_dtype": "float32",
  "transformers_version": "4.42.4",
  "use_cache": True,
  "vocab_size": 256000,
}

# name -> (parameters, fields)
MODELS = {
  "Llama-2-7b-hf": (6_738_415_616, _LLAMA2_7B | {"pad_token_id": 0}),
  "Llama-2-13b-hf": (
    13_015_864_320,
    _LLAMA | published.FIELDS["meta-llama/Llama-2-13b-hf"],
  ),
  "CodeLlama-7b-hf": (
    6_738_546_688,
    _LLAMA2_7B
    | {
      "max_position_embeddings": 16384,
      "rope_theta": 1000000,
      "vocab_size": 32016,
    },
  ),
  "Yarn-Llama-2-7b-64k": (
    6_738_415_616,
    _LLAMA2_7B
    | {
      "auto_map": {"AutoConfig": "configuration_llama.LlamaConfig"},
      "max_position_embeddings": 65536,
      "rope_scaling": {
        "factor": 16.0,
        "finetuned": True,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
      },
    },
  ),
  "Yi-6B-200K": (
    6_061_035_520,
    _LLAMA
    | {
      "vocab_size": 64000,
      "hidden_size": 4096,
      "intermediate_size": 11008,
      "max_position_embeddings": 200000,
      "num_attention_heads": 32,
      "num_hidden_layers": 32,
      "num_key_value_heads": 4,
      "rope_theta": 10000000.0,
      "pad_token_id": 0,
    },
  ),
  "Llama-3.1-8B": (8_030_261_248, _LLAMA3),
  "Llama-3.2-1B": (
    1_235_814_400,
    _LLAMA3
    | {
      "head_dim": 64,
      "hidden_size": 2048,
      "intermediate_size": 8192,
      "num_attention_heads": 32,
      "num_hidden_layers": 16,
      "num_key_value_heads": 8,
      "rope_scaling": _LLAMA3["rope_scaling"] | {"factor": 32.0},
      "tie_word_embeddings": True,
    },
  ),
  "SmolLM2-135M": (
    134_515_008,
    _LLAMA
    | published.FIELDS["HuggingFaceTB/SmolLM2-135M"]
    | {"is_llama_config": True, "rope_interleaved": False},
  ),
  "Mistral-7B-v0.1": (7_241_732_096, _MISTRAL_7B),
  "FILM-7B": (
    7_241_732_096,
    _MISTRAL_7B
    | {
      "attention_dropout": 0.0,
      "rope_theta": 1000000.0,
      "sliding_window": None,
    },
  ),
  "Yarn-Mistral-7b-128k": (
    7_241_732_096,
    _MISTRAL_7B
    | {
      "auto_map": {"AutoConfig": "configuration_mistral.MistralConfig"},
      "max_sequence_length": 131072,
      "rope_scaling": {
        "factor": 16.0,
        "finetuned": True,
        "original_max_position_embeddings": 8192,
        "type": "yarn",
      },
      "sliding_window": 131072,
    },
  ),
  "Mistral-Large-Instruct-2407": (
    122_610_069_504,
    _MISTRAL_7B
    | {
      "attention_dropout": 0.0,
      "head_dim": 128,
      "hidden_size": 12288,
      "intermediate_size": 28672,
      "max_position_embeddings": 131072,
      "num_attention_heads": 96,
      "num_hidden_layers": 88,
      "rope_theta": 1000000.0,
      "sliding_window": None,
      "vocab_size": 32768,
    },
  ),
  "Mixtral-8x7B-Instruct-v0.1": (
    46_702_792_704,
    _MISTRAL_7B
    | {
      "architectures": ["MixtralForCausalLM"],
      "model_type": "mixtral",
      "attention_dropout": 0.0,
      "num_experts_per_tok": 2,
      "num_local_experts": 8,
      "output_router_logits": False,
      "rope_theta": 1000000.0,
      "router_aux_loss_coef": 0.02,
      "sliding_window": None,
    },
  ),
  "Qwen1.5-14B": (
    14_167_290_880,
    _QWEN2
    | {
      "hidden_size": 5120,
      "intermediate_size": 13696,
      "max_position_embeddings": 32768,
      "max_window_layers": 35,
      "num_attention_heads": 40,
      "num_hidden_layers": 40,
      "num_key_value_heads": 40,
      "sliding_window": 32768,
      "vocab_size": 152064,
    },
  ),
  "Qwen2-7B": (
    7_615_616_512,
    _QWEN2
    | {
      "hidden_size": 3584,
      "intermediate_size": 18944,
      "max_position_embeddings": 131072,
      "max_window_layers": 28,
      "num_attention_heads": 28,
      "num_hidden_layers": 28,
      "num_key_value_heads": 4,
      "sliding_window": 131072,
      "vocab_size": 152064,
    },
  ),
  "Qwen2-72B-Instruct": (
    72_706_203_648,
    _QWEN2
    | {
      "hidden_size": 8192,
      "intermediate_size": 29568,
      "max_position_embeddings": 32768,
      "max_window_layers": 80,
      "num_attention_heads": 64,
      "num_hidden_layers": 80,
      "num_key_value_heads": 8,
      "sliding_window": 131072,
      "vocab_size": 152064,
    },
  ),
  "Qwen2.5-0.5B": (
    494_032_768,
    _QWEN2
    | {
      "hidden_size": 896,
      "intermediate_size": 4864,
      "max_position_embeddings": 32768,
      "max_window_layers": 24,
      "num_attention_heads": 14,
      "num_hidden_layers": 24,
      "num_key_value_heads": 2,
      "sliding_window": 32768,
      "tie_word_embeddings": True,
      "use_mrope": False,
      "vocab_size": 151936,
    },
  ),
  "Qwen3-0.6B": (
    596_049_920,
    _QWEN3
    | {
      "hidden_size": 1024,
      "intermediate_size": 3072,
      "max_window_layers": 28,
      "num_attention_heads": 16,
      "num_hidden_layers": 28,
      "num_key_value_heads": 8,
      "tie_word_embeddings": True,
    },
  ),
  "Qwen3-8B": (
    8_190_735_360,
    _QWEN3
    | {
      "hidden_size": 4096,
      "intermediate_size": 12288,
      "max_window_layers": 36,
      "num_attention_heads": 32,
      "num_hidden_layers": 36,
      "num_key_value_heads": 8,
    },
  ),
  "Qwen3-30B-A3B": (
    30_532_122_624,
    _QWEN3
    | {
      "architectures": ["Qwen3MoeForCausalLM"],
      "model_type": "qwen3_moe",
      "decoder_sparse_step": 1,
      "hidden_size": 2048,
      "intermediate_size": 6144,
      "max_window_layers": 48,
      "mlp_only_layers": [],
      "moe_intermediate_size": 768,
      "norm_topk_prob": True,
      "num_attention_heads": 32,
      "num_experts": 128,
      "num_experts_per_tok": 8,
      "num_hidden_layers": 48,
      "num_key_value_heads": 4,
      "output_router_logits": False,
      "router_aux_loss_coef": 0.001,
    },
  ),
  "Phi-3-mini-128k-instruct": (3_821_079_552, _PHI3_MINI),
  "Phi-3-mini-4k-instruct": (
    3_821_079_552,
    _PHI3_MINI
    | {
      "max_position_embeddings": 4096,
      "rope_scaling": None,
      "sliding_window": 2047,
    },
  ),
  "Phi-4-mini-instruct": (
    3_836_021_760,
    _PHI3_MINI
    | {
      "bos_token_id": 199999,
      "eos_token_id": 199999,
      "full_attn_mod": 1,
      "interpolate_factor": 1,
      "lm_head_bias": False,
      "mlp_bias": False,
      "num_attention_heads": 24,
      "num_key_value_heads": 8,
      "partial_rotary_factor": 0.75,
      "tie_word_embeddings": True,
      "vocab_size": 200064,
    },
  ),
  "gemma-2-2b": (
    2_614_341_888,
    _GEMMA2
    | {
      "hidden_size": 2304,
      "intermediate_size": 9216,
      "num_attention_heads": 8,
      "num_hidden_layers": 26,
      "num_key_value_heads": 4,
      "query_pre_attn_scalar": 256,
    },
  ),
  "gemma-2-27b": (
    27_227_128_320,
    _GEMMA2
    | {
      "head_dim": 128,
      "hidden_size": 4608,
      "intermediate_size": 36864,
      "num_attention_heads": 32,
      "num_hidden_layers": 46,
      "num_key_value_heads": 16,
      "query_pre_attn_scalar": 144,
      "_attn_implementation": "eager",
    },
  ),
  "gemma-3-1b-pt": (
    999_885_952,
    _GEMMA2
    | {
      "architectures": ["Gemma3ForCausalLM"],
      "model_type": "gemma3_text",
      "attn_logit_softcapping": None,
      "final_logit_softcapping": None,
      "hidden_size": 1152,
      "intermediate_size": 6912,
      "max_position_embeddings": 32768,
      "num_attention_heads": 4,
      "num_hidden_layers": 26,
      "num_key_value_heads": 1,
      "query_pre_attn_scalar": 256,
      "rope_local_base_freq": 10000,
      "rope_scaling": None,
      "rope_theta": 1000000,
      "sliding_window": 512,
      "sliding_window_pattern": 6,
      "vocab_size": 262144,
    },
  ),
}


def read(name: str) -> tuple[int, ModelConfig]:
  """(number of parameters, config) of a published model."""
  count, fields = MODELS[name]
  fields = copy.deepcopy(fields)
  scaling = fields["rope_scaling"] if "rope_scaling" in fields else None
  for factor, last in (("short_factor", 2.84), ("long_factor", 64.84)):
    if scaling and factor in scaling:
      # The published ones rise to these.
      scaling[factor] = np.geomspace(1, last, scaling[factor]).tolist()
  return count, config_json.from_hf(fields, source=name)
