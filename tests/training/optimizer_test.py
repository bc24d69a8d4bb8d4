import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from longctx_jax import testing
from longctx_jax.model import parameters
from longctx_jax.training import optimizer
from longctx_jax.training.optimizer import OptimizerConfig

CONFIG = OptimizerConfig(learning_rate=2e-5, warmup_steps=20)


def rates(steps, total=200, **changes):
  config = dataclasses.replace(CONFIG, **changes)
  schedule = optimizer.learning_rate(config, total)
  return [float(schedule(step)) / config.learning_rate for step in steps]


def test_the_rate_rises_from_zero_to_the_peak():
  np.testing.assert_allclose(rates([0, 5, 10, 20]), [0, 0.25, 0.5, 1])


def test_without_warm_up_the_peak_comes_first():
  for schedule in optimizer.SCHEDULES:
    assert rates([0], warmup_steps=0, schedule=schedule) == [pytest.approx(1.0)]


@pytest.mark.parametrize(
  ("schedule", "middle", "end"),
  [("constant", 1.0, 1.0), ("linear", 0.55, 0.1), ("cosine", 0.55, 0.1)],
)
def test_the_rate_falls_to_its_final_fraction(schedule, middle, end):
  got = rates([110, 200, 500], schedule=schedule, final_fraction=0.1)
  np.testing.assert_allclose(got, [middle, end, end], rtol=1e-5)


def test_cosine_is_not_linear():
  (cosine,) = rates([65], schedule="cosine")
  np.testing.assert_allclose(cosine, (1 + np.cos(np.pi / 4)) / 2, rtol=1e-5)


def test_a_step_is_that_of_adamw():
  """The formulas of Loshchilov and Hutter (2019), in NumPy."""
  config = OptimizerConfig(
    learning_rate=0.1, schedule="constant", warmup_steps=0, weight_decay=0.3
  )
  adam = optimizer.make_optimizer(config, 10)
  start = {"kernel": np.array([[1.0, -2.0]]), "scale": np.array([3.0])}
  params = jax.tree.map(jnp.asarray, start)
  state = adam.init(params)
  mean = {name: 0.0 for name in start}
  square = {name: 0.0 for name in start}
  expected = dict(start)
  for step in range(1, 4):
    grads = {name: value * step - 0.5 for name, value in start.items()}
    updates, state = adam.update(
      jax.tree.map(jnp.asarray, grads), state, params
    )
    params = optax.apply_updates(params, updates)
    for name, grad in grads.items():
      mean[name] = 0.9 * mean[name] + 0.1 * grad
      square[name] = 0.95 * square[name] + 0.05 * grad**2
      move = (mean[name] / (1 - 0.9**step)) / (
        np.sqrt(square[name] / (1 - 0.95**step)) + 1e-8
      )
      if name == "kernel":
        move = move + 0.3 * expected[name]
      expected[name] = expected[name] - 0.1 * move
  for name, value in expected.items():
    np.testing.assert_allclose(params[name], value, rtol=1e-5)


def test_matrices_decay_and_nothing_else(mesh):
  config = testing.tiny_config(
    tied=False, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True
  )
  params = testing.tiny_model(config, mesh=mesh).params
  flat = parameters.flatten(optimizer.decays(params))
  decaying = {name for name, value in flat.items() if value.get_value()}
  assert {name.rpartition(".")[2] for name in decaying} == {"kernel", "output"}
  spared = {name.rpartition(".")[2] for name in set(flat) - decaying}
  assert spared == {"embedding", "scale", "bias"}
  assert len(decaying) == 8


def test_clipping_is_of_the_whole_gradient_and_off_by_default():
  grads = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}
  for clip_norm, expected in ((0.0, 5.0), (1.0, 1.0), (6.0, 5.0)):
    config = OptimizerConfig(learning_rate=1.0, b1=0.0, clip_norm=clip_norm)
    adam = optimizer.make_optimizer(config, 21)
    _, state = adam.update(grads, adam.init(grads), grads)
    size = optax.tree.norm(optax.tree.get(state, "mu"))
    np.testing.assert_allclose(size, expected, rtol=1e-6)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(schedule="steps"), "schedule='steps' is not one of constant, linear"),
    (dict(learning_rate=0.0), "learning_rate=0.0"),
    (dict(warmup_steps=-1), "warmup_steps=-1"),
    (dict(clip_norm=float("nan")), "clip_norm=nan"),
    (dict(weight_decay=-0.1), "weight_decay=-0.1"),
    (dict(b2=1.0), "b2=1.0"),
    (dict(final_fraction=1.5), "final_fraction=1.5"),
  ],
)
def test_a_wrong_config_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("steps", [10, 20])
def test_warm_up_must_end(steps):
  with pytest.raises(ValueError, match=f"warmup_steps=20 of {steps} steps"):
    optimizer.make_optimizer(CONFIG, steps)
