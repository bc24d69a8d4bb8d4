"""Bytes of a device, beside those of programs that the TPU compiler made.

`tests/tpu_compile_test.py` makes such programs anew, where there is a compiler.
"""

import math

import pytest

from longctx_jax import testing
from longctx_jax.model import memory, sharding

GIB = 2**30
LLAMA31_8B = testing.tiny_config(
  vocab_size=128256,
  embed_dim=4096,
  num_layers=32,
  num_heads=32,
  num_kv_heads=8,
  head_dim=128,
  mlp_dim=14336,
  tied=False,
  windows=(0,) * 32,
)
SMOLLM2_135M = testing.tiny_config(
  vocab_size=49152,
  embed_dim=576,
  num_layers=30,
  num_heads=9,
  num_kv_heads=3,
  head_dim=64,
  mlp_dim=1536,
  tied=True,
  windows=(0,) * 30,
)


def activations(config, sizes, *, rows=1, length=32768, in_parts=True):
  mesh = sharding.abstract_mesh(sizes, math.prod(sizes.values()))
  return memory.Activations(config, mesh, rows, length, in_parts, 2)


@pytest.mark.parametrize(
  ("config", "sizes", "rows", "length", "options", "found"),
  [
    # Arguments and temporaries: the weights, and what is estimated.
    (LLAMA31_8B, {"fsdp": 4}, 1, 32768, {}, (3.740, 2.704)),
    (LLAMA31_8B, {"fsdp": 4, "tensor": 2}, 1, 32768, {}, (1.870, 2.376)),
    (LLAMA31_8B, {"fsdp": 2, "tensor": 4}, 1, 32768, {}, (1.870, 2.241)),
    (LLAMA31_8B, {"fsdp": 4}, 4, 5119, {"is_short": True}, (3.740, 2.257)),
    (SMOLLM2_135M, {"fsdp": 4}, 4, 1279, {"is_short": True}, (0.065, 0.126)),
  ],
)
def test_a_pass_takes_what_the_compiler_found(
  config, sizes, rows, length, options, found
):
  weights, temporaries = (int(size * GIB) for size in found)
  planned = memory.forward(
    activations(config, sizes, rows=rows, length=length),
    weights=weights,
    **options,
  )
  peak = weights + temporaries
  assert peak / 1.1 < planned.peak < peak * 1.1


def test_a_step_in_parts_takes_what_the_compiler_found():
  weights = int(0.1253 * GIB)
  planned = memory.step(
    activations(SMOLLM2_135M, {"fsdp": 4}, rows=2, length=2048),
    weights=weights,
    optimizer=2 * weights,
    parts=2,
    short=None,
    remat="block",
  )
  # The head that is the embedding lies there twice.
  assert 1.406 * GIB / 1.1 < planned.peak < 1.406 * GIB * 1.1


def test_partial_sums_are_whole_on_each_shard_of_tensor():
  split, whole = (
    activations(LLAMA31_8B, {"fsdp": 2, "tensor": ways}) for ways in (2, 1)
  )
  assert whole.partial_sums == 0
  assert split.hidden == whole.hidden == 32768 * 4096 * 2
  # Half of the hidden units; a product in float32, two sums in bfloat16.
  assert split.mlp == whole.mlp // 2
  assert split.partial_sums == 32768 * 4096 * (4 + 2 * 2)
