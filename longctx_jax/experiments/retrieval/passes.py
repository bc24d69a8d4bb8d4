"""The compiled programs of the retrieval experiment on one architecture."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from longctx_jax.experiments.retrieval.data import Documents
from longctx_jax.model import log_probs
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows
from longctx_jax.training import optimizer, program, step
from longctx_jax.training.losses import LossConfig
from longctx_jax.training.optimizer import OptimizerConfig

_BACKEND = "plain"  # At 256 positions the scores of all pairs are the fastest.
# Documents that go through a pass at once.
_ROWS = 16


@dataclasses.dataclass
class Passes:
  """Programs of one model, compiled when they are first needed.

  Attributes:
    model: its parameters are not read.
    compiled: programs by what they compute and the shape of the batch.
  """

  model: LoadedModel
  compiled: dict[Any, Any] = dataclasses.field(default_factory=dict)

  def step(
    self,
    state: Any,
    batch: dict[str, np.ndarray],
    *,
    loss: LossConfig,
    rule: OptimizerConfig,
    total: int,
  ) -> jax.stages.Compiled:
    """The training step for a batch of this shape; it takes state and batch.

    Args:
      state: `TrainState`; it is donated when the step runs.
      batch: see `step.make_train_step`.
      loss: which weights.
      rule: of the optimizer.
      total: steps of its schedule.
    """
    function = step.make_train_step(
      self.model,
      optimizer.make_optimizer(rule, total),
      loss,
      compute_dtype="float32",
      backend=_BACKEND,
      remat="none",
    )
    key = (loss, rule, total)
    return self._get(key, function, state, batch, donate_argnums=0)

  def predict(
    self, params: nnx.State, documents: Documents
  ) -> tuple[Float[np.ndarray, "B T"], Bool[np.ndarray, "B T"]]:
    """NLL of the targets in nats, and whether each is the likeliest id."""

    def predict(params: nnx.State, batch: step.Batch) -> tuple[Array, Array]:
      model = nnx.merge(self.model.graphdef, params)
      logits = model.logits(model(batch["inputs"], backend=_BACKEND))
      targets = batch["targets"]
      picked = jnp.take_along_axis(logits, targets[..., None], axis=2)
      nll = jax.nn.logsumexp(logits, axis=2) - picked[..., 0]
      return nll, logits.argmax(2) == targets

    return self._over(documents, "predict", predict, params)

  def contrast(
    self, params: nnx.State, documents: Documents, loss: LossConfig
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Long and short log-probs, and where there is a short one; all [B, T]."""

    def contrast(
      params: nnx.State, batch: step.Batch
    ) -> tuple[Array, Array, Array]:
      model = nnx.merge(self.model.graphdef, params)
      long = log_probs.target_log_probs(
        model(batch["inputs"], backend=_BACKEND),
        model.head(),
        batch["targets"],
        softcap=0.0,
        chunk=batch["inputs"].shape[1],
      )
      short, mask = step.short_pass(
        params, batch, model=self.model, loss=loss, backend=_BACKEND
      )
      return long, short, mask

    key = "contrast", loss
    return self._over(documents, key, contrast, params, loss.windows)

  def _over(
    self,
    documents: Documents,
    key: Any,
    function: Callable[..., Any],
    params: nnx.State,
    windows: Windows | None = None,
  ) -> tuple[np.ndarray, ...]:
    """A pass over documents, some at a time, put together on the host."""
    outs = []
    for first in range(0, len(documents), _ROWS):
      part = documents.take(first, min(first + _ROWS, len(documents)))
      batch = part.batch(windows=windows)
      outs.append(self._get(key, function, params, batch)(params, batch))
    return tuple(np.concatenate(part) for part in zip(*outs, strict=True))

  def _get(
    self,
    key: Any,
    function: Callable[..., Any],
    *arguments: Any,
    **options: Any,
  ) -> jax.stages.Compiled:
    key = key, arguments[-1]["inputs"].shape
    if key not in self.compiled:
      self.compiled[key] = program.compile_on(
        self.model.mesh, function, *arguments, **options
      )
    return self.compiled[key]
