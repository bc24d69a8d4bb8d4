"""Where parameters live: one rule for each, and a use for each rule."""

import dataclasses

import pytest

from longctx_jax import testing
from longctx_jax.model import parameters, partition, sharding


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
