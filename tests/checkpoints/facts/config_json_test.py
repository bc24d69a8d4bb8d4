import dataclasses
import json

import numpy as np
import pytest
from support import family_cases
from support.checks import refuses
from support.llama_fields import (
  DYNAMIC,
  EABF,
  LLAMA,
  LONGROPE,
  SCALING,
  YARN,
  read,
  read_case,
)

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import rope


@pytest.mark.parametrize(
  "fields,message",
  [
    (dict(model_type="mamba"), "'mamba' is not supported.*--log_probs"),
    (
      dict(quantization_config={"quant_method": "awq"}),
      r"quantised \(awq\).*--log_probs",
    ),
    (dict(attention_multiplier=0.5), "understood.*attention_multiplier=0.5"),
    (dict(hidden_act="gelu"), "hidden_act='gelu'"),
    (dict(rope_scaling={"factor": 2.0, "type": "su"}), "'su' is not known"),
    (dict(rope_scaling={"type": "linear"}), "config.json.*needs factor"),
    (
      dict(rope_scaling={"type": "linear", "rope_type": "yarn"}),
      "contradict",
    ),
    (
      dict(rope_scaling={"type": "linear", "factor": 2.0, "gain": 3}),
      r"\['gain'\] are not understood",
    ),
    (dict(rope_parameters={"rope_theta": 1.0}), "rope_theta is 500000.0 and"),
    (
      dict(rope_scaling=YARN | {"original_max_position_embeddings": None}),
      "'yarn' needs original_max_position > 0",
    ),
    (dict(rope_scaling=SCALING | {"factor": None}), "'llama3' needs factor"),
    (
      dict(rope_scaling=DYNAMIC | {"original_max_position_embeddings": 512}),
      "dynamic RoPE grows from max_position_embeddings=2048",
    ),
    (
      dict(rope_scaling=LONGROPE | {"original_max_position_embeddings": None}),
      "'longrope' needs original_max_position > 0",
    ),
    (
      dict(rope_scaling=LONGROPE | {"long_factor": [1.0]}),
      "long_factor has 1 values for 5 pairs",
    ),
    (
      dict(rope_parameters={"full_attention": {"rope_type": "default"}}),
      "rope_parameters by layer type on a model with one table",
    ),
    (
      dict(partial_rotary_factor=0.5),
      "partial_rotary_factor=0.5 on a llama model",
    ),
    (dict(rope_interleaved=True), "rope_interleaved=True"),
    (
      dict(layer_types=["sliding_attention"] * 3),
      "layer_types=.* on a model whose layers are all full_attention",
    ),
    (
      dict(model_type="mistral", sliding_window=4, attention_bias=True),
      "attention_bias=True",
    ),
    (
      dict(model_type="mistral", sliding_window=4, use_sliding_window=False),
      "sliding_window=4 beside use_sliding_window=false",
    ),
    # Whatever the value: 0 and false are facts too.
    (dict(use_rope=False), "use_rope=False"),
    (dict(is_causal=False), "is_causal=False"),
    (dict(residual_multiplier=0), "residual_multiplier=0"),
    (dict(mlp_kinds=[]), r"mlp_kinds=\[\]"),
    (dict(hidden_size="40"), "hidden_size='40': not a number"),
    (dict(rms_norm_eps=float("nan")), "rms_norm_eps=nan: not a number"),
    (dict(model_type="qwen3"), "missing head_dim"),
    (dict(sliding_window=8), "sliding_window=8 on a llama model"),
    (dict(num_key_value_heads=3), "not a multiple"),
    (dict(model_type="mistral"), "sliding_window is missing"),
    (
      dict(model_type="qwen2", use_sliding_window=True, sliding_window=4),
      "max_window_layers is missing",
    ),
    (
      dict(model_type="qwen2", layer_types=["sliding_attention"] * 3),
      "layer_types has sliding_attention, but sliding_window is None",
    ),
  ],
)
def test_what_is_not_understood_is_refused_by_name(fields, message):
  with refuses(message):
    read(**fields)


@pytest.mark.parametrize("fact", ["rms_norm_eps", "vocab_size", "hidden_act"])
def test_no_default_stands_in_for_a_missing_fact(fact):
  fields = {k: v for k, v in LLAMA.items() if k != fact}
  with refuses(f"missing {fact}"):
    config_json.from_hf(fields, source="config.json")


ROUND_TRIPS = family_cases.CASES | {
  "eabf": LLAMA | {"rope_scaling": EABF | {"factor": 4.0}},
  "longrope": LLAMA | {"rope_scaling": LONGROPE},
  "yarn": LLAMA | {"rope_scaling": YARN | {"attention_factor": 1.5}},
  "phi3, factor": family_cases.PHI3
  | {"rope_scaling": family_cases.LONGROPE | {"attention_factor": 1.5}},
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_round_trip(name):
  # cases F2, F3
  config = config_json.from_hf(ROUND_TRIPS[name], source=name)
  written = json.loads(json.dumps(config_json.to_hf(config)))
  assert config_json.from_hf(written, source="written") == config
  assert hash(config) == hash(dataclasses.replace(config))
  # transformers before version 5 reads the old names only.
  new = {"rope_parameters"}
  old = {"rope_theta", "rope_scaling", "partial_rotary_factor"}
  for dropped in (old | {"rope_local_base_freq"}, new):
    kept = {k: v for k, v in written.items() if k not in dropped}
    read = config_json.from_hf(kept, source="one schema")
    for ours, theirs in zip(config.ropes, read.ropes, strict=True):
      assert theirs.attention_factor == ours.attention_factor
      tables = [
        rope.inverse_frequencies(table, config.head_dim, length=100)
        for table in (theirs, ours)
      ]
      np.testing.assert_array_equal(*tables)


def test_limited_attention():
  config = read().with_attention(window=512, sink_len=4)
  assert config.describe_attention() == "first 4 + last 512"
  assert read().describe_attention() == "full"
  mixed = dataclasses.replace(read(), windows=(0, 4, 4))
  assert mixed.describe_attention() == "full x 1, last 4 x 2"
  with pytest.raises(ValueError, match="a sink needs a window"):
    read().with_attention(window=0, sink_len=4)
  with pytest.raises(ValueError, match="cannot be written"):
    config_json.to_hf(config)
  with pytest.raises(ValueError, match="family cannot state any"):
    config_json.to_hf(mixed)
  mistral = dataclasses.replace(read_case("mistral"), windows=(0, 8, 8))
  with pytest.raises(ValueError, match="family states one for all"):
    config_json.to_hf(mistral)


def test_describe_rope_names_the_table_of_a_pass():
  # cases F5
  config = read(rope_scaling=LONGROPE)
  assert config.describe_rope(512).endswith("short table")
  assert config.describe_rope(513).endswith("long table")
  assert config.rope_by_length == {"rope_type": "longrope", "limit": 512}
  assert read().describe_rope(9) == read().describe_rope()
  assert not read().rope_by_length
