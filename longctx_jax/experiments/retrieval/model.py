"""The small model of the retrieval experiment, and what it is asked."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from longctx_jax.model import parameters, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.model.rope import RopeConfig


def make_config(
  *,
  vocab_size: int,
  embed_dim: int,
  num_layers: int,
  num_heads: int,
  mlp_dim: int,
  theta: float,
  max_position: int,
) -> ModelConfig:
  """A Llama whose embeddings are scaled by sqrt(D), with a head of its own."""
  return ModelConfig(
    model_type="llama",
    vocab_size=vocab_size,
    embed_dim=embed_dim,
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=num_heads,
    head_dim=embed_dim // num_heads,
    mlp_dim=mlp_dim,
    norm_eps=1e-6,
    max_position=max_position,
    ropes=(RopeConfig("default", theta),),
    tied=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    windows=(0,) * num_layers,
    embed_scale=embed_dim**0.5,
  )


def make_model(config: ModelConfig, *, seed: int) -> LoadedModel:
  """A random model on one device, ready to be trained.

  Embeddings N(0, 0.02^2), kernels N(0, 1 / inputs), those that write into the
  residual stream divided by sqrt(2 L), head N(0, 0.25 / D).
  """
  mesh = sharding.make_mesh({"data": 1}, jax.devices()[:1])
  graphdef, abstract = parameters.abstract_model(config, jnp.dtype(jnp.float32))
  rng = np.random.default_rng(seed)

  def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
    name = ".".join(str(part) for part in path)
    if name.endswith("scale"):
      return jnp.ones(leaf.shape)
    if name == "embedding":
      deviation = 0.02
    elif name == "output":
      deviation = 0.5 * config.embed_dim**-0.5
    else:
      deviation = leaf.shape[-2] ** -0.5
      if name.endswith(("o_proj.kernel", "down_proj.kernel")):
        deviation /= (2 * config.num_layers) ** 0.5
    return jnp.asarray(rng.normal(0, deviation, leaf.shape), jnp.float32)

  params = nnx.from_flat_state(
    [
      (path, leaf.replace(draw(path, leaf)))
      for path, leaf in nnx.to_flat_state(abstract)
    ]
  )
  return LoadedModel(
    name=f"retrieval-{seed}",
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=None,
    mesh=mesh,
    checksum="",
    revision="",
    weight_format="random F32",
  )


def with_theta(model: LoadedModel, theta: float) -> LoadedModel:
  """The same weights with another RoPE base."""
  table = dataclasses.replace(model.config.rope, theta=theta)
  config = dataclasses.replace(model.config, ropes=(table,))
  graphdef, _ = parameters.abstract_model(config, jnp.dtype(jnp.float32))
  return dataclasses.replace(model, config=config, graphdef=graphdef)
