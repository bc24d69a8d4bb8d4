"""The laptop experiment: does LongCE learn retrieval faster than CE?

A small model is trained from scratch at a short context until it retrieves
there, then fine-tuned at four times the length, where its retrieval is broken.
Arms differ in the weights of the targets alone: same documents, same order.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from ml_collections import ConfigDict

from longctx_jax.experiments.retrieval import data, report, starts
from longctx_jax.experiments.retrieval.data import Documents
from longctx_jax.experiments.retrieval.passes import Passes
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper import contrast
from longctx_jax.runtime import files, settings
from longctx_jax.training import metrics, optimizer
from longctx_jax.training import state as state_lib
from longctx_jax.training.losses import LossConfig
from longctx_jax.training.state import TrainState

_JUDGED_STEPS = 20
# Arm -> which weights, and their floor.
ARMS = {
  "ce": ("none", 0.0),
  "longce": ("live", 0.0),
  "floor": ("live", 1.0),
  "shuffled": ("stored", 0.0),
  "oracle": ("stored", 0.0),
  "hard": ("stored", 0.0),
}


def check_config(config: ConfigDict) -> None:
  """Raises ValueError for settings that no run can have."""
  unknown = sorted(set(config.arms) - set(ARMS))
  if unknown or not config.arms or not config.seeds:
    raise ValueError(
      f"arms={tuple(config.arms)}, seeds={tuple(config.seeds)}: at least one "
      f"of each, arms among {', '.join(ARMS)}"
    )
  if max(config.eval.steps) > config.optimizer.steps:
    raise ValueError(
      f"eval.steps={tuple(config.eval.steps)} go past the last step, "
      f"{config.optimizer.steps}"
    )
  for arm in config.arms:
    _loss(config, arm)


def run(
  config: ConfigDict, *, workdir: str | pathlib.Path, overwrite: bool = False
) -> list[dict[str, Any]]:
  """Runs all arms that are not done yet, then writes the report.

  Args:
    config: as configs/retrieval.py.
    workdir: gets models/, arms/, results.json, report.html and the plots.
    overwrite: start anew over a run with other settings.

  Returns:
    A record per arm and seed; see `retrieval_report`.

  Raises:
    ValueError: settings that no run can have, or a workdir of another run.
  """
  check_config(config)
  workdir = pathlib.Path(workdir)
  if overwrite:
    for name in ("models", "arms"):
      shutil.rmtree(workdir / name, ignore_errors=True)
    (workdir / "settings.json").unlink(missing_ok=True)
  (workdir / "arms").mkdir(parents=True, exist_ok=True)
  identity = settings.flatten(config.to_dict())
  # More arms and seeds may come later.
  for name in ("program", "arms", "seeds", "blind.arms"):
    del identity[name]
  path = workdir / "settings.json"
  if path.exists():
    stored = json.loads(path.read_text())
    settings.require_same(stored, identity, where=str(workdir))
  _write(path, identity)
  lab = _Lab(config, workdir)
  records = [
    lab.record(start, arm, seed)
    for start, arms in (
      ("retrieves", config.arms),
      ("blind", config.blind.arms),
    )
    for seed in config.seeds
    for arm in arms
  ]
  _write(workdir / "results.json", records)
  report.write_report(workdir, records, config.eval.headline_step)
  return records


def _write(path: pathlib.Path, value: Any) -> None:
  files.write_text(path, json.dumps(value, indent=1) + "\n")


def _loss(config: ConfigDict, arm: str) -> LossConfig:
  weights, floor = ARMS[arm]
  return LossConfig(weights=weights, weight_floor=floor, **config.loss)


class _Lab:
  """Arms of the experiment, run when needed."""

  def __init__(self, config: ConfigDict, workdir: pathlib.Path):
    self._config = config
    self._workdir = workdir
    self._starts = starts.Starts(config, workdir / "models")

  def record(self, start: str, arm: str, seed: int) -> dict[str, Any]:
    """The record of an arm: read where it is done, else run and written."""
    path = self._workdir / "arms" / f"{start}-{arm}-{seed}.json"
    if path.exists():
      return json.loads(path.read_text())
    made = {"start": start, "arm": arm, "seed": seed}
    made |= self._fine_tune(self._starts.get(start), arm, seed)
    _write(path, made)
    logging.info(
      "%s %s, seed %d: exact match %s",
      start,
      arm,
      seed,
      ", ".join(
        f"{row['exact_match']:.3f} at {row['step']}" for row in made["rows"]
      ),
    )
    return made

  def _fine_tune(
    self, model: LoadedModel, arm: str, seed: int
  ) -> dict[str, Any]:
    config, rule = self._config, self._starts.rule()
    total, size = config.optimizer.steps, config.data.batch_size
    documents = self._starts.far_documents(
      1000 + seed, total * size, config.data.questions
    )
    loss = _loss(config, arm)
    weigh, scoring_seconds = self._weigher(arm, model, documents, seed)
    state = state_lib.create(model, optimizer.make_optimizer(rule, total))
    passes = self._starts.passes(model)
    seconds, rows, early = 0.0, [self._examine(passes, state, 0, 0.0)], []
    for step in range(1, total + 1):
      part = documents.take((step - 1) * size, step * size)
      batch = part.batch(
        windows=loss.windows if loss.weights == "live" else None,
        weights=weigh(state.params, step, part),
      )
      compiled = passes.step(state, batch, loss=loss, rule=rule, total=total)
      before = time.process_time()
      state, sums = compiled(state, batch)
      jax.block_until_ready(state)
      seconds += time.process_time() - before
      if step <= _JUDGED_STEPS:
        early.append(jax.device_get(sums))
      if step in config.eval.steps:
        rows.append(self._examine(passes, state, step, seconds))
    flat = arm != "ce" and metrics.warn_of_flat_weights(
      metrics.pooled_values(early)
    )
    return {
      "rows": rows,
      "flat_weights": flat,
      "mean_weight": metrics.pooled_values(early)["mean_weight"],
      "scoring_seconds": scoring_seconds,
    }

  def _examine(
    self, passes: Passes, state: TrainState, step: int, seconds: float
  ) -> dict[str, Any]:
    test = self._starts.test
    nll, right = passes.predict(state.params, test)
    sums, counts = data.sum_by_class(nll, test.classes)
    return {
      "step": step,
      "cpu_seconds": seconds,
      "exact_match": float(test.exact_match(right).mean()),
      "nll": float(nll.mean()),
      "nll_by_class": {
        name: float(total / count)
        for name, total, count in zip(data.CLASSES, sums, counts, strict=True)
        if count
      },
    }

  def _weigher(
    self, arm: str, model: LoadedModel, documents: Documents, seed: int
  ) -> tuple[Callable[..., np.ndarray | None], float]:
    """(params, step, documents of the step) -> weights; seconds to score."""
    gamma, size = self._config.loss.gamma, self._config.data.batch_size
    if arm == "oracle":
      answer = data.ANSWER
      return (
        lambda params, step, part: np.where(part.classes == answer, gamma, 1.0)
      ), 0.0
    if arm == "shuffled":
      loss = _loss(self._config, "longce")
      passes = self._starts.passes(model)
      rng = np.random.default_rng(seed)

      def shuffled(params: nnx.State, step: int, part: Documents) -> np.ndarray:
        # As the live weights are computed: to the last bit.
        found = map(jnp.asarray, passes.contrast(params, part, loss))
        weights = contrast.longce_weights(*found, gamma=gamma)
        return rng.permutation(np.ravel(weights)).reshape(weights.shape)

      return shuffled, 0.0
    if arm == "hard":
      stored, seconds = self._score(documents)
      return (
        lambda params, step, part: stored[(step - 1) * size : step * size]
      ), seconds
    return (lambda params, step, part: None), 0.0

  def _score(self, documents: Documents) -> tuple[np.ndarray, float]:
    """gamma on the evaluator's key tokens, 1 elsewhere; and CPU seconds."""
    loss = _loss(self._config, "longce")
    evaluator = self._starts.get("evaluator")
    passes = self._starts.passes(evaluator)
    # Compiled before the clock runs.
    passes.contrast(evaluator.params, documents, loss)
    before = time.process_time()
    long, short, mask = passes.contrast(evaluator.params, documents, loss)
    key = mask & contrast.key_token_mask(long, short, loss.thresholds)
    seconds = time.process_time() - before
    return np.where(key, loss.gamma, 1.0), seconds
