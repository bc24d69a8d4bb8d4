import dataclasses
import json

import numpy as np
import pytest
from support import family_cases
from support.checks import refuses

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import rope

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
  return config_json.from_hf(LLAMA | fields, source="config.json")


def read_case(name, **changes):
  return config_json.from_hf(family_cases.CASES[name] | changes, source=name)


def test_old_and_new_schema_give_bit_equal_tables():
  # cases F1, F2
  old = read(rope_scaling=SCALING)
  older = {k: v for k, v in SCALING.items() if k != "rope_type"}
  older = read(rope_scaling=older | {"type": "llama3"})
  new = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
  new["rope_parameters"] = SCALING | {"rope_theta": 500000.0}
  new = config_json.from_hf(new, source="config.json")
  assert old == older == new
  tables = [rope.inverse_frequencies(c.rope, 10) for c in (old, new)]
  np.testing.assert_array_equal(*tables)


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


def test_rope_theta_is_the_checkpoints():
  assert read().rope.theta == 500000.0
  fields = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
  assert config_json.from_hf(fields, source="").rope.theta == 10000.0
  with pytest.raises(ValueError, match="rope_theta is missing"):
    config_json.from_hf(fields | {"model_type": "qwen2"}, source="")


def test_null_and_harmless_fields_pass():
  read(new_field=None, _name_or_path="x", torch_dtype="bfloat16")


@pytest.mark.parametrize(
  "fields,windows",
  [
    (dict(model_type="mistral", sliding_window=4), (4, 4, 4)),
    (dict(model_type="mistral", sliding_window=None), (0, 0, 0)),
    (dict(model_type="mistral", sliding_window=0), (0, 0, 0)),
    (
      dict(model_type="qwen2", sliding_window=4, use_sliding_window=False),
      (0, 0, 0),
    ),
    (
      dict(
        model_type="qwen2",
        sliding_window=4,
        use_sliding_window=True,
        max_window_layers=1,
      ),
      (0, 4, 4),
    ),
    (
      dict(
        model_type="qwen3",
        head_dim=12,
        sliding_window=4,
        use_sliding_window=True,
        max_window_layers=0,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
      ),
      (0, 4, 0),
    ),
  ],
)
def test_windows_are_read_per_layer(fields, windows):
  # cases F8
  assert read(**fields).windows == windows


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


def test_a_scaled_table_of_windows_is_written_in_the_new_schema_alone():
  config = read_case("gemma3_text")
  scaled = rope.RopeConfig("linear", 1e4, factor=2.0)
  config = dataclasses.replace(config, ropes=(config.ropes[0], scaled))
  written = config_json.to_hf(config)
  assert not {"rope_theta", "rope_scaling"} & set(written)
  assert config_json.from_hf(written, source="") == config


def test_families_differ_in_what_their_configs_say():
  gemma2, gemma3 = read_case("gemma2"), read_case("gemma3_text")
  assert gemma2.windows == (8, 0, 8)
  assert (gemma2.softcap, gemma2.attention_softcap) == (3.0, 2.0)
  assert gemma2.query_scale == 7**-0.5 and gemma2.embed_scale == 40**0.5
  assert gemma2.activation == "gelu_tanh" and gemma2.tied
  assert gemma2.norm_plus_one and gemma2.post_norms and not gemma2.qk_norm
  # Seven layers in a pattern of three (cases F8).
  assert gemma3.windows == (8, 8, 0, 8, 8, 0, 8)
  assert gemma3.rope_kinds == (1, 1, 0, 1, 1, 0, 1)
  assert [table.theta for table in gemma3.ropes] == [1e6, 1e4]
  assert [table.rope_type for table in gemma3.ropes] == ["linear", "default"]
  assert gemma3.describe_rope() == (
    "linear(theta 1e+06, factor 8) x 2; default(theta 10000) x 5"
  )
  mixtral, qwen = read_case("mixtral"), read_case("qwen3_moe")
  assert (mixtral.num_experts, mixtral.expert_dim) == (5, 56)
  assert (qwen.num_experts, qwen.expert_dim, qwen.mlp_dim) == (6, 24, 56)
  assert mixtral.norm_topk and not read_case("qwen3_moe, unnormed").norm_topk
  assert read_case("qwen2").qkv_bias and not read_case("qwen2").output_bias
  with pytest.raises(ValueError, match="gemma3_text has 2 RoPE tables"):
    gemma3.rope  # noqa: B018


def test_new_names_of_old_facts_are_the_same():
  fields = dict(family_cases.CASES["qwen3_moe"])
  # transformers 5 writes the first.
  fields["num_local_experts"] = fields.pop("num_experts")
  renamed = config_json.from_hf(fields, source="")
  assert renamed == read_case("qwen3_moe")
  fields = dict(family_cases.CASES["gemma3_text"])
  fields["_sliding_window_pattern"] = fields.pop("sliding_window_pattern")
  assert config_json.from_hf(fields, source="") == read_case("gemma3_text")
  su = family_cases.CASES["phi3, longrope"]
  su = su | {"rope_scaling": su["rope_scaling"] | {"type": "su"}}
  assert config_json.from_hf(su, source="") == read_case("phi3, longrope")


