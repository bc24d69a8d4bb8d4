import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.paper import contrast


def oracle_mask(long, short, alpha, beta):
  return [
    (a - b > alpha and a > beta) if not math.isnan(b) else False
    for a, b in zip(long, short, strict=True)
  ]


def test_mask_is_the_definition(rng):
  long = -rng.exponential(2, 500).astype(np.float32)
  short = (long - rng.normal(1, 2, 500)).astype(np.float32)
  short[::7] = np.nan
  mask = contrast.key_token_mask(
    jnp.array(long), jnp.array(short), alpha=2.0, beta=-2.0
  )
  expected = oracle_mask(long, short, 2.0, -2.0)
  assert 0 < sum(expected) < 500
  assert mask.tolist() == expected


def test_both_thresholds_are_strict():
  long = jnp.array([-1.0, -1.0, -2.0, -1.9])
  short = jnp.array([-3.0, -3.1, -9.0, -9.0])
  mask = contrast.key_token_mask(long, short, alpha=2.0, beta=-2.0)
  assert mask.tolist() == [False, True, False, True]


def test_bfloat16_log_probs_are_compared_in_float32():
  # cases D3: the difference of two bfloat16 numbers is exact in float32.
  long = jnp.array([-0.0078125], jnp.bfloat16)
  short = jnp.array([-2.015625], jnp.bfloat16)
  assert contrast.key_token_mask(long, short, alpha=2.0, beta=-2.0).tolist()
  assert contrast.lsd(long, short).dtype == jnp.float32
  assert float(contrast.lsd(long, short)[0]) == 2.0078125


def weights(long, short, mask=None, **kwargs):
  long, short = jnp.asarray(long), jnp.asarray(short)
  mask = jnp.ones(long.shape, bool) if mask is None else jnp.asarray(mask)
  return contrast.longce_weights(long, short, mask, **kwargs)


def test_weights_are_the_capped_ratio():
  long, short = np.array([-1.0, -2.0, -0.5]), np.array([-1.5, -1.0, -9.0])
  got = weights(long, short, gamma=5.0)
  np.testing.assert_allclose(
    got, np.minimum(np.exp(long - short), 5), rtol=1e-6
  )


def test_a_difference_of_800_nats_gives_gamma_exactly():
  # cases D8
  assert weights([-0.5], [-800.5], gamma=5.0).tolist() == [5.0]
  assert weights([-800.5], [-0.5], gamma=5.0).tolist() == [0.0]


def test_unscored_targets_weigh_one_and_their_nan_is_never_read():
  got = weights([-1.0, -1.0], [np.nan, -1.0], [False, True], gamma=5.0)
  assert got.tolist() == [1.0, 1.0]


def test_floor_clips_from_below():
  got = weights([-3.0, -1.0], [-1.0, -1.5], gamma=5.0, floor=1.0)
  assert got[0] == 1.0 and got[1] > 1.6


def test_weights_carry_no_gradient():
  grad = jax.grad(lambda x: weights(x, [-2.0], gamma=5.0).sum())
  assert grad(jnp.array([-1.0])).tolist() == [0.0]


@pytest.mark.parametrize("gamma,floor", [(0.0, 0.0), (5.0, 6.0), (5.0, -1.0)])
def test_bad_caps_are_refused(gamma, floor):
  with pytest.raises(ValueError, match=f"gamma={gamma}, floor={floor}"):
    weights([-1.0], [-1.0], gamma=gamma, floor=floor)
