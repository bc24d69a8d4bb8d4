"""What a query sees, by the definition."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longctx_jax import testing
from longctx_jax.model.attention_spec import AttentionSpec


@given(
  offset=st.integers(0, 5),
  window=st.integers(0, 6),
  sink_len=st.integers(0, 3),
)
def test_a_row_sees_the_last_window_and_the_sink(offset, window, sink_len):
  spec = AttentionSpec(1.0, offset, window, sink_len)
  seen = spec.sees(np.arange(7)[:, None], np.arange(12)[None])
  for t in range(7):
    place = offset + t
    expected = {
      s
      for s in range(place + 1)
      if not window or s > place - window or s < sink_len
    }
    assert set(np.flatnonzero(seen[t])) == expected


@pytest.mark.parametrize(
  ("field", "value"),
  [("scale", 0.0), ("scale", -1.0), ("q_offset", -1), ("window", -1),
   ("sink_len", -1), ("softcap", float("nan"))],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(field, value):
  with pytest.raises(ValueError, match=f"{field}={value}"):
    dataclasses.replace(AttentionSpec(1.0), **{field: value})


def test_a_layers_scale_is_the_configs_or_that_of_the_head():
  config = testing.tiny_config()
  plain = AttentionSpec.of_layer(config, window=8, q_offset=2)
  assert plain == AttentionSpec(config.head_dim**-0.5, 2, 8)
  capped = dataclasses.replace(
    config, query_scale=0.25, attention_softcap=50.0, sink_len=4
  )
  spec = AttentionSpec.of_layer(capped, window=0)
  assert spec == AttentionSpec(0.25, sink_len=4, softcap=50.0)
