import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.model import log_probs


def oracle(hidden, head, targets, softcap=0.0):
  logits = np.asarray(hidden, np.float64) @ np.asarray(head, np.float64).T
  if softcap:
    logits = softcap * np.tanh(logits / softcap)
  logits -= logits.max(-1, keepdims=True)
  normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  return np.take_along_axis(normal, np.asarray(targets)[..., None], -1)[..., 0]


def problem(rng, batch=2, length=37, dim=11, vocab=2053):
  hidden = rng.normal(size=(batch, length, dim)).astype(np.float32)
  head = rng.normal(size=(vocab, dim)).astype(np.float32)
  targets = rng.integers(0, vocab, (batch, length))
  return jnp.asarray(hidden), jnp.asarray(head), jnp.asarray(targets)


@pytest.mark.parametrize("chunk", [1, 3, 64, 37])
@pytest.mark.parametrize("vocab", [7, 1024, 2053])
def test_chunked_equals_the_definition(rng, chunk, vocab):
  # cases D5
  args = problem(rng, vocab=vocab)
  got = log_probs.target_log_probs(*args, softcap=0.0, chunk=chunk)
  np.testing.assert_allclose(got, oracle(*args), atol=2e-6, rtol=2e-6)
  assert float(got.max()) <= 0


@pytest.mark.parametrize("chunk", [1, 3, 64, 37])
def test_chunked_gradients_equal_the_plain_ones(rng, chunk):
  # cases D5
  hidden, head, targets = problem(rng)
  weights = jnp.asarray(rng.uniform(0, 5, targets.shape), jnp.float32)

  def chunked(hidden, head):
    got = log_probs.target_log_probs(
      hidden, head, targets, softcap=0.0, chunk=chunk
    )
    return (weights * got).sum()

  def plain(hidden, head):
    normal = jax.nn.log_softmax(hidden @ head.T)
    picked = jnp.take_along_axis(normal, targets[..., None], -1)[..., 0]
    return (weights * picked).sum()

  got = jax.grad(chunked, (0, 1))(hidden, head)
  expected = jax.grad(plain, (0, 1))(hidden, head)
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def test_soft_cap_is_applied(rng):
  # cases D7
  hidden, head, targets = problem(rng)
  got = log_probs.target_log_probs(
    3 * hidden, head, targets, softcap=5.0, chunk=8
  )
  expected = oracle(3 * hidden, head, targets, softcap=5.0)
  np.testing.assert_allclose(got, expected, atol=1e-5)
  assert np.abs(expected - oracle(3 * hidden, head, targets)).max() > 0.1


def test_uniform_logits_of_bfloat16_give_the_exact_log(rng):
  # cases D1: 11.761784 and not 11.75
  hidden = jnp.ones((1, 3, 4), jnp.bfloat16)
  head = jnp.zeros((128256, 4), jnp.bfloat16)
  got = log_probs.target_log_probs(
    hidden, head, jnp.zeros((1, 3), int), softcap=0.0, chunk=2
  )
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(-got, np.log(128256), atol=2e-6)


def test_bfloat16_inputs_give_the_float32_answer_of_those_inputs(rng):
  # cases D1, D2
  hidden, head, targets = problem(rng)
  hidden, head = hidden.astype(jnp.bfloat16), head.astype(jnp.bfloat16)
  got = log_probs.target_log_probs(hidden, head, targets, softcap=0.0, chunk=16)
  np.testing.assert_allclose(got, oracle(hidden, head, targets), atol=1e-5)


def test_no_array_of_all_logits_exists():
  # cases E1
  vocab, dim, length = 50_000, 8, 2048
  args = (
    jax.ShapeDtypeStruct((1, length, dim), jnp.float32),
    jax.ShapeDtypeStruct((vocab, dim), jnp.float32),
    jax.ShapeDtypeStruct((1, length), jnp.int32),
  )

  def compiled(function):
    return jax.jit(function).lower(*args).compile().memory_analysis()

  def passed(*args):
    return log_probs.target_log_probs(*args, softcap=0.0, chunk=256)

  full = 4 * vocab * length
  assert compiled(passed).temp_size_in_bytes < full / 20

  def grads(hidden, head, targets):
    return jax.grad(lambda *p: passed(*p, targets).sum(), (0, 1))(hidden, head)

  assert compiled(grads).temp_size_in_bytes < full / 20


def test_a_head_that_is_also_the_embedding_is_not_copied():
  """As a pass reads it: rows are gathered from it, and it is multiplied."""
  vocab, dim = 8192, 64

  def run(embedding, ids):
    hidden = embedding[ids]
    return log_probs.target_log_probs(
      hidden, embedding, ids, softcap=0.0, chunk=16
    )

  shapes = (
    jax.ShapeDtypeStruct((vocab, dim), jnp.float32),
    jax.ShapeDtypeStruct((1, 16), jnp.int32),
  )
  memory = jax.jit(run).lower(*shapes).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 4 * vocab * dim / 2
