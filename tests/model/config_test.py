import dataclasses

import numpy as np
import pytest

from longctx_jax.model import config as config_lib
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


def read(**fields):
  return config_lib.from_hf(LLAMA | fields, source="config.json")


def test_old_and_new_schema_give_bit_equal_tables():
  # cases F1, F2
  old = read(rope_scaling=SCALING)
  older = {k: v for k, v in SCALING.items() if k != "rope_type"}
  older = read(rope_scaling=older | {"type": "llama3"})
  new = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
  new["rope_parameters"] = SCALING | {"rope_theta": 500000.0}
  new = config_lib.from_hf(new, source="config.json")
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
  with pytest.raises(ValueError, match=message):
    read(**fields)


@pytest.mark.parametrize("fact", ["rms_norm_eps", "vocab_size", "hidden_act"])
def test_no_default_stands_in_for_a_missing_fact(fact):
  fields = {k: v for k, v in LLAMA.items() if k != fact}
  with pytest.raises(ValueError, match=f"missing {fact}"):
    config_lib.from_hf(fields, source="config.json")


def test_rope_theta_is_the_checkpoints():
  assert read().rope.theta == 500000.0
  fields = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
  assert config_lib.from_hf(fields, source="").rope.theta == 10000.0
  with pytest.raises(ValueError, match="rope_theta is missing"):
    config_lib.from_hf(fields | {"model_type": "qwen2"}, source="")


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


YARN = {
  "rope_type": "yarn",
  "factor": 4.0,
  "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize(
  "fields",
  [
    {},
    dict(rope_scaling=SCALING, tie_word_embeddings=True, head_dim=12),
    dict(rope_scaling=YARN, attention_bias=True, mlp_bias=True),
    dict(rope_scaling=YARN | {"truncate": False, "attention_factor": 1.5}),
    dict(rope_scaling={"type": "linear", "factor": 8.0}),
    dict(model_type="mistral", sliding_window=4),
    dict(
      model_type="qwen2",
      sliding_window=4,
      use_sliding_window=True,
      max_window_layers=1,
    ),
    dict(model_type="qwen3", head_dim=12),
  ],
)
def test_round_trip(fields):
  config = read(**fields)
  written = config_lib.to_hf(config)
  assert config_lib.from_hf(written, source="written") == config
  # transformers before version 5 reads the old names only (cases F3).
  assert written["rope_theta"] == 500000.0
  if "rope_scaling" in fields:
    assert written["rope_scaling"]["rope_type"] == config.rope.rope_type


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
    config_lib.to_hf(config)
