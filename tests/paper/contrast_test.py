import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.paper import contrast
from longctx_jax.paper.contrast import Thresholds


def oracle_mask(long, short, alpha, beta):
  return [
    (a - b > alpha and a > beta) if not math.isnan(b) else False
    for a, b in zip(long, short, strict=True)
  ]


def test_mask_is_the_definition(rng):
  long = -rng.exponential(2, 500).astype(np.float32)
  short = (long - rng.normal(1, 2, 500)).astype(np.float32)
  short[::7] = np.nan
  mask = contrast.key_token_mask(long, short, Thresholds(2.0, -2.0))
  expected = oracle_mask(long, short, 2.0, -2.0)
  assert 0 < sum(expected) < 500
  assert mask.tolist() == expected


@pytest.mark.parametrize("seed", range(4))
def test_numpy_and_jax_agree_to_the_bit(seed):
  """NaN where nothing was scored, -inf where a target is impossible."""
  rng = np.random.default_rng(seed)
  long = -rng.exponential(2, 999).astype(np.float32)
  short = (long - rng.normal(1, 2, 999)).astype(np.float32)
  for value in (np.nan, -np.inf):
    short[rng.random(999) < 0.1] = value
  long[rng.random(999) < 0.1] = -np.inf
  pairs = (long, short), (jnp.asarray(long), jnp.asarray(short))
  for first, second in (pairs[0], pairs[0][::-1]):
    own = contrast.lsd(first, second)
    other = contrast.lsd(jnp.asarray(first), jnp.asarray(second))
    assert isinstance(own, np.ndarray) and isinstance(other, jax.Array)
    np.testing.assert_array_equal(own, other)
  masks = [contrast.key_token_mask(*pair, Thresholds()) for pair in pairs]
  assert isinstance(masks[0], np.ndarray) and 0 < masks[0].sum() < 999
  np.testing.assert_array_equal(*masks)
  scored = np.isfinite(short)
  own, other = (
    contrast.longce_weights(*pair, mask, gamma=5.0)
    for pair, mask in zip(pairs, (scored, jnp.asarray(scored)), strict=True)
  )
  assert own.dtype == other.dtype == np.float32
  np.testing.assert_allclose(own, other, rtol=3e-7)


def test_the_two_exchanged_are_the_mirror():
  long, short = np.array([-9.0, -1.0, -4.0]), np.array([-1.0, -9.0, -3.0])
  mirror = contrast.key_token_mask(short, long, Thresholds())
  assert mirror.tolist() == [True, False, False]


@pytest.mark.parametrize("bad", [float("nan"), "2", None])
def test_thresholds_that_are_no_numbers_are_refused(bad):
  with pytest.raises(ValueError, match=f"alpha={bad!r} is no number"):
    Thresholds(alpha=bad)


def test_both_thresholds_are_strict():
  long = jnp.array([-1.0, -1.0, -2.0, -1.9])
  short = jnp.array([-3.0, -3.1, -9.0, -9.0])
  mask = contrast.key_token_mask(long, short, Thresholds(2.0, -2.0))
  assert mask.tolist() == [False, True, False, True]


def test_bfloat16_log_probs_are_compared_in_float32():
  # cases D3: the difference of two bfloat16 numbers is exact in float32.
  long = jnp.array([-0.0078125], jnp.bfloat16)
  short = jnp.array([-2.015625], jnp.bfloat16)
  assert contrast.key_token_mask(long, short, Thresholds(2.0, -2.0)).tolist()
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


@pytest.mark.parametrize("gamma,floor", [(0.0, 0.0), (5.0, 6.0), (5.0, -1.0)])
def test_bad_caps_are_refused(gamma, floor):
  with pytest.raises(ValueError, match=f"gamma={gamma}, floor={floor}"):
    weights([-1.0], [-1.0], gamma=gamma, floor=floor)
