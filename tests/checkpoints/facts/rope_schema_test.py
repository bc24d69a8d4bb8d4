import dataclasses

import numpy as np
import pytest
from support.llama_fields import (
  LLAMA,
  LONGROPE,
  SCALING,
  YARN,
  read,
  read_case,
)

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import rope


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


def test_rope_theta_is_the_checkpoints():
  assert read().rope.theta == 500000.0
  fields = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
  assert config_json.from_hf(fields, source="").rope.theta == 10000.0
  with pytest.raises(ValueError, match="rope_theta is missing"):
    config_json.from_hf(fields | {"model_type": "qwen2"}, source="")


def test_a_scaled_table_of_windows_is_written_in_the_new_schema_alone():
  config = read_case("gemma3_text")
  scaled = rope.RopeConfig("linear", 1e4, factor=2.0)
  config = dataclasses.replace(config, ropes=(config.ropes[0], scaled))
  written = config_json.to_hf(config)
  assert not {"rope_theta", "rope_scaling"} & set(written)
  assert config_json.from_hf(written, source="") == config


def test_yarn_attention_factor_follows_from_the_factor():
  # cases F6
  assert read(rope_scaling=YARN).rope.attention_factor == pytest.approx(
    0.1 * np.log(4) + 1
  )


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
