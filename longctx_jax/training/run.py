"""Trains a model with LongCE or CE; goes on where a run was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from ml_collections import ConfigDict

from longctx_jax.checkpoints import export, hub, loading
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.model import flops, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import settings
from longctx_jax.runtime.processes import STATUS, Preemption
from longctx_jax.runtime.progress import StepClock
from longctx_jax.text import corpus
from longctx_jax.text.tokenizer import TextTokenizer
from longctx_jax.training import (
  checkpoint,
  data,
  metrics,
  optimizer,
  program,
  rows,
  validation,
)
from longctx_jax.training import config as config_lib
from longctx_jax.training import state as state_lib
from longctx_jax.training.state import TrainState


def train(
  config: ConfigDict, *, workdir: str | pathlib.Path, overwrite: bool = False
) -> LoadedModel:
  """Runs, or goes on with, a training; ends with the export.

  Args:
    config: as configs/llama2_7b.py.
    workdir: gets checkpoints/, metrics.jsonl, tensorboard/ and export/.
    overwrite: start anew over a run with other settings.

  Returns:
    The trained model, parameters in float32.

  Raises:
    ValueError: settings that no run can have, a workdir of another run, or a
      model that could not be exported; before the first step.
    metrics.Diverged: a loss that is not finite; the last checkpoint is good.
    SystemExit: SIGTERM came, and the state was saved.
  """
  config_lib.check_config(config)
  workdir = pathlib.Path(workdir)
  if overwrite:
    for name in ("checkpoints", "export", "tensorboard"):
      shutil.rmtree(workdir / name, ignore_errors=True)
    (workdir / "metrics.jsonl").unlink(missing_ok=True)
  workdir.mkdir(parents=True, exist_ok=True)
  saved = checkpoint.Checkpoints(
    workdir / "checkpoints", keep=config.checkpoint.keep
  )
  with contextlib.closing(saved):
    run = _start(config, saved, workdir)
    if run.step == config.optimizer.steps and (workdir / "export").exists():
      logging.info("%s is finished: nothing to do", workdir)
      return run.model_now()
    _rehearse_export(config, run, workdir)
    log = metrics.MetricLog(
      workdir, after=run.step, writes=jax.process_index() == 0
    )
    with contextlib.closing(log), Preemption() as preemption:
      _loop(config, run, saved, log, preemption)
    saved.wait()
    if run.step < config.optimizer.steps:
      logging.warning(
        "told to end: saved after step %d; the same command goes on", run.step
      )
      raise SystemExit(STATUS)
    _export(run, workdir, export.write_folder, config)
  return run.model_now()


@dataclasses.dataclass
class _Run:
  """A training at some step."""

  model: LoadedModel
  state: TrainState
  iterator: Any
  step: int
  # Found once: the hub may be gone, or newer, when the run ends.
  origin: pathlib.Path

  def model_now(self) -> LoadedModel:
    return dataclasses.replace(self.model, params=self.state.params)


def _start(
  config: ConfigDict, saved: checkpoint.Checkpoints, workdir: pathlib.Path
) -> _Run:
  """The run as its last checkpoint left it, or at step 0."""
  mesh = sharding.make_mesh(dict(config.mesh))
  data_config = config_lib.data_config(config, workdir)
  # What is missing is said before weights are read.
  documents = data.open_corpus(data_config)
  step = saved.steps[-1] if saved.steps else 0
  meta = saved.read_meta(step) if saved.steps else None
  if meta:
    settings.require_same(
      meta["settings"], config_lib.identity(config), where="the workdir"
    )
  load = loading.describe_model if meta else loading.load_model
  model = config_lib.adapted(
    config, load(config.model.path, mesh=mesh, dtype=jnp.float32)
  )
  rule = optimizer.make_optimizer(
    config_lib.optimizer_config(config), config.optimizer.steps
  )
  if meta:
    state = saved.restore(step, program.describe_state(model, rule))
    logging.info("going on after step %d", step)
  else:
    state = state_lib.create(model, rule)
    # The state has its own copy: this one would stay for the whole run.
    shapes = jax.tree.map(jax.typeof, model.params)
    model = dataclasses.replace(model, params=shapes)
  pipeline = data.open_training_data(
    data_config,
    _tokenizer(config, model),
    corpus=documents,
    with_lengths=bool(model.config.rope_by_length),
  )
  if pipeline.num_steps < config.optimizer.steps:
    raise ValueError(
      f"epochs={config.data.epochs} are {pipeline.num_steps} steps of the "
      f"{config.optimizer.steps} that are asked for: lower optimizer.steps, or "
      "set epochs=0, which is endless"
    )
  iterator = pipeline.iterator(meta["data"] if meta else None)
  origin, _ = hub.resolve(config.model.path)
  return _Run(model, state, iterator, step, origin)


def _tokenizer(config: ConfigDict, model: LoadedModel) -> TextTokenizer | None:
  """Token ids need none, unless weights are to be put onto their text."""
  ids_alone = config.data.ids_column and not config.data.key_tokens
  return None if ids_alone else model.tokenizer


def _loop(
  config: ConfigDict,
  run: _Run,
  saved: checkpoint.Checkpoints,
  log: metrics.MetricLog,
  preemption: Preemption,
) -> None:
  """Steps up to the last, or to a preemption.

  Sums are read after the next step is dispatched.
  """
  total, every = config.optimizer.steps, config.eval.log_every
  identity = config_lib.identity(config)
  examine = _examiner(config, run, log)
  clock = StepClock(total)
  report = metrics.Reporter(
    log,
    clock,
    total=total,
    learning_rate=optimizer.learning_rate(
      config_lib.optimizer_config(config), total
    ),
    weighted=config.loss.weights != "none",
    utilisation=_utilisation(config, run.model),
  )
  compiled = None
  if not run.step:
    with clock.pause():
      examine(run)
  while run.step < total:
    batch = program.place_batch(next(run.iterator), run.model.mesh)
    if compiled is None:
      with clock.pause():
        compiled = program.compile_step(config, run.model, run.state, batch)
    with jax.transfer_guard("disallow"):
      run.state, sums = compiled(run.state, batch)
    run.step += 1
    if len(report.pending) == every:
      report.report()
    report.pending.append((run.step, sums))
    due = preemption.is_due(run.step)
    ends = due or run.step == total
    saves = run.step % config.checkpoint.every == 0 or ends
    examines = config.eval.every and run.step % config.eval.every == 0
    if saves or examines:
      # Nothing is kept that was not seen to be finite.
      report.report()
      with clock.pause():
        if (examines or ends) and not due:
          examine(run)
        # Last, so that a checkpoint has all rows up to its step.
        if saves:
          saved.save(
            run.step,
            run.state,
            data=run.iterator.get_state(),
            identity=identity,
          )
    if due:
      return


def _utilisation(
  config: ConfigDict, model: LoadedModel
) -> Callable[[float], float | None]:
  """MFU as a function of steps per second; None where no peak is known."""
  peak = flops.peak_flops(jax.devices()[0].device_kind)
  if peak is None:
    return lambda steps_per_second: None
  loss, seq_len = config.loss, config.data.seq_len
  windows = Windows(loss.short_len, loss.stride)
  live = loss.weights == "live"
  done = flops.step_flops(
    model.config,
    rows=config.data.batch_size,
    seq_len=seq_len,
    n_windows=rows.max_windows(seq_len, windows) if live else 0,
    windows=windows,
  )
  return lambda rate: done * rate / (peak * jax.device_count())


def _examiner(
  config: ConfigDict, run: _Run, log: metrics.MetricLog
) -> Callable[[_Run], None]:
  """Evaluates a run on the held-out key tokens; nothing where none are."""
  if not config.eval.every:
    return lambda run: None
  store = store_lib.read_store(config.eval.key_tokens)
  held = validation.HeldOut(
    store.with_thresholds(config.eval.alpha, config.eval.beta),
    corpus.open_corpus(
      list(config.eval.sources),
      text_column=config.eval.text_column,
      id_column=config.eval.id_column,
    ),
    max_length=config.eval.max_length,
    dtype=config_lib.compute_dtype(config),
    backend=config.model.backend,
  )

  def examine(run: _Run) -> None:
    found = held.evaluate(run.model_now())
    log.write(
      run.step,
      {
        "eval_ppl": found.ppl,
        "eval_longppl": found.longppl,
        "eval_key_tokens": found.n_key_tokens,
      },
    )
    logging.info("step %d | held out: %s", run.step, found)

  return examine


def _rehearse_export(
  config: ConfigDict, run: _Run, workdir: pathlib.Path
) -> None:
  """A long run must not fail at its end."""
  if any(table.rope_type == "eabf" for table in run.model.config.ropes):
    logging.warning(
      "stock transformers has no EABF: %s/export will need the patch of the "
      "paper's code, or this library",
      workdir,
    )
  _export(run, workdir, export.rehearse, config)


def _export(
  run: _Run,
  workdir: pathlib.Path,
  write: Callable[..., None],
  config: ConfigDict,
) -> None:
  write(
    export.ParameterSource(run.state.params, run.model.config),
    run.model.config,
    workdir / "export",
    dtype=config.checkpoint.export_dtype,
    origin=run.origin,
  )
