"""Another RoPE table for the same weights, to be trained to more context."""

from __future__ import annotations

import dataclasses
from typing import Any

from longctx_jax.model import rope
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.rope import RopeConfig


def rope_override(
  config: ModelConfig, *, rope_type: str, max_position: int = 0, **facts: Any
) -> ModelConfig:
  """The config with another table, which an export then states.

  Layers with a window keep their own table where they have one (Gemma 3): they
  never look further than the window.

  EABF, as the paper's code effectively does it: the plain table of a raised
  base (500,000), and on every layer queries times
  max(1, ln(position + 1) / ln(original_max_position)). The code means to
  leave out the first two layers, but its patch reaches them too.

  Args:
    config: of the checkpoint.
    rope_type: one of `rope.ROPE_TYPES`, or "ntk": adjusted base frequency, the
      plain table of another `theta`.
    max_position: longest context from now on; 0 keeps it. Tables that state
      how far they reach ("yarn", "dynamic") reach so far: see
      `RopeConfig.context`.
    **facts: fields of `RopeConfig`. The checkpoint's base stays where `theta`
      is left out.

  Raises:
    ValueError: for a type or a fact that is not known or missing, or a table
      that is the same as before.
  """
  own = config.ropes[0]
  known = {field.name for field in dataclasses.fields(RopeConfig)}
  unknown = sorted(set(facts) - known)
  if unknown:
    raise ValueError(f"rope_override: {unknown} are not among {sorted(known)}")
  if rope_type == "ntk":
    if "theta" not in facts:
      raise ValueError("rope_override: 'ntk' needs theta, the new base")
    rope_type = "default"
  max_position = max_position or config.max_position
  kept = {"theta": own.theta, "rotary_share": own.rotary_share}
  if rope_type == "dynamic":
    # Its growth starts there, by definition.
    kept["original_max_position"] = max_position
  if rope_type == "yarn" and "factor" in facts:
    kept["attention_factor"] = rope.yarn_attention_factor(facts["factor"])
  table = RopeConfig(rope_type, **kept | facts)
  max_position = table.context(max_position)
  if table == own:
    raise ValueError(
      f"rope_override: {table.describe()} is the checkpoint's own table"
    )
  return dataclasses.replace(
    config, ropes=(table, *config.ropes[1:]), max_position=max_position
  )
