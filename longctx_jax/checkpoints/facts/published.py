"""config.json of the models that configs/ name, for plans without a download.

As their owners publish them on huggingface.co; of the fields, those that
determine the forward pass.
"""

from __future__ import annotations

from typing import Any

_LLAMA = {
  "model_type": "llama",
  "hidden_act": "silu",
  "rms_norm_eps": 1e-05,
  "rope_scaling": None,
  "tie_word_embeddings": False,
}
_LLAMA2 = _LLAMA | {"vocab_size": 32000, "max_position_embeddings": 4096}

# hub id -> fields
FIELDS: dict[str, dict[str, Any]] = {
  "meta-llama/Llama-2-7b-hf": _LLAMA2
  | {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
  },
  "meta-llama/Llama-2-13b-hf": _LLAMA2
  | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "num_key_value_heads": 40,
  },
  "meta-llama/Llama-3.1-8B": _LLAMA
  | {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 500000.0,
    "rope_scaling": {
      "factor": 8.0,
      "low_freq_factor": 1.0,
      "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192,
      "rope_type": "llama3",
    },
  },
  "mistralai/Mistral-7B-v0.1": {
    "model_type": "mistral",
    "hidden_act": "silu",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
  },
  "HuggingFaceTB/SmolLM2-135M": _LLAMA
  | {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
  },
}
