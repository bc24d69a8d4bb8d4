"""Scripts in processes of their own, which SIGKILL ends at a write.

A server imports the package and never starts a device, so that it can fork for
each command.
"""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import pytest
from support.command_line import ROOT, environment

from fuzz.disk import Disk
from fuzz.terminal import Finished, Terminal


class Server:
  """Forks for each command; stops with its context."""

  def __init__(self, seeds, folder):
    """Takes the seeds by checksum, and a folder for what is computed."""
    variables = {
      "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    }
    if cache := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
      variables["JAX_COMPILATION_CACHE_DIR"] = cache
    self._child = subprocess.Popen(
      [sys.executable, __file__, json.dumps(seeds), str(folder)],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=environment(folder, **variables),
    )

  def __enter__(self):
    return self

  def __exit__(self, *error):
    self._child.stdin.close()
    self._child.wait(timeout=60)
    self._child.stdout.close()

  def terminal(self, root):
    """Runs commands as `Terminal` does, but in processes."""
    return _Terminal(self._child, root)


class _Terminal:
  def __init__(self, server, root):
    self._server, self._root = server, str(root)

  def run(self, *argv, at=0, interrupt_at=0):
    request = self._root, [str(word) for word in argv], at, interrupt_at
    print(json.dumps(request), file=self._server.stdin, flush=True)
    return Finished(**json.loads(self._server.stdout.readline()))


class _Passes:
  """Passes of models by their inputs, in files that processes share."""

  def __init__(self, folder):
    self._folder = pathlib.Path(folder)

  def _path(self, key):
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    return self._folder / f"{digest}.npy"

  def __contains__(self, key):
    return self._path(key).exists()

  def __getitem__(self, key):
    return np.load(self._path(key))

  def __setitem__(self, key, value):
    temporary = self._path(key).with_suffix(f".{os.getpid()}.npy")
    np.save(temporary, value)
    temporary.rename(self._path(key))


def _serve(seeds, folder):
  # That a fork of a process with threads is unsafe; here none runs yet.
  warnings.simplefilter("ignore")
  for line in sys.stdin:
    root, argv, at, interrupt_at = json.loads(line)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
      with tempfile.NamedTemporaryFile() as counts:
        child = os.fork()
        if not child:
          os.dup2(out.fileno(), 1)
          os.dup2(err.fileno(), 2)
          kept = {"passes": _Passes(folder)}
          os._exit(_run(root, seeds, kept, argv, at, interrupt_at, counts.name))
        _, status = os.waitpid(child, 0)
        counted = json.loads(counts.read() or "[0, 0, 0]")
      texts = []
      for file in (out, err):
        file.seek(0)
        texts.append(file.read().decode())
    status = os.waitstatus_to_exitcode(status)
    done = Finished(status, *texts, *counted)
    print(json.dumps(vars(done)), flush=True)


def _run(root, seeds, kept, argv, at, interrupt_at, counts):
  disk = Disk(root, kill=lambda: os.kill(os.getpid(), signal.SIGKILL))
  with pytest.MonkeyPatch.context() as monkeypatch:
    terminal = Terminal(disk, monkeypatch, kept, seeds)
    done = terminal.run(*argv, at=at, interrupt_at=interrupt_at)
    pathlib.Path(counts).write_text(
      json.dumps([done.writes, done.passes, done.loads])
    )
  sys.stdout.write(done.out)
  sys.stderr.write(done.err)
  sys.stdout.flush()
  sys.stderr.flush()
  return done.status


if __name__ == "__main__":
  _serve(json.loads(sys.argv[1]), sys.argv[2])
