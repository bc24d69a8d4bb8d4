"""Names and shapes of a model's parameters, before there are any."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes  # noqa: F401  safetensors reads bfloat16 only with it
import numpy as np
from flax import nnx

from longctx_jax.model.config import ModelConfig
from longctx_jax.model.transformer import Transformer


def flatten(params: nnx.State) -> dict[str, Any]:
  """Parameters by dotted name, e.g. "layers.mlp.up_proj.kernel"."""
  return {
    ".".join(str(part) for part in path): value
    for path, value in nnx.to_flat_state(params)
  }


@functools.lru_cache(maxsize=8)
def abstract_model(
  config: ModelConfig, dtype: np.dtype
) -> tuple[nnx.GraphDef, nnx.State]:
  """(graphdef, params) of a `Transformer`, shapes in place of arrays."""
  model = nnx.eval_shape(lambda: Transformer(config, dtype=dtype))
  return nnx.split(model, nnx.Param)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """Parameter name -> shape, layers stacked."""
  params = abstract_model(config, np.dtype(np.float32))[1]
  return {name: leaf.shape for name, leaf in flatten(params).items()}
