"""Attention in blocks: the plain one, at a memory that follows the length."""

import jax
import jax.numpy as jnp
import pytest
from support.attention_problems import CASES, assert_equals_plain, problem

from longctx_jax import testing
from longctx_jax.model import attention
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import blockwise


@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("case", CASES)
def test_blockwise_equals_plain(rng, monkeypatch, case, block):
  monkeypatch.setattr(blockwise, "_BLOCK", block)
  assert_equals_plain(rng, "blockwise", *problem(rng, case))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_self_check_passes_blockwise(dtype):
  config = testing.tiny_config(windows=(100, 100), sink_len=9)
  assert not attention.find_fault(
    blockwise.blockwise_attention, config, dtype=dtype
  )


def test_memory_grows_with_length_and_not_with_its_square():
  # cases E1: the scores of 4,096 positions and 6 heads alone are 400 MB
  q = jax.ShapeDtypeStruct((1, 4096, 6, 16), jnp.float32)
  k = jax.ShapeDtypeStruct((1, 4096, 2, 16), jnp.float32)

  def grads(q, k, v):
    return jax.grad(
      lambda *qkv: attention.attention(*qkv, AttentionSpec(0.25)).sum(),
      (0, 1, 2),
    )(q, k, v)

  memory = jax.jit(grads).lower(q, k, k).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 30 * 2**20
