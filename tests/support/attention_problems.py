"""Problems that an attention backend has to solve as the plain one does."""

import jax
import jax.numpy as jnp
import numpy as np

from longctx_jax.model import attention
from longctx_jax.model.attention_spec import AttentionSpec

# rows, keys, first row, window, sink, segments, cap
CASES = [
  (1, 1, 0, 0, 0, False, 0.0),
  (37, 37, 0, 0, 0, False, 0.0),
  (64, 64, 0, 0, 0, True, 0.0),
  (129, 129, 0, 30, 0, False, 0.0),
  (129, 129, 0, 30, 4, False, 0.0),
  (129, 129, 0, 30, 45, True, 0.0),
  (50, 129, 79, 0, 0, False, 0.0),
  (50, 129, 79, 30, 4, False, 20.0),
  (31, 200, 100, 40, 70, True, 0.0),
]


def problem(rng, case, head_dim=12, dtype=jnp.float32):
  rows, keys, first, window, sink, segments, cap = case

  def normal(length, heads):
    x = rng.normal(size=(2, length, heads, head_dim))
    return jnp.asarray(x, dtype)

  qkv = normal(rows, 6), normal(keys, 2), normal(keys, 2)
  ids = np.sort(rng.integers(0, 4, (2, keys)), axis=1) if segments else None
  spec = AttentionSpec(
    q_offset=first, window=window, sink_len=sink, softcap=cap, scale=0.3
  )
  ids = None if ids is None else jnp.asarray(ids)
  return qkv, dict(spec=spec, segment_ids=ids)


def assert_equals_plain(rng, backend, qkv, kwargs):
  """In value and gradient."""
  weights = jnp.asarray(rng.normal(size=qkv[0].shape), jnp.float32)

  def run(backend):
    def loss(*qkv):
      out = attention.attention(*qkv, **kwargs, backend=backend)
      return (weights * out).sum(), out

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv)

  (_, got), got_grads = run(backend)
  (_, expected), expected_grads = run("plain")
  np.testing.assert_allclose(got, expected, atol=2e-6)
  for a, b in zip(got_grads, expected_grads, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
