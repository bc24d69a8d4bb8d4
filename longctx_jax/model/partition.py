"""Where each parameter lives: (regular expression, spec) rows."""

from __future__ import annotations

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from longctx_jax.model import sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.sharding import PARAMETER_AXES as FSDP


def partition_rules(config: ModelConfig) -> sharding.Rules:
  """The table for a config; names as in `tensor_map.parameter_table`."""
  # Experts stack once more: L E D F.
  stack = (None, None) if config.num_experts else (None,)
  rules = [
    (r"embedding", P("tensor", FSDP)),
    (r"layers\..*_norm\.scale", P(None, None)),
    (r"layers\..*\.[qkv]_proj\.kernel", P(None, FSDP, "tensor")),  # L D NH
    (r"layers\..*\.o_proj\.kernel", P(None, "tensor", FSDP)),  # L NH D
    (
      r"layers\.mlp\.(gate|up)_proj\.kernel",
      P(*stack, FSDP, "tensor"),
    ),  # L D F
    (
      r"layers\.mlp\.down_proj\.kernel",
      P(*stack, "tensor", FSDP),
    ),  # L F D
    (r"norm\.scale", P(None)),
  ]
  if config.num_experts:
    # Every device routes, with all of a router that is small.
    rules.append((r"layers\.mlp\.router\.kernel", P(None, None, None)))
  if not config.tied:
    rules.append((r"output", P("tensor", FSDP)))
  if config.qkv_bias:
    rules.append((r"layers\..*\.[qkv]_proj\.bias", P(None, "tensor")))
  if config.output_bias:
    rules.append((r"layers\..*\.o_proj\.bias", P(None, None)))
  if config.mlp_bias:
    rules.append((r"layers\.mlp\.(gate|up)_proj\.bias", P(None, "tensor")))
    rules.append((r"layers\.mlp\.down_proj\.bias", P(None, None)))
  return rules


def parameter_shardings(
  config: ModelConfig,
  shapes: dict[str, tuple[int, ...]],
  mesh: sharding.AnyMesh,
) -> dict[str, NamedSharding]:
  """Shardings of all parameters, by name.

  Raises:
    ValueError: where the mesh does not divide the model; see
      `sharding.infer_shardings`.
  """
  ways = mesh.shape["tensor"]
  if config.num_kv_heads % ways:
    raise ValueError(
      f"mesh axis 'tensor' of size {ways} does not divide num_kv_heads="
      f"{config.num_kv_heads}: a head must not be split"
    )
  return sharding.infer_shardings(shapes, partition_rules(config), mesh)
