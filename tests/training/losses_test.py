import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fused_losses import (
  KINDS,
  check_equal,
  fused,
  mean_and_gradients,
  plain,
  plain_log_probs,
  problem,
)

from longctx_jax.paper import contrast
from longctx_jax.training import losses


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


@pytest.mark.parametrize("chunk", [1, 3, 64, 37])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_equals_the_plain_composition(rng, kind, softcap, chunk):
  # cases D5, I8
  given = problem(rng)
  check_equal(
    mean_and_gradients(
      functools.partial(fused, kind, softcap=softcap, chunk=chunk), given
    ),
    mean_and_gradients(functools.partial(plain, kind, softcap=softcap), given),
    3e-6,
  )


def test_the_sums_are_those_of_their_definitions(rng):
  given = problem(rng)
  likeliest = jnp.argmax(given["hidden"] @ given["head"].T, axis=-1)
  easy = jnp.asarray(rng.random(likeliest.shape) < 0.5)
  given["targets"] = jnp.where(easy, likeliest, given["targets"])
  _, count, sums = fused(
    "longce", given, given["hidden"], given["head"], softcap=0.0, chunk=8
  )
  log_p = np.asarray(
    plain_log_probs(given["hidden"], given["head"], given["targets"], 0.0),
    np.float64,
  )
  mask, short_mask = (np.asarray(given[n]) for n in ("loss_mask", "short_mask"))
  scored = mask & short_mask
  gain = np.where(scored, log_p - np.nan_to_num(np.asarray(given["short"])), 0)
  weights = np.where(scored, np.minimum(np.exp(gain), 5), 1.0) * mask
  key = scored & (gain > 2) & (log_p > -2)
  clipped = scored & (gain > np.log(5))
  assert key.sum() > 1 and clipped.sum() > key.sum()
  expected = {
    "targets": mask.sum(),
    "nll": -log_p[mask].sum(),
    "weighted_nll": -(weights * log_p).sum(),
    "weight": weights.sum(),
    "scored": scored.sum(),
    "clipped": clipped.sum(),
    "key": key.sum(),
    "key_nll": -log_p[key].sum(),
  }
  assert count == mask.sum() and sums.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)


def test_stored_weights_at_gamma_count_as_key(rng):
  given = problem(rng)
  args = (given[n] for n in ("hidden", "head", "targets", "weights"))
  _, _, sums = losses.fused_weighted_nll(
    *args, given["loss_mask"], gamma=4.7, chunk=8
  )
  top = np.asarray(given["loss_mask"] & (given["weights"] > 4))
  assert sums["clipped"] == sums["key"] == top.sum() > 0
  log_p = plain_log_probs(given["hidden"], given["head"], given["targets"], 0.0)
  np.testing.assert_allclose(sums["key_nll"], -log_p[top].sum(), rtol=1e-5)
  assert sums["scored"] == 0


def test_800_nats_give_gamma_and_finite_gradients(rng):
  # cases D8
  given = problem(rng)
  given["short"] = jnp.full_like(given["short"], -800.0)
  value, grads = mean_and_gradients(
    functools.partial(fused, "longce", softcap=0.0, chunk=8), given
  )
  log_p = plain_log_probs(given["hidden"], given["head"], given["targets"], 0.0)
  weights = jnp.where(given["short_mask"], 5.0, 1.0)
  total, count = losses.weighted_nll(log_p, weights, given["loss_mask"])
  np.testing.assert_allclose(value, total / count, rtol=1e-5)
  assert all(np.isfinite(g).all() for g in grads)


def test_weights_outside_their_range_are_refused(rng):
  given = problem(rng)
  with pytest.raises(ValueError, match="gamma=5.0, floor=6.0"):
    contrast.longce_weights(
      given["short"], given["short"], given["short_mask"], gamma=5.0, floor=6.0
    )
