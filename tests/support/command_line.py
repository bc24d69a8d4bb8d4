"""Runs scripts as a user does, offline, at the price of one import of JAX.

A server process imports JAX and the package, then forks for each script. In
it no socket connects and torch cannot be imported (cases L1, L2).
"""

import dataclasses
import glob
import importlib
import json
import os
import pathlib
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
_TIMEOUT = 120  # seconds


@dataclasses.dataclass(frozen=True)
class Finished:
  """What a script left: exit status and what it wrote.

  `files`: path -> time of change of those that a `Killed` asked for.
  """

  status: int
  out: str
  err: str
  files: dict


def environment(home, **variables):
  """Environment of a script: one CPU device, `home` holds its caches."""
  kept = {
    name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ
  }
  return (
    kept
    | {
      "HOME": str(home),
      "PYTHONPATH": str(ROOT),
      "PYTHONDONTWRITEBYTECODE": "1",
      "JAX_PLATFORMS": "cpu",
    }
    | variables
  )


@dataclasses.dataclass(frozen=True)
class Killed:
  """A command that gets SIGKILL once `count` files match `pattern`."""

  command: list
  pattern: str
  count: int


def run(commands, *, cwd, home, without=(), loopback=False, **variables):
  """Runs scripts one after the other, each in a process of its own.

  Args:
    commands: [script, argument, ...] or a `Killed`; the script relative to the
      repository or absolute.
    cwd: where they run.
    home: of the user who runs them.
    without: what the machine lacks: modules, or "os.name" of what is in one.
    loopback: whether sockets connect to servers of this machine.
    variables: of the environment, beside those of `environment`.

  Returns:
    A `Finished` for each; its status is -9 where it was killed.
  """
  plain = [
    one if isinstance(one, Killed) else Killed(one, "", 0) for one in commands
  ]
  done = subprocess.run(
    [sys.executable, __file__],
    input=json.dumps(
      [
        list(without),
        loopback,
        [(list(map(str, c.command)), str(c.pattern), c.count) for c in plain],
      ]
    ),
    capture_output=True,
    text=True,
    cwd=cwd,
    env=environment(home, **variables),
    timeout=_TIMEOUT,
    check=False,
  )
  assert not done.returncode, done.stderr
  return [Finished(*fields) for fields in json.loads(done.stdout)]


class _WithoutTorch:
  """An import hook: as if torch were not installed."""

  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] == "torch":
      raise ModuleNotFoundError("No module named 'torch'", name=name)


def _refuse(*arguments, **options):
  raise OSError(f"there is no network in this test: {arguments}")


def _refuse_others(connect):
  def connect_here(self, address):
    if address[0] not in ("127.0.0.1", "::1"):
      _refuse(address)
    return connect(self, address)

  return connect_here


def _take_away(name):
  module, _, attribute = name.partition(".")
  if attribute:
    delattr(importlib.import_module(module), attribute)
  else:
    sys.modules[module] = None


def _serve():
  without, loopback, commands = json.load(sys.stdin)
  for name in without:
    _take_away(name)
  if loopback:
    socket.socket.connect = _refuse_others(socket.socket.connect)
  else:
    socket.socket.connect = socket.getaddrinfo = _refuse
  sys.meta_path.insert(0, _WithoutTorch())
  # That a fork of a process with threads is unsafe; here none runs yet.
  warnings.simplefilter("ignore")

  import longctx_jax.commands  # noqa: F401
  from longctx_jax.evaluation import run  # noqa: F401
  from longctx_jax.report import page  # noqa: F401

  finished = [_fork(*command) for command in commands]
  print(json.dumps(finished))


def _fork(command, pattern, count):
  with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
    child = os.fork()
    if not child:
      os.dup2(out.fileno(), 1)
      os.dup2(err.fileno(), 2)
      os._exit(_call(command))
    if pattern:
      _kill_when(child, lambda: len(glob.glob(pattern)) >= count)
    _, status = os.waitpid(child, 0)
    texts = []
    for file in (out, err):
      file.seek(0)
      texts.append(file.read())
  files = {path: os.stat(path).st_mtime_ns for path in glob.glob(pattern)}
  return os.waitstatus_to_exitcode(status), *texts, files


def _kill_when(child, is_time):
  while (
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
  ):
    if is_time():
      os.kill(child, signal.SIGKILL)
      return
    time.sleep(0.001)


def _call(command):
  sys.argv = [str(ROOT / command[0]), *command[1:]]
  try:
    runpy.run_path(sys.argv[0], run_name="__main__")
    status = 0
  except SystemExit as stop:
    status = stop.code or 0
  except BaseException:  # as Python ends a script that raises
    traceback.print_exc()
    status = 1
  sys.stdout.flush()
  sys.stderr.flush()
  return status


if __name__ == "__main__":
  _serve()
