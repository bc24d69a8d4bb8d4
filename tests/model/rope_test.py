import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from support.checks import refuses

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
DYNAMIC = RopeConfig("dynamic", 1e4, factor=2.0, original_max_position=2048)
LONGROPE = RopeConfig(
  "longrope",
  10000.0,
  original_max_position=4096,
  short_factor=tuple(1.0 + 0.01 * i for i in range(24)),
  long_factor=tuple(1.0 + i for i in range(24)),
  attention_factor=rope.longrope_attention_factor(32.0, 4096),
  rotary_share=0.75,
)
# A table and the length of the pass that it serves.
TABLES = [
  (RopeConfig("default", 1e6), 1),
  (RopeConfig("linear", 10000.0, factor=8.0), 1),
  (LLAMA3, 1),
  (YARN, 1),
  (dataclasses.replace(YARN, truncate=False), 1),
  (DYNAMIC, 2000),
  (DYNAMIC, 5000),
  (LONGROPE, 4096),
  (LONGROPE, 4097),
  (RopeConfig("eabf", 500000.0, original_max_position=4096), 1),
]
each_table = pytest.mark.parametrize(
  ("config", "length"), TABLES, ids=lambda x: getattr(x, "rope_type", x)
)


def oracle(config, head_dim, position, length):
  """cos and sin in float64, from the published formulas, one by one."""
  angles = []
  head_dim = int(head_dim * config.rotary_share)
  theta = config.theta
  if config.rope_type == "dynamic" and length > config.original_max_position:
    growth = config.factor * length / config.original_max_position
    growth -= config.factor - 1
    theta *= growth ** (head_dim / (head_dim - 2))
  for i in range(head_dim // 2):
    frequency = theta ** (-2 * i / head_dim)
    if config.rope_type == "longrope":
      is_long = length > config.original_max_position
      frequency /= (config.long_factor if is_long else config.short_factor)[i]
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


@each_table
@pytest.mark.parametrize("position", [0, 257, 4095])
def test_table_is_the_published_formula(config, length, position):
  # cases D4
  got = rope.rope_table(
    config, 64, jnp.array([[position]]), jnp.array([length])
  )
  expected = oracle(config, 64, position, length)
  for a, b in zip(got, expected, strict=True):
    np.testing.assert_allclose(a[0, 0], b, atol=1e-3)


@each_table
def test_table_at_131071_is_the_float32_product(config, length):
  # cases D4. A float32 phase at 131,071 radians has an ulp of 0.008: like
  # transformers, the product is taken in float32, and so is the oracle's.
  frequencies = rope.inverse_frequencies(config, 64, length)
  _, exact = oracle(config, 64, 1, length)
  scale = config.attention_factor
  np.testing.assert_allclose(scale * np.sin(frequencies), exact, atol=1e-6)
  # One more ulp in a frequency is another 0.008 here: the table's own.
  lengths = jnp.array([length])
  own = rope.rope_table(config, 64, jnp.array([[1]]), lengths)
  own = np.arctan2(own[1], own[0])[0, 0].astype(np.float64)
  np.testing.assert_allclose(own, frequencies, rtol=1e-6)
  phase = (np.float32(131071) * frequencies).astype(np.float64)
  cos, sin = rope.rope_table(config, 64, jnp.array([[131071]]), lengths)
  atol = 0.03 if config.rope_type == "dynamic" else 1e-4
  np.testing.assert_allclose(cos[0, 0], scale * np.cos(phase), atol=atol)
  np.testing.assert_allclose(sin[0, 0], scale * np.sin(phase), atol=atol)


def test_rows_of_a_batch_have_the_tables_of_their_own_lengths():
  # cases F5: up to the original context short, one beyond it long, for the
  # whole pass
  positions = jnp.broadcast_to(jnp.arange(5), (3, 5))
  for config in (LONGROPE, DYNAMIC):
    last = config.original_max_position
    lengths = jnp.array([5, last, last + 1])
    cos, sin = rope.rope_table(config, 64, positions, lengths)
    np.testing.assert_array_equal(cos[0], cos[1])
    assert np.abs(sin[1] - sin[2])[1:].max(-1).min() > 1e-5
    # Packed: the same lengths, by position.
    packed = rope.rope_table(
      config, 64, positions[:1, :3] * 0 + 3, lengths[None]
    )
    np.testing.assert_array_equal(packed[0][0], cos[:, 3])


def test_a_description_names_the_table_of_a_length():
  # cases F5
  assert LONGROPE.describe(4096) == f"{LONGROPE.describe()}, short table"
  assert LONGROPE.describe(4097) == f"{LONGROPE.describe()}, long table"
  assert DYNAMIC.describe(9000).endswith("table of length 9000")
  assert DYNAMIC.describe(1) == DYNAMIC.describe(2048) != DYNAMIC.describe(2049)
  assert (
    YARN.describe(9)
    == YARN.describe()
    == ("yarn(theta 10000, factor 4, original_max_position 4096)")
  )


@pytest.mark.parametrize(
  "change",
  [
    dict(long_factor=(2.0,) * 24),
    dict(attention_factor=2.0),
    dict(rotary_share=0.5),
    dict(theta=2.0),
  ],
)
def test_other_tables_have_other_descriptions(change):
  # A description is part of the identity of log-probs.
  other = dataclasses.replace(LONGROPE, **change)
  assert other.describe() != LONGROPE.describe()
  assert dataclasses.replace(YARN, truncate=False).describe() != YARN.describe()


def test_entropy_aware_queries_grow_beyond_the_original_context():
  # paper section 4, item 22: max(1, ln(position + 1) / ln 4096)
  config = RopeConfig("eabf", 500000.0, original_max_position=4096)
  gain = rope.query_gain(config, jnp.array([[0, 4095, 32767]]))
  np.testing.assert_allclose(gain, [[1, 1, 15 / 12]], rtol=1e-6)
  assert rope.query_gain(YARN, jnp.array([[9000]])) is None
  x = jnp.ones((1, 3, 2, 8))
  table = rope.rope_table(config, 8, jnp.array([[0, 4095, 32767]]))
  np.testing.assert_allclose(
    rope.apply_rope(x, table, gain),
    rope.apply_rope(x, table) * gain[..., None, None],
    rtol=1e-6,
  )


def test_only_a_share_of_the_dimensions_rotates():
  config = RopeConfig("default", 10000.0, rotary_share=0.5)
  x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 2, 8)))
  x = x.astype(jnp.float32)
  positions = jnp.array([[1, 2, 3]])
  out = rope.apply_rope(x, rope.rope_table(config, 8, positions))
  np.testing.assert_array_equal(out[..., 4:], x[..., 4:])
  whole = dataclasses.replace(config, rotary_share=1.0)
  alone = rope.apply_rope(x[..., :4], rope.rope_table(whole, 4, positions))
  np.testing.assert_array_equal(out[..., :4], alone)


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
    (dict(rope_type="eabf", theta=5e5), "needs original_max_position > 0"),
    (
      dict(rope_type="longrope", theta=1e4, original_max_position=8),
      r"needs short_factor > 0, not \(\)",
    ),
    (dict(rope_type="default", theta=1e4, rotary_share=0.0), "partial_rotary"),
  ],
)
def test_bad_configs_are_refused(kwargs, message):
  # cases F1
  with refuses(message):
    RopeConfig(**kwargs)
