import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.model import attention, blockwise

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
  kwargs = dict(
    q_offset=first,
    window=window,
    sink_len=sink,
    segment_ids=None if ids is None else jnp.asarray(ids),
    softcap=cap,
    scale=0.3,
  )
  return qkv, kwargs


def definition(qkv, kwargs):
  """A loop over rows in float64."""
  q, k, v = (np.asarray(x, np.float64) for x in qkv)
  out = np.zeros_like(q)
  ids = kwargs["segment_ids"]
  ids = None if ids is None else np.asarray(ids)
  for b, t, n in np.ndindex(q.shape[:3]):
    row = kwargs["q_offset"] + t
    seen = [
      s
      for s in range(row + 1)
      if (
        not kwargs["window"]
        or s > row - kwargs["window"]
        or s < kwargs["sink_len"]
      )
      and (ids is None or ids[b, s] == ids[b, row])
    ]
    head = n // (q.shape[2] // k.shape[2])
    scores = kwargs["scale"] * k[b, seen, head] @ q[b, t, n]
    if kwargs["softcap"]:
      scores = kwargs["softcap"] * np.tanh(scores / kwargs["softcap"])
    probs = np.exp(scores - scores.max())
    out[b, t, n] = probs @ v[b, seen, head] / probs.sum()
  return out


@pytest.mark.parametrize("case", CASES)
def test_plain_attention_is_the_definition(rng, case):
  qkv, kwargs = problem(rng, case)
  got = attention.attention(*qkv, **kwargs, backend="plain")
  np.testing.assert_allclose(got, definition(qkv, kwargs), atol=2e-6)


@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("case", CASES)
def test_blockwise_equals_plain_in_value_and_gradient(
  rng, monkeypatch, case, block
):
  monkeypatch.setattr(blockwise, "_BLOCK", block)
  qkv, kwargs = problem(rng, case)
  weights = jnp.asarray(rng.normal(size=qkv[0].shape), jnp.float32)

  def loss(backend):
    def of(*qkv):
      out = attention.attention(*qkv, **kwargs, backend=backend)
      return (weights * out).sum(), out

    return jax.value_and_grad(of, (0, 1, 2), has_aux=True)(*qkv)

  (_, got), got_grads = loss("blockwise")
  (_, expected), expected_grads = loss("plain")
  np.testing.assert_allclose(got, expected, atol=2e-6)
  for a, b in zip(got_grads, expected_grads, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 192])
def test_head_sizes(rng, head_dim):
  # cases F9
  qkv, kwargs = problem(rng, (40, 40, 0, 0, 0, False, 0.0), head_dim)
  got = attention.attention(*qkv, **kwargs)
  expected = attention.attention(*qkv, **kwargs, backend="plain")
  np.testing.assert_allclose(got, expected, atol=1e-5)


def test_bfloat16_stays_close_to_float32(rng):
  qkv, kwargs = problem(rng, (100, 100, 0, 0, 0, False, 0.0))
  low = [x.astype(jnp.bfloat16) for x in qkv]
  got = attention.attention(*low, **kwargs)
  assert got.dtype == jnp.bfloat16
  exact = attention.attention(*[x.astype(jnp.float32) for x in low], **kwargs)
  np.testing.assert_allclose(got.astype(jnp.float32), exact, atol=2e-2)


def test_keys_out_of_sight_never_matter(rng):
  # cases F8: window 4 at row 11 sees keys 8 to 11, and key 0 with a sink
  qkv, kwargs = problem(rng, (12, 12, 0, 4, 0, False, 0.0))
  changed = (qkv[0], qkv[1].at[:, 0].add(9.0), qkv[2].at[:, 0].add(9.0))

  def last(qkv, **more):
    return attention.attention(*qkv, **(kwargs | more))[:, 11]

  np.testing.assert_array_equal(last(qkv), last(changed))
  sunk = dict(sink_len=1)
  assert np.abs(last(qkv, **sunk) - last(changed, **sunk)).max() > 0.1


def test_memory_grows_with_length_and_not_with_its_square():
  # cases E1: the scores of 4,096 positions and 6 heads alone are 400 MB
  q = jax.ShapeDtypeStruct((1, 4096, 6, 16), jnp.float32)
  k = jax.ShapeDtypeStruct((1, 4096, 2, 16), jnp.float32)

  def grads(q, k, v):
    return jax.grad(
      lambda *qkv: attention.attention(*qkv, scale=0.25).sum(), (0, 1, 2)
    )(q, k, v)

  memory = jax.jit(grads).lower(q, k, k).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 30 * 2**20


def test_unknown_backend_is_named(rng):
  qkv, kwargs = problem(rng, CASES[0])
  with pytest.raises(ValueError, match="'flash' is not one of plain"):
    attention.attention(*qkv, **kwargs, backend="flash")
