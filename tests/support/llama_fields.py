"""A small Llama's config.json, kinds of RoPE scaling, and their reading."""

from longctx_jax.checkpoints.facts import config_json
from support import family_cases

LLAMA = {
  "model_type": "llama",
  "vocab_size": 263,
  "hidden_size": 40,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "intermediate_size": 56,
  "rms_norm_eps": 1e-5,
  "max_position_embeddings": 2048,
  "hidden_act": "silu",
  "rope_theta": 500000.0,
}
SCALING = {
  "rope_type": "llama3",
  "factor": 8.0,
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 512,
}


YARN = {
  "rope_type": "yarn",
  "factor": 4.0,
  "original_max_position_embeddings": 512,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LONGROPE = {
  "rope_type": "longrope",
  "factor": 4.0,
  "original_max_position_embeddings": 512,
  "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4],
  "long_factor": [1.0, 2.0, 3.0, 5.0, 8.0],
}
EABF = {"rope_type": "eabf", "original_max_position_embeddings": 512}


def read(**fields):
  """The facts of LLAMA with these fields."""
  return config_json.from_hf(LLAMA | fields, source="config.json")


def read_case(name, **changes):
  """The facts of a family's case with these changes."""
  return config_json.from_hf(family_cases.CASES[name] | changes, source=name)