@pytest.mark.parametrize(
  ("name", "changes", "message"),
  [
    ("qwen3_moe", dict(decoder_sparse_step=2), "decoder_sparse_step=2"),
    ("qwen3_moe", dict(mlp_only_layers=[0]), r"mlp_only_layers=\[0\]"),
    ("qwen3_moe", dict(norm_topk_prob=None), "missing norm_topk_prob"),
    ("qwen3_moe", dict(use_sliding_window=True), "max_window_layers=3 beside"),
    ("qwen3_moe", dict(num_experts_per_tok=9), "num_experts_per_tok=9 of 6"),
    ("mixtral", dict(num_local_experts=None), "missing num_local_experts"),
    ("phi3", dict(attention_bias=True), "attention_bias=True"),
    ("phi3", dict(full_attn_mod=2), "full_attn_mod=2"),
    ("phi3", dict(partial_rotary_factor=0.3), "of which 3 rotate"),
    ("gemma2", dict(query_pre_attn_scalar=None), "missing query_pre_attn"),
    ("gemma2", dict(hidden_activation="gelu"), "hidden_activation='gelu'"),
    ("gemma2", dict(use_bidirectional_attention=True), "use_bidirectional"),
    ("gemma2", dict(sliding_window_size=9), "but sliding_window_size=9"),
    (
      "gemma3_text",
      dict(rope_local_base_freq=None),
      "gemma3_text: rope_local_base_freq is missing",
    ),
    (
      "gemma3_text",
      dict(layer_types=["chunked_attention"] * 7),
      r"layer_types \['chunked_attention'\] are not known",
    ),
    (
      "gemma3_text",
      dict(layer_types=["full_attention"] * 6),
      "gemma3_text: 6 layer types for 7 layers",
    ),
  ],
)
def test_a_family_refuses_by_name(name, changes, message):
  with refuses(message):
    read_case(name, **changes)


def test_caps_must_be_stated():
  # cases D7: null is no cap, absence is not
  capless = read_case("gemma2", final_logit_softcapping=None)
  assert capless.softcap == 0.0
  fields = dict(family_cases.CASES["gemma2"])
  del fields["attn_logit_softcapping"]
  with pytest.raises(ValueError, match="missing attn_logit_softcapping"):
    config_json.from_hf(fields, source="")


def test_the_text_model_of_a_model_that_sees_images():
  # google/gemma-3-4b-it as published: what Gemma3TextConfig says is left out.
  published = {
    "model_type": "gemma3",
    "text_config": {
      "model_type": "gemma3_text",
      "hidden_size": 2560,
      "intermediate_size": 10240,
      "num_hidden_layers": 34,
      "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
      "sliding_window": 1024,
    },
    "vision_config": {"model_type": "siglip_vision_model"},
    "mm_tokens_per_image": 256,
  }
  config = config_json.from_hf(published, source="")
  assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
  assert config.windows.count(0) == 5 and max(config.windows) == 1024
  assert config.tied and config.model_type == "gemma3_text"
  with pytest.raises(ValueError, match="sees_sounds=1"):
    config_json.from_hf(published | {"sees_sounds": 1}, source="")
  with pytest.raises(ValueError, match=r"quantised \(awq\)"):
    config_json.from_hf(
      published | {"quantization_config": {"quant_method": "awq"}}, source=""
    )


def test_yarn_attention_factor_follows_from_the_factor():
  # cases F6
  assert read(rope_scaling=YARN).rope.attention_factor == pytest.approx(
    0.1 * np.log(4) + 1
  )


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


def test_yarn_scales_of_all_dimensions():
  # cases F6: the ratio of two logarithmic factors, where both are stated
  scaled = read(rope_scaling=YARN | {"mscale": 1.0, "mscale_all_dim": 0.5})
  expected = (0.1 * np.log(4) + 1) / (0.05 * np.log(4) + 1)
  assert scaled.rope.attention_factor == pytest.approx(expected)
  one = read(rope_scaling=YARN | {"mscale": 2.0})
  assert one.rope.attention_factor == pytest.approx(0.1 * np.log(4) + 1)


def test_longrope_attention_factor_follows_from_the_stretch():
  stated = read(rope_scaling=LONGROPE).rope.attention_factor
  assert stated == pytest.approx(np.sqrt(1 + np.log(4) / np.log(512)))
  by_lengths = {k: v for k, v in LONGROPE.items() if k != "factor"}
  assert read(rope_scaling=by_lengths).rope.attention_factor == stated


def test_describe_rope_names_the_table_of_a_pass():
  # cases F5
  config = read(rope_scaling=LONGROPE)
  assert config.describe_rope(512).endswith("short table")
  assert config.describe_rope(513).endswith("long table")
  assert config.rope_by_length == {"rope_type": "longrope", "limit": 512}
  assert read().describe_rope(9) == read().describe_rope()
  assert not read().rope_by_length
