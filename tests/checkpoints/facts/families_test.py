import pytest
from support import family_cases
from support.checks import refuses
from support.llama_fields import read, read_case

from longctx_jax.checkpoints.facts import config_json


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
