"""Attention in blocks: the plain one, at a memory that follows the length."""

import jax
import jax.numpy as jnp
import numpy as np
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


def test_documents_that_lie_before_are_passed_over(monkeypatch):
  """Not masked: what is no number there would be felt, and is not.

  The steps are those of the documents alone; rows differ in theirs.
  """
  monkeypatch.setattr(blockwise, "_BLOCK", 32)  # 16 on a CPU.
  lengths = [[32, 64, 16], [80, 32]]
  segments = np.array([np.repeat(range(len(n)), n) for n in lengths])
  rng = np.random.default_rng(0)
  q, k, v = (
    rng.normal(size=(2, 112, heads, 8)).astype(np.float32)
    for heads in (4, 2, 2)
  )
  spec = AttentionSpec(0.3)
  attend = jax.jit(
    lambda *qkv: attention.attention(
      *qkv, spec, segment_ids=jnp.asarray(segments)
    )
  )
  whole = attend(q, k, v)
  for row, parts in enumerate(lengths):
    ends = np.cumsum(parts)
    for start, end in zip(ends - parts, ends, strict=True):
      own = [x[row : row + 1, start:end] for x in (q, k, v)]
      alone = attention.attention(*own, spec)
      np.testing.assert_allclose(whole[row, start:end], alone[0], atol=1e-6)
      damaged = v.copy()
      damaged[row, :start] = np.nan
      after = attend(q, k, damaged)[row, start:end]
      np.testing.assert_array_equal(after, whole[row, start:end])
