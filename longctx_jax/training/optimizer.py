"""AdamW with warm-up, schedule, clipping and a weight-decay mask."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import optax

SCHEDULES = ("constant", "linear", "cosine")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """What `make_optimizer` makes.

  Attributes:
    learning_rate: peak, after warm-up (paper: 2e-5 for Llama-2-7B).
    schedule: one of `SCHEDULES`: what follows the warm-up.
    warmup_steps: of a linear rise from 0 (paper: 20).
    b1: decay of the mean of gradients (paper: 0.9).
    b2: decay of the mean of their squares (paper: 0.95).
    eps: added to the denominator.
    weight_decay: decoupled, on matrices only; see `decays` (paper: 0).
    clip_norm: largest norm of the whole gradient; 0 clips nothing.
    final_fraction: last learning rate over the peak, of a schedule that falls.
  """

  learning_rate: float
  schedule: str = "linear"
  warmup_steps: int = 20
  b1: float = 0.9
  b2: float = 0.95
  eps: float = 1e-8
  weight_decay: float = 0.0
  clip_norm: float = 0.0
  final_fraction: float = 0.0

  def __post_init__(self):
    if self.schedule not in SCHEDULES:
      raise ValueError(
        f"schedule={self.schedule!r} is not one of {', '.join(SCHEDULES)}"
      )
    if not self.learning_rate > 0:
      raise ValueError(
        f"learning_rate={self.learning_rate} must be positive (paper: 2e-5)"
      )
    for name in ("warmup_steps", "eps", "weight_decay", "clip_norm"):
      if not getattr(self, name) >= 0:
        raise ValueError(
          f"{name}={getattr(self, name)} must be 0 (off) or more"
        )
    for name in ("b1", "b2"):
      if not 0 <= getattr(self, name) < 1:
        raise ValueError(f"{name}={getattr(self, name)} must be in [0, 1)")
    if not 0 <= self.final_fraction <= 1:
      raise ValueError(
        f"final_fraction={self.final_fraction} must be in [0, 1]: the last "
        "learning rate is that times the peak"
      )


def learning_rate(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
  """The learning rate as a function of the steps done.

  It rises linearly from 0 at step 0 to the peak at `warmup_steps`, and falls
  to `final_fraction` of the peak at `total_steps`.

  Raises:
    ValueError: where warm-up leaves no step.
  """
  if config.warmup_steps >= total_steps:
    raise ValueError(
      f"warmup_steps={config.warmup_steps} of {total_steps} steps in all: no "
      f"step would be taken at the peak; lower it to {total_steps - 1} or less"
    )
  peak, rest = config.learning_rate, max(1, total_steps - config.warmup_steps)
  after = {
    "constant": lambda: optax.constant_schedule(peak),
    "linear": lambda: optax.linear_schedule(
      peak, peak * config.final_fraction, rest
    ),
    "cosine": lambda: optax.cosine_decay_schedule(
      peak, rest, config.final_fraction
    ),
  }[config.schedule]()
  if not config.warmup_steps:
    return after
  rise = optax.linear_schedule(0.0, peak, config.warmup_steps)
  return optax.join_schedules([rise, after], [config.warmup_steps])


def decays(params: optax.Params) -> optax.Params:
  """True for matrices: kernels and an untied output head.

  Norms and biases do not decay, nor does the embedding, tied or not: most of
  its rows get no gradient in a step and would only shrink.
  """

  def of_path(path: tuple[Any, ...], leaf: jax.Array) -> bool:
    del leaf
    names = [str(key.key) for key in path if hasattr(key, "key")]
    return names[-1] in ("kernel", "output")

  return jax.tree_util.tree_map_with_path(of_path, params)


def make_optimizer(
  config: OptimizerConfig, total_steps: int
) -> optax.GradientTransformation:
  """AdamW (Loshchilov and Hutter, 2019) by config.

  Args:
    config: see `OptimizerConfig`.
    total_steps: length of the schedule, warm-up included.

  Raises:
    ValueError: see `learning_rate`.
  """
  parts = []
  if config.clip_norm:
    parts.append(optax.clip_by_global_norm(config.clip_norm))
  parts.append(optax.scale_by_adam(config.b1, config.b2, config.eps))
  if config.weight_decay:
    parts.append(optax.add_decayed_weights(config.weight_decay, mask=decays))
  parts.append(optax.scale_by_learning_rate(learning_rate(config, total_steps)))
  return optax.chain(*parts)
