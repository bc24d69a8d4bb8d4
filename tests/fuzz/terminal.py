"""Scripts as a user runs them, in this process, with what they compute kept."""

import contextlib
import dataclasses
import hashlib
import io
import pathlib
import runpy
import sys
import traceback
import warnings

import filelock
import numpy as np
import pyarrow.parquet as pq
from absl import flags
from support.command_line import ROOT
from support.tiny_runs import share_passes

from fuzz import truth
from fuzz.disk import Killed
from longctx_jax import commands
from longctx_jax.checkpoints import loading
from longctx_jax.scoring import scorer as scorer_lib

KILLED, INTERRUPTED = -9, 130


@dataclasses.dataclass(frozen=True)
class Finished:
  """What a command left: status, what it wrote, what it cost."""

  status: int
  out: str
  err: str
  writes: int
  passes: int
  loads: int


class Terminal:
  """Runs scripts; a model is loaded once, and a pass is run once."""

  def __init__(self, disk, monkeypatch, kept, seeds):
    """Patches what loads, computes and writes.

    Args:
      disk: sees the writes.
      monkeypatch: takes the patches back.
      kept: a dict, the same for all terminals that share their work.
      seeds: of the weights, by checksum.
    """
    self._disk, self._kept, self._seeds = disk, kept, seeds
    self.passes = self.loads = self._interrupt_at = 0
    share_passes(monkeypatch, kept.setdefault("compiled", {}))
    monkeypatch.setattr(scorer_lib.Scorer, "_call", self._call())
    monkeypatch.setattr(loading, "load_model", self._load_model())
    monkeypatch.setattr(pq, "write_table", self._write_table())
    monkeypatch.setattr(filelock.BaseFileLock, "acquire", self._acquire())
    disk.watch(monkeypatch)

  def run(self, *argv, at=0, then=None, interrupt_at=0):
    """Runs [script, argument, ...] as one process.

    Args:
      argv: the script, relative to the repository, and its arguments.
      at: the write before which something happens; 0 is none.
      then: what happens; None kills the process.
      interrupt_at: the pass of a model before which Ctrl-C comes; 0 is none.
    """
    out, err = io.StringIO(), io.StringIO()
    before = self.passes, self.loads, self._interrupt_at
    self.passes, self.loads, self._interrupt_at = 0, 0, interrupt_at
    with (
      self._disk.process(at=at, then=then) as process,
      _as_started(),
      warnings.catch_warnings(),
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
    ):
      warnings.simplefilter("ignore")  # As a process without -W does.
      status = _run(argv)
      done = Finished(
        status, out.getvalue(), err.getvalue(),
        process.writes, self.passes, self.loads,
      )  # fmt: skip
    self.passes, self.loads, self._interrupt_at = before
    return done

  def _call(self):
    call, kept = scorer_lib.Scorer._call, self._kept.setdefault("passes", {})

    def run(scorer, function, kind, ids, lengths):
      self.passes += 1
      if self.passes == self._interrupt_at:
        raise KeyboardInterrupt
      model = scorer.model
      key = model.checksum, kind, ids.shape, ids.tobytes(), tuple(lengths)
      if key not in kept:
        kept[key] = call(scorer, function, kind, ids, lengths)
      found = np.array(kept[key])
      for row, text in enumerate(ids):
        if truth.is_damaged(self._seeds[model.checksum], text.tolist(), kind):
          found[row] = np.nan
      return found

    return run

  def _load_model(self):
    load, kept = loading.load_model, self._kept.setdefault("models", {})

    def load_model(path, **options):
      self.loads += 1
      weights = pathlib.Path(path) / "model.safetensors"
      if not weights.exists():
        return load(path, **options)
      key = hashlib.sha256(weights.read_bytes()).digest()
      if key not in kept:
        kept[key] = load(path, **options)
      return dataclasses.replace(kept[key], name=str(path))

    return load_model

  def _acquire(self):
    acquire = filelock.BaseFileLock.acquire

    def acquire_now(lock, timeout=None, **options):
      waits = (lock.timeout if timeout is None else timeout) < 0
      try:
        return acquire(lock, 0 if waits else timeout, **options)
      except filelock.Timeout:
        if waits:
          # For the process around it, and so for ever.
          self._disk.end_process()
        raise

    return acquire_now

  def _write_table(self):
    write_table = pq.write_table

    def write(table, where, **options):
      if not self._disk.is_watched(where):
        return write_table(table, where, **options)
      with open(where, "wb") as file:
        return write_table(table, file, **options)

    return write


def _run(argv):
  script, *arguments = map(str, argv)
  before, sys.argv = sys.argv, [script, *arguments, "--compilation_cache="]
  try:
    runpy.run_path(str(ROOT / script), run_name="__main__")
    return 0
  except SystemExit as stop:
    return stop.code or 0
  except Killed:
    return KILLED
  except BaseException:  # as Python ends a script that raises
    traceback.print_exc()
    return 1
  finally:
    sys.argv = before


def _copied(value):
  if isinstance(value, dict):
    return {name: _copied(inner) for name, inner in value.items()}
  return list(value) if isinstance(value, list) else value


# What scripts change of the modules that they share, as it is at the start.
_FLAGS = _copied(flags.FLAGS.__dict__)
_COMMANDS = dict(vars(commands))


@contextlib.contextmanager
def _as_started():
  """Flags and modules as a process finds them, and then as they were."""
  before = dict(flags.FLAGS.__dict__), dict(vars(commands))
  flags.FLAGS.__dict__.update(_copied(_FLAGS))
  flags.FLAGS.unparse_flags()
  vars(commands).update(_COMMANDS)
  try:
    yield
  finally:
    flags.FLAGS.__dict__.update(before[0])
    vars(commands).update(before[1])
