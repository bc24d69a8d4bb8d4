"""Where parameters live: one rule for each, and a use for each rule."""

import dataclasses

import pytest
from flax import nnx

from longctx_jax import testing
from longctx_jax.model import parameters, partition, sharding
from longctx_jax.model.layers import Linear


@pytest.mark.parametrize(
  "changes",
  [
    {},
    dict(tied=False),
    dict(qkv_bias=True, output_bias=True, mlp_bias=True),
    dict(model_type="qwen3", qk_norm=True),
  ],
)
def test_every_parameter_has_one_rule_and_every_rule_a_parameter(changes):
  config = dataclasses.replace(testing.tiny_config(vocab_size=264), **changes)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model = testing.tiny_model(config, mesh=mesh)
  kernel = parameters.flatten(model.params)["layers.mlp.up_proj.kernel"][...]
  assert kernel.addressable_shards[0].data.shape == (2, 10, 28)
  with pytest.raises(ValueError, match="'tensor' of size 4.*num_kv_heads=2"):
    partition.parameter_shardings(
      config, {}, sharding.make_mesh({"fsdp": 2, "tensor": 4})
    )


@pytest.mark.parametrize("num_experts", [0, 4])
def test_a_linear_map_knows_how_its_kernel_is_split(num_experts):
  config = testing.tiny_config(vocab_size=264)
  if num_experts:
    config = testing.tiny_config(
      vocab_size=264, num_experts=4, experts_per_token=2, expert_dim=56
    )
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  graphdef, params = parameters.abstract_model(config, "float32")
  shapes = {
    name: leaf.shape for name, leaf in parameters.flatten(params).items()
  }
  placed = partition.parameter_shardings(config, shapes, mesh)
  found = 0
  for path, module in nnx.iter_graph(nnx.merge(graphdef, params)):
    if isinstance(module, Linear):
      name = ".".join([*map(str, path), "kernel"])
      # Of one layer of the stack.
      assert module.axes == tuple(placed[name].spec)[1:], name
      found += 1
  assert found == (5 if num_experts else 7)
