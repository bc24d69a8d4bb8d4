import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.model import rope
from longctx_jax.model.rope import RopeConfig

LLAMA3 = RopeConfig(
  "llama3",
  500000.0,
  factor=8.0,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
  original_max_position=8192,
)
YARN = RopeConfig(
  "yarn",
  10000.0,
  factor=4.0,
  original_max_position=4096,
  attention_factor=rope.yarn_attention_factor(4.0),
)
CONFIGS = [
  RopeConfig("default", 1e6),
  RopeConfig("linear", 10000.0, factor=8.0),
  LLAMA3,
  YARN,
  dataclasses.replace(YARN, truncate=False),
]


def oracle(config, head_dim, position):
  """cos and sin in float64, from the published formulas, one by one."""
  angles = []
  for i in range(head_dim // 2):
    frequency = config.theta ** (-2 * i / head_dim)
    wavelength = 2 * math.pi / frequency
    if config.rope_type == "linear":
      frequency /= config.factor
    if config.rope_type == "llama3":
      long = config.original_max_position / config.low_freq_factor
      short = config.original_max_position / config.high_freq_factor
      smooth = (
        config.original_max_position / wavelength - config.low_freq_factor
      ) / (config.high_freq_factor - config.low_freq_factor)
      if wavelength > long:
        frequency /= config.factor
      elif wavelength >= short:
        frequency *= (1 - smooth) / config.factor + smooth
    if config.rope_type == "yarn":

      def dim(rotations):
        turns = config.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(config.theta))

      low, high = dim(config.beta_fast), dim(config.beta_slow)
      if config.truncate:
        low, high = math.floor(low), math.ceil(high)
      low, high = max(low, 0), min(high, head_dim - 1)
      ramp = min(1, max(0, (i - low) / (high - low)))
      frequency *= ramp / config.factor + 1 - ramp
    angles.append(position * frequency)
  angles = np.array(angles)
  scale = config.attention_factor
  return scale * np.cos(angles), scale * np.sin(angles)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.describe())
@pytest.mark.parametrize("position", [0, 257, 4095])
def test_table_is_the_published_formula(config, position):
  # cases D4
  got = rope.rope_table(config, 64, jnp.array([position]))
  for a, b in zip(got, oracle(config, 64, position), strict=True):
    np.testing.assert_allclose(a[0], b, atol=1e-3)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.describe())
def test_table_at_131071_is_the_float32_product(config):
  # cases D4. A float32 phase at 131,071 radians has an ulp of 0.008: like
  # transformers, the product is taken in float32, and so is the oracle's.
  frequencies = rope.inverse_frequencies(config, 64)
  exact = np.array([oracle(config, 64, 1)[1] / config.attention_factor])
  np.testing.assert_allclose(np.sin(frequencies), exact[0], atol=1e-6)
  phase = (np.float32(131071) * frequencies).astype(np.float64)
  cos, sin = rope.rope_table(config, 64, jnp.array([131071]))
  scale = config.attention_factor
  np.testing.assert_allclose(cos[0], scale * np.cos(phase), atol=1e-4)
  np.testing.assert_allclose(sin[0], scale * np.sin(phase), atol=1e-4)


def test_neighbouring_positions_differ_in_bfloat16_models():
  # cases D4: 256 == 257 in bfloat16
  x = jnp.ones((1, 2, 1, 8), jnp.bfloat16)
  table = rope.rope_table(
    RopeConfig("default", 10000.0), 8, jnp.array([[256, 257]])
  )
  out = rope.apply_rope(x, table)
  assert out.dtype == jnp.bfloat16
  assert float(jnp.abs(out[0, 0] - out[0, 1]).max()) > 0.1


def test_scores_depend_on_distance_alone():
  rng = np.random.default_rng(1)
  q, k = rng.normal(size=(2, 1, 1, 1, 16)).astype(np.float32)

  def score(i, j):
    config = RopeConfig("default", 10000.0)
    at = [rope.rope_table(config, 16, jnp.array([[p]])) for p in (i, j)]
    return float((rope.apply_rope(q, at[0]) * rope.apply_rope(k, at[1])).sum())

  assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
  assert abs(score(9, 4) - score(9, 5)) > 1e-3


def test_factor_is_read_and_not_assumed():
  # cases F4
  other = dataclasses.replace(LLAMA3, factor=32.0)
  a, b = (rope.inverse_frequencies(c, 64) for c in (LLAMA3, other))
  assert np.abs(a / b - 1).max() > 2


@pytest.mark.parametrize(
  "kwargs,message",
  [
    (dict(rope_type="su", theta=1e4), "'su' is not known; known: default"),
    (dict(rope_type="linear", theta=1e4), "needs factor > 0"),
    (dict(rope_type="default", theta=0.0), "rope_theta=0.0"),
  ],
)
def test_bad_configs_are_refused(kwargs, message):
  # cases F1
  with pytest.raises(ValueError, match=message):
    RopeConfig(**kwargs)
