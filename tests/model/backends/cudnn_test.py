"""What cuDNN is asked for, and what it is not."""

import jax
import jax.numpy as jnp
import pytest
from support.attention_problems import CASES, assert_equals_plain, problem

from longctx_jax.model import attention
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import cudnn


@pytest.mark.parametrize(
  "case",
  [case for case in CASES if not any(case[4:])] + [(9, 99, 5, 7, 0, 0, 0)],
)
def test_cudnn_is_asked_for_plain_attention(rng, monkeypatch, case):
  # The kernel needs a GPU; XLA takes the same arguments.
  compute = jax.nn.dot_product_attention

  def stand_in(*args, implementation, **kwargs):
    assert implementation == "cudnn"
    assert all(x.shape[1] % 128 == 0 for x in args)
    return compute(*args, **kwargs, implementation="xla")

  monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
  monkeypatch.setattr(cudnn, "DTYPES", ("float32",))
  assert_equals_plain(rng, "cudnn", *problem(rng, case))


@pytest.mark.parametrize(
  ("case", "dtype", "named"),
  [
    ((9, 9, 0, 4, 2, False, 0.0), jnp.float16, "sink_len"),
    ((9, 9, 0, 0, 0, True, 0.0), jnp.bfloat16, "segment_ids"),
    ((9, 9, 0, 0, 0, False, 5.0), jnp.bfloat16, "softcap"),
    ((9, 9, 0, 0, 0, False, 0.0), jnp.float32, "dtype float32"),
  ],
)
def test_cudnn_refuses_what_it_has_not(rng, case, dtype, named):
  qkv, kwargs = problem(rng, case, dtype=dtype)
  with pytest.raises(ValueError, match=f"not do {named}.*use 'blockwise'"):
    attention.attention(*qkv, **kwargs, backend="cudnn")


@pytest.mark.usefixtures("pretended_cudnn")
@pytest.mark.parametrize(
  ("length", "rows", "window"), [(200, 200, 0), (200, 70, 64), (128, 128, 0)]
)
def test_the_kernels_of_cudnn_are_in_the_lowered_program(length, rows, window):
  q, k = (
    jax.ShapeDtypeStruct((1, size, heads, 64), jnp.bfloat16)
    for size, heads in ((rows, 4), (length, 2))
  )
  spec = AttentionSpec(scale=0.1, q_offset=length - rows, window=window)

  def total(q, k, v):
    out = attention.attention(q, k, v, spec, backend="cudnn")
    return out.astype(jnp.float32).sum()

  traced = jax.jit(jax.grad(total, (0, 1, 2))).trace(q, k, k)
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("@__cudnn$fmhaSoftmax(") == 1
  assert text.count("@__cudnn$fmhaSoftmaxBackward(") == 1
