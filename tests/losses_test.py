import jax
import jax.numpy as jnp
import numpy as np

from longctx_jax import losses


def test_masked_equals_filtered(rng):
  log_probs = -rng.exponential(size=20).astype(np.float32)
  weights = rng.uniform(0, 5, 20).astype(np.float32)
  mask = rng.random(20) < 0.5
  total, count = losses.weighted_nll(log_probs, weights, mask)
  np.testing.assert_allclose(
    total, -(weights * log_probs)[mask].sum(), rtol=1e-6
  )
  assert count == mask.sum()


def test_nan_outside_the_mask_reaches_neither_value_nor_gradient():
  log_probs = jnp.array([-1.0, jnp.nan])
  mask = jnp.array([True, False])

  def loss(log_probs):
    return losses.longce(log_probs, log_probs - 1, mask, mask, gamma=5.0)[0]

  value, grad = jax.value_and_grad(loss)(log_probs)
  np.testing.assert_allclose(value, np.e, rtol=1e-6)
  np.testing.assert_allclose(grad, [-np.e, 0.0], rtol=1e-6)


def test_all_masked_is_zero_with_finite_gradient():
  none = jnp.zeros(3, bool)
  values, grad = jax.value_and_grad(
    lambda x: losses.weighted_nll(x, jnp.ones(3), none)[0]
  )(jnp.full(3, -2.0))
  assert values == 0 and grad.tolist() == [0, 0, 0]


def test_longce_with_gamma_one_and_benefit_everywhere_is_ce(rng):
  long = -rng.exponential(size=(2, 9)).astype(np.float32)
  everywhere = jnp.ones((2, 9), bool)
  total, count = losses.longce(
    long, long - 0.3, everywhere, everywhere, gamma=1.0
  )
  np.testing.assert_allclose(total / count, -long.mean(), rtol=1e-6)


def test_longce_divides_by_targets_not_by_weights():
  long, short = jnp.array([-1.0, -1.0]), jnp.array([-9.0, -1.0])
  everywhere = jnp.ones(2, bool)
  total, count = losses.longce(long, short, everywhere, everywhere, gamma=5.0)
  assert (float(total), float(count)) == (6.0, 2.0)


def test_gradient_at_800_nats_is_gamma_over_n():
  # cases D8
  everywhere = jnp.ones(2, bool)

  def loss(long):
    total, count = losses.longce(
      long, jnp.array([-801.0, -1.0]), everywhere, everywhere, gamma=5.0
    )
    return total / count

  assert jax.grad(loss)(jnp.array([-1.0, -1.0])).tolist() == [-2.5, -0.5]
