"""Facts of a model: what cannot be is refused, what is has a short name."""

import dataclasses

import pytest

from longctx_jax import testing
from longctx_jax.model.rope import RopeConfig

CONFIG = testing.tiny_config()


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(num_heads=3), "num_attention_heads=3 is not a multiple"),
    (dict(num_experts=2, experts_per_token=3), "num_experts_per_tok=3 of 2"),
    (dict(num_experts=2), "num_experts_per_tok=0 of 2"),
    (dict(windows=(0,)), "1 layer types for 2 layers"),
    (dict(rope_kinds=(0, 0, 0)), "3 layer types for 2 layers"),
    (dict(head_dim=5), "head_dim=5, of which 5 rotate"),
    (
      dict(ropes=(RopeConfig("longrope", 1e4, original_max_position=8,
                             short_factor=(1.0,), long_factor=(2.0,)),)),
      "short_factor has 1 values",
    ),
  ],
)  # fmt: skip
def test_facts_that_contradict_each_other_are_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **changes)


def test_layers_have_a_window_and_a_table_each():
  tables = (CONFIG.ropes[0], RopeConfig("linear", 1e6, factor=2.0))
  config = dataclasses.replace(
    CONFIG, ropes=tables, windows=(8, 0), rope_kinds=(1, 0)
  )
  assert CONFIG.layer_kinds == ((0, 0), (0, 0))
  assert config.layer_kinds == ((8, 1), (0, 0))
  assert config.describe_attention() == "full x 1, last 8 x 1"
  assert "x 1; " in config.describe_rope()
  with pytest.raises(ValueError, match="has 2 RoPE tables"):
    _ = config.rope


@pytest.mark.parametrize(
  ("window", "sink_len", "name"),
  [(0, 0, "full"), (512, 0, "last 512"), (512, 4, "first 4 + last 512")],
)
def test_limited_attention_is_named(window, sink_len, name):
  limited = CONFIG.with_attention(window=window, sink_len=sink_len)
  assert limited.windows == (window,) * CONFIG.num_layers
  assert limited.describe_attention() == name


@pytest.mark.parametrize(("window", "sink_len"), [(0, 4), (-1, 0), (8, -1)])
def test_attention_that_cannot_be_is_refused(window, sink_len):
  with pytest.raises(ValueError, match=f"window={window}, sink_len={sink_len}"):
    CONFIG.with_attention(window=window, sink_len=sink_len)
