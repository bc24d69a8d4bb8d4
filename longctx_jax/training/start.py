"""Where a run begins: anew, at its last checkpoint, or at one named."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax.numpy as jnp
from absl import logging
from ml_collections import ConfigDict

from longctx_jax.checkpoints import hub, loading
from longctx_jax.model import row_parts, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.text.corpus import Corpus
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import config as config_lib
from longctx_jax.training import data, optimizer, program, rows
from longctx_jax.training import state as state_lib
from longctx_jax.training import workdir as workdir_lib
from longctx_jax.training.checkpoint import Checkpoints
from longctx_jax.training.state import TrainState


@dataclasses.dataclass
class Run:
  """A training at some step.

  Attributes:
    model: facts, tokenizer and mesh; shapes stand where parameters would.
    state: parameters and optimizer.
    data: what it trains on.
    iterator: batches from `step` on.
    step: steps done.
    first_step: step at which its optimizer began: 0, or that of a restart.
    identity: what determines its numbers, for its checkpoints.
    origin: folder or .gguf file of config and tokenizer. Found once: the hub
      may be gone, or newer, when the run ends.
    ended_at: steps of the finished run that it goes on from; 0 for none.
  """

  model: LoadedModel
  state: TrainState
  data: data.TrainingData
  iterator: data.BatchIterator
  step: int
  first_step: int
  identity: dict[str, Any]
  origin: pathlib.Path
  ended_at: int

  def model_now(self) -> LoadedModel:
    """The model with the parameters of this step."""
    return dataclasses.replace(self.model, params=self.state.params)


@dataclasses.dataclass(frozen=True)
class _Point:
  """The checkpoint that a run goes on from.

  `restarts`: with a new optimizer. `ended_at`: see `Run`.
  """

  step: int
  meta: dict[str, Any]
  restarts: bool
  first_step: int
  ended_at: int


def start(
  config: ConfigDict,
  saved: Checkpoints,
  workdir: pathlib.Path,
  *,
  restart_at: int | None = None,
  documents: Corpus | None = None,
) -> Run:
  """The run as a checkpoint left it, or at step 0.

  Args:
    config: as configs/llama2_7b.py.
    saved: the checkpoints of the run.
    workdir: of the run.
    restart_at: step of the checkpoint to go on from with a new optimizer: its
      moments start at zero, its schedule at this step. Later checkpoints are
      removed. None: the last one, with the optimizer that it has.
    documents: those of the config, where they are open already.

  Raises:
    ValueError: another run, or settings that don't fit model, data or devices.
    FileNotFoundError: data or a model that isn't there.
  """
  mesh = sharding.make_mesh(dict(config.mesh))
  rows.require_batch_size(
    config.data.batch_size,
    accumulate=config.optimizer.accumulate,
    ways=sharding.row_ways(mesh),
  )
  row_parts.require_length(
    config.data.seq_len, mesh.shape[row_parts.AXIS], name="data.seq_len"
  )
  data_config = config_lib.data_config(config, workdir)
  # What is missing is said before weights are read.
  documents = documents or data.open_corpus(data_config)
  model = config_lib.adapted(
    config,
    loading.describe_model(config.model.path, mesh=mesh, dtype=jnp.float32),
  )
  point = _find_point(config, saved, restart_at)
  first_step = point.first_step if point else 0
  rule = optimizer.make_optimizer(
    config_lib.optimizer_config(config), config.optimizer.steps - first_step
  )
  if point:
    checksum = loading.stored_checksum(config.model.path)
    identity = config_lib.identity(config, model, checksum, first_step)
    _require_same(config, point, identity, workdir)
    state = _restore(saved, point, model, rule)
  else:
    loaded = loading.load_model(config.model.path, mesh=mesh, dtype=jnp.float32)
    identity = config_lib.identity(config, model, loaded.checksum, 0)
    # The state has its own copy: that of the model would stay for the whole
    # run.
    state = state_lib.create(
      dataclasses.replace(model, params=loaded.params), rule
    )
  share, shares = sharding.row_share(mesh)
  pipeline = data.open_training_data(
    data_config,
    _tokenizer(config, model),
    corpus=documents,
    vocab_size=model.config.vocab_size,
    with_lengths=bool(model.config.rope_by_length),
    share=share,
    shares=shares,
  )
  if pipeline.num_steps < config.optimizer.steps:
    raise ValueError(
      f"epochs={config.data.epochs} are {pipeline.num_steps} steps of the "
      f"{config.optimizer.steps} that are asked for: lower optimizer.steps, or "
      "set epochs=0, which is endless"
    )
  origin, _ = hub.resolve(config.model.path)
  return Run(
    model=model,
    state=state,
    data=pipeline,
    iterator=pipeline.iterator(point.meta["data"] if point else None),
    step=point.step if point else 0,
    first_step=first_step,
    identity=identity,
    origin=loading.facts_folder(origin),
    ended_at=point.ended_at if point else 0,
  )


def _tokenizer(config: ConfigDict, model: LoadedModel) -> TextTokenizer | None:
  """Token ids need none, unless weights are to be put onto their text."""
  ids_alone = config.data.ids_column and not config.data.key_tokens
  return None if ids_alone else model.tokenizer


def _find_point(
  config: ConfigDict, saved: Checkpoints, restart_at: int | None
) -> _Point | None:
  """The checkpoint to go on from; None where there is none yet."""
  if not saved.steps:
    if restart_at is not None:
      raise ValueError(f"restart_at={restart_at}: there is no checkpoint yet")
    return None
  step = saved.steps[-1]
  meta = saved.read_meta(step)
  stored = meta["settings"]
  first_step = config_lib.first_step(stored)
  steps = stored["optimizer.steps"]
  ended_at = steps if step == steps else 0
  # The command of a restart, once more, goes on with what it began.
  if restart_at is None or (restart_at == first_step and step > restart_at):
    more = ended_at and config.optimizer.steps > steps
    return _Point(step, meta, False, first_step, ended_at if more else 0)
  if restart_at >= config.optimizer.steps:
    raise ValueError(
      f"restart_at={restart_at} leaves none of {config.optimizer.steps} steps: "
      "restart earlier, or raise optimizer.steps"
    )
  if restart_at not in saved.steps:
    raise ValueError(
      f"restart_at={restart_at}: there are checkpoints of steps "
      f"{', '.join(map(str, saved.steps))}"
    )
  meta = saved.read_meta(restart_at)
  return _Point(restart_at, meta, True, restart_at, ended_at)


def _require_same(
  config: ConfigDict,
  point: _Point,
  identity: dict[str, Any],
  workdir: pathlib.Path,
) -> None:
  """Raises ValueError where the checkpoint is of another run."""
  config_lib.require_same_run(
    point.meta["settings"],
    identity,
    other_optimizer=point.restarts,
    other_steps=bool(point.ended_at),
    where=workdir,
    remedy=f"Take another --workdir, or --overwrite, which removes "
    f"{workdir_lib.describe(workdir)}. Where the optimizer alone is another, "
    "--restart_at=STEP goes on from a checkpoint",
  )
  rate = optimizer.learning_rate(
    config_lib.optimizer_config(config),
    config.optimizer.steps - point.first_step,
  )
  total = config.optimizer.steps
  if point.restarts or point.ended_at:
    logging.info(
      "going on after step %d of %d with %s: the learning rate follows "
      "schedule=%s from step %d to %d and is %.3g at the next one",
      point.step,
      point.ended_at or total,
      "a new optimizer" if point.restarts else f"{total} steps in all",
      config.optimizer.schedule,
      point.first_step,
      total,
      rate(point.step - point.first_step),
    )
  else:
    logging.info("going on after step %d", point.step)


def _restore(
  saved: Checkpoints, point: _Point, model: LoadedModel, rule: Any
) -> TrainState:
  """The state of a checkpoint; with a new optimizer where one begins."""
  like = program.describe_state(model, rule)
  if not point.restarts:
    return saved.restore(point.step, like)
  part = {"step": like.step, "params": like.params}
  found = saved.restore(point.step, part, partial=True)
  state = state_lib.create(
    dataclasses.replace(model, params=found["params"]), rule
  )
  saved.remove_after(point.step)
  return dataclasses.replace(state, step=found["step"])
