"""Trains a model with LongCE or CE; goes on where a run was stopped."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Sequence

import jax
from absl import logging
from ml_collections import ConfigDict

from longctx_jax.checkpoints import export
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.model import flops
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import chips
from longctx_jax.runtime.processes import Preemption
from longctx_jax.runtime.progress import StepClock
from longctx_jax.text import corpus
from longctx_jax.training import (
  checkpoint,
  inventory,
  metrics,
  optimizer,
  program,
  rows,
  start,
  validation,
)
from longctx_jax.training import config as config_lib
from longctx_jax.training import workdir as workdir_lib
from longctx_jax.training.start import Run


def train(
  config: ConfigDict,
  *,
  workdir: str | pathlib.Path,
  overwrite: bool = False,
  restart_at: int | None = None,
  documents: corpus.Corpus | None = None,
) -> LoadedModel:
  """Runs, or goes on with, a training; ends with the export.

  Args:
    config: as configs/llama2_7b.py.
    workdir: gets checkpoints/, model/, metrics.jsonl, tensorboard/, export/.
    overwrite: start anew over a run with other settings.
    restart_at: step of a checkpoint to go on from with a new optimizer, under
      the optimizer's settings of this config; see `start.start`.
    documents: those of the config, where they are open already.

  Returns:
    The trained model, parameters in float32.

  Raises:
    ValueError: settings that no run can have, a workdir of another run, or a
      model that could not be exported; before the first step.
    files.InUse: another run is at work in the workdir.
    metrics.Diverged: a loss that is not finite; the message says how to go on.
    SystemExit: SIGTERM or Ctrl-C came, and the state was saved.
  """
  config_lib.check_config(config)
  workdir = pathlib.Path(workdir)
  with workdir_lib.locked(workdir):
    if overwrite:
      workdir_lib.clear(workdir)
    saved = checkpoint.Checkpoints(
      workdir / workdir_lib.CHECKPOINTS, keep=config.checkpoint.keep
    )
    with contextlib.closing(saved):
      run = start.start(
        config, saved, workdir, restart_at=restart_at, documents=documents
      )
      _run(config, run, saved, workdir)
  return run.model_now()


def _run(
  config: ConfigDict,
  run: Run,
  saved: checkpoint.Checkpoints,
  workdir: pathlib.Path,
) -> None:
  """What is left of a run, and its export."""
  workdir_lib.write_facts(
    workdir,
    run.model.config,
    dtype=config.checkpoint.export_dtype,
    origin=run.origin,
  )
  if run.ended_at:
    workdir_lib.set_export_aside(workdir, run.ended_at)
  is_last = run.step == config.optimizer.steps
  if is_last and (workdir / workdir_lib.EXPORT).exists():
    logging.info("%s is finished: nothing to do", workdir)
    return
  _rehearse_export(config, run, workdir)
  log = metrics.MetricLog(
    workdir,
    after=run.step if saved.steps else -1,
    writes=jax.process_index() == 0,
  )
  with contextlib.closing(log), Preemption() as preemption:
    try:
      _loop(config, run, saved, log, preemption)
    except metrics.Diverged as error:
      saved.wait()
      advice = _advise(config, saved.steps, error.step)
      raise metrics.Diverged(f"{error}. {advice}", error.step) from error
  saved.wait()
  if run.step < config.optimizer.steps:
    logging.warning(
      "told to end: saved after step %d; the same command goes on", run.step
    )
    raise SystemExit(preemption.status)
  _export(run, workdir, export.write_folder, config)


def _advise(config: ConfigDict, steps: Sequence[int], diverged: int) -> str:
  """The flags to add to the command, once the loss is not finite."""
  # What the step before it left gave that loss.
  good = [step for step in steps if step + 1 < diverged]
  lower = config.optimizer.learning_rate / 10
  return (
    f"{'Go on' if good else 'No checkpoint is from before it: start anew'} "
    "with another optimizer; add to the command: "
    f"{f'--restart_at={good[-1]}' if good else '--overwrite'} "
    f"--config.optimizer.learning_rate={lower:g} (or more warmup_steps, or "
    "clip_norm)"
  )


def _loop(
  config: ConfigDict,
  run: Run,
  saved: checkpoint.Checkpoints,
  log: metrics.MetricLog,
  preemption: Preemption,
) -> None:
  """Steps up to the last, or to a preemption.

  Sums are read after the next step is dispatched.
  """
  total, every = config.optimizer.steps, config.eval.log_every
  rate = optimizer.learning_rate(
    config_lib.optimizer_config(config), total - run.first_step
  )
  examine = _examiner(config, run, log)
  clock = StepClock(total)
  report = metrics.Reporter(
    log,
    clock,
    total=total,
    learning_rate=lambda done: rate(done - run.first_step),
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
        compiled = program.compile_step(
          config, run.model, run.state, batch, first_step=run.first_step
        )
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
            identity=run.identity,
          )
    if due:
      return


def _utilisation(
  config: ConfigDict, model: LoadedModel
) -> Callable[[float], float | None]:
  """MFU as a function of steps per second; None where no peak is known."""
  peak = chips.peak_flops(jax.devices()[0].device_kind)
  if peak is None:
    return lambda steps_per_second: None
  loss, seq_len = config.loss, config.data.seq_len
  windows = Windows(loss.short_len, loss.stride)
  live = loss.weights == "live"
  done = flops.row_operations(
    model.config,
    rows=config.data.batch_size,
    length=seq_len,
    n_windows=rows.max_windows(seq_len, windows) if live else 0,
    windows=windows,
    trained=True,
  ).total
  return lambda rate: done * rate / (peak * jax.device_count())


def _examiner(
  config: ConfigDict, run: Run, log: metrics.MetricLog
) -> Callable[[Run], None]:
  """Evaluates a run on the held-out key tokens; nothing where none are."""
  if not config.eval.every:
    return lambda run: None
  store = store_lib.read_store(config.eval.key_tokens)
  documents = corpus.open_corpus(
    list(config.eval.sources),
    text_column=config.eval.text_column,
    id_column=config.eval.id_column,
  )
  if run.data.holds_texts:
    known = inventory.count_known(
      documents,
      run.data.digests,
      run.model.tokenizer,
      seq_len=config.data.seq_len,
    )
    if known:
      logging.warning(
        "%d of %d held-out documents are in the training data: what is found "
        "on them says nothing of new texts",
        known,
        documents.count,
      )
  held = validation.HeldOut(
    store.with_thresholds(config.eval.alpha, config.eval.beta),
    documents,
    max_length=config.eval.max_length,
    dtype=config_lib.compute_dtype(config),
    backend=config.model.backend,
  )

  def examine(run: Run) -> None:
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
  config: ConfigDict, run: Run, workdir: pathlib.Path
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
  run: Run,
  workdir: pathlib.Path,
  write: Callable[..., None],
  config: ConfigDict,
) -> None:
  write(
    export.ParameterSource(run.state.params, run.model.config),
    run.model.config,
    workdir / workdir_lib.EXPORT,
    dtype=config.checkpoint.export_dtype,
    origin=run.origin,
  )
