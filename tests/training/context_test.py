"""Another RoPE table for the same weights, stated in what is written."""

import numpy as np
import pytest
from support import family_cases
from support.checks import refuses

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import rope
from longctx_jax.training.context import rope_override

PLAIN = config_json.from_hf(family_cases.llama(), source="config.json")
LLAMA3 = config_json.from_hf(
  family_cases.llama(
    type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
  )
  | {"rope_theta": 500000.0},
  source="config.json",
)  # fmt: skip


def test_an_override_changes_the_table_and_is_written():
  # cases F7
  llama3 = LLAMA3
  assert config_json.from_hf(config_json.to_hf(llama3), source="") == llama3
  linear = rope_override(
    llama3, rope_type="linear", factor=8.0, max_position=16384
  )
  # The checkpoint's own base stays.
  assert linear.rope == rope.RopeConfig("linear", 500000.0, factor=8.0)
  assert linear.max_position == 16384
  written = config_json.to_hf(linear)
  # Exactly these two: transformers before 4.43 takes no other.
  assert written["rope_scaling"] == {"type": "linear", "factor": 8.0}
  assert written["rope_parameters"] == {
    "rope_type": "linear",
    "rope_theta": 500000.0,
    "factor": 8.0,
  }
  assert config_json.from_hf(written, source="") == linear
  # Adjusted base frequency is a plain table, so that every reader has it.
  ntk = rope_override(llama3, rope_type="ntk", theta=2e6)
  assert ntk.rope == rope.RopeConfig("default", 2e6)
  yarn = rope_override(
    llama3, rope_type="yarn", factor=4.0, original_max_position=2048
  )
  assert yarn.rope.attention_factor == pytest.approx(1 + 0.1 * np.log(4))
  eabf = rope_override(
    llama3, rope_type="eabf", theta=5e5, original_max_position=16
  )
  written = config_json.to_hf(eabf)
  assert written["rope_scaling"] == {"type": "eabf", "factor": 4.0}
  assert written["rope_parameters"]["factor"] == 4.0
  dynamic = rope_override(llama3, rope_type="dynamic", factor=2.0)
  for config in (ntk, yarn, eabf, dynamic):
    assert config_json.from_hf(config_json.to_hf(config), source="") == config
  gemma3 = config_json.from_hf(
    family_cases.CASES["gemma3_text"], source="gemma3_text"
  )
  raised = rope_override(gemma3, rope_type="ntk", theta=8e6)
  assert raised.ropes == (rope.RopeConfig("default", 8e6), gemma3.ropes[1])


@pytest.mark.parametrize(
  ("facts", "message"),
  [
    (dict(rope_type="linear"), "'linear' needs factor > 0"),
    (dict(rope_type="su"), "'su' is not known"),
    (dict(rope_type="ntk"), "'ntk' needs theta"),
    (dict(rope_type="default"), "is the checkpoint's own table"),
    (dict(rope_type="linear", factr=2.0), r"\['factr'\] are not among"),
  ],
)
def test_a_bad_override_is_refused(facts, message):
  # cases F7: scaling that changes nothing is an error
  with refuses(message):
    rope_override(PLAIN, **facts)
