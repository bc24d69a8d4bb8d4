"""The folder of a run: who may write there, what it holds, and what goes."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil

import jax
from absl import logging

from longctx_jax.checkpoints import step_folder
from longctx_jax.model.config import ModelConfig
from longctx_jax.runtime import files, processes
from longctx_jax.training import metrics

CHECKPOINTS, EXPORT = "checkpoints", "export"
_FOLDERS = (CHECKPOINTS, EXPORT, step_folder.FACTS, metrics.EVENTS)


def locked(workdir: pathlib.Path) -> contextlib.AbstractContextManager[None]:
  """Keeps other runs out while it is open.

  Raises:
    files.InUse: another run is at work there.
  """
  if jax.process_index():  # The first process holds it for all.
    return contextlib.nullcontext()
  return files.locked(workdir / ".lock", doing="training in")


def describe(workdir: pathlib.Path) -> str:
  """What `clear` removes, e.g. "checkpoints (steps 4, 8), export"."""
  found = [name for name in _FOLDERS if (workdir / name).is_dir()]
  steps = sorted(
    int(path.name)
    for path in (workdir / CHECKPOINTS).glob("*")
    if path.name.isdigit()
  )
  if steps:
    named = f"{CHECKPOINTS} (steps {', '.join(map(str, steps))})"
    found = [named if name == CHECKPOINTS else name for name in found]
  if (workdir / metrics.ROWS).exists():
    found.append(f"{metrics.ROWS} ({len(metrics.read_metrics(workdir))} rows)")
  return ", ".join(found)


def clear(workdir: pathlib.Path) -> None:
  """Removes a run, and says what that is; tokens and all else stay."""
  if found := describe(workdir):
    logging.warning("--overwrite removes of %s: %s", workdir, found)
  for name in _FOLDERS:
    shutil.rmtree(workdir / name, ignore_errors=True)
  (workdir / metrics.ROWS).unlink(missing_ok=True)


def set_export_aside(workdir: pathlib.Path, steps: int) -> None:
  """Makes room for another export; the one of `steps` steps gets its number."""
  export, aside = workdir / EXPORT, workdir / f"{EXPORT}_{steps}"
  if jax.process_index() == 0 and export.exists():
    for number in itertools.count(2):
      if not aside.exists():
        break
      aside = workdir / f"{EXPORT}_{steps}.{number}"
    os.replace(export, aside)
    logging.info("%s, the export of %d steps, is now %s", export, steps, aside)
  # None of them may take it for the export of its own run.
  processes.meet("export set aside")


def write_facts(
  workdir: pathlib.Path,
  config: ModelConfig,
  *,
  dtype: str,
  origin: pathlib.Path,
) -> None:
  """Writes what makes a model of each checkpoint; see `step_folder`."""
  if jax.process_index() == 0:
    step_folder.write_facts(
      workdir / step_folder.FACTS, config, dtype=dtype, origin=origin
    )
