"""Several processes on one machine: real ones, and a stand-in for their store.

The file is also what a process runs: a function of another file, by name.
"""

import importlib
import os
import socket
import subprocess
import sys
import types

import jax

from longctx_jax.runtime import channel
from support.command_line import ROOT, environment

_SECONDS = 240


class Store:
  """The store of keys and values of process 0, as JAX offers it."""

  def __init__(self):
    self.values = {}

  def key_value_set(self, key, value, allow_overwrite=False):
    if key in self.values and not allow_overwrite:
      raise jax.errors.JaxRuntimeError("ALREADY_EXISTS: key")
    self.values[key] = value

  key_value_set_bytes = key_value_set

  def key_value_try_get(self, key):
    if key not in self.values:
      raise jax.errors.JaxRuntimeError("NOT_FOUND: key")
    return self.values[key]

  def blocking_key_value_get_bytes(self, key, timeout_ms):
    if key not in self.values:
      raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: key")
    value = self.values[key]
    return value if isinstance(value, bytes) else value.encode()

  def key_value_delete(self, folder):
    for key in [key for key in self.values if key.startswith(folder)]:
      del self.values[key]


def pretend(monkeypatch, *, count):
  """As if this were one of several processes, the first; returns `become`."""
  state = types.SimpleNamespace(
    client=Store(), process_id=0, num_processes=count
  )
  monkeypatch.setattr(channel.distributed, "global_state", state)

  def become(process):
    state.process_id = process

  return become


def free_port():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return free.getsockname()[1]


def start(command, *, cwd, devices=1):
  """Starts a script or a module's function; its output is one text."""
  flags = f"--xla_force_host_platform_device_count={devices}"
  env = environment(cwd, XLA_FLAGS=flags)
  env["PYTHONPATH"] += os.pathsep + str(ROOT / "tests")
  return subprocess.Popen(
    [sys.executable, *map(str, command)],
    cwd=cwd,
    env=env,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def start_all(command, *, count, cwd, devices=1, each=lambda process: ()):
  """Starts a script as so many processes that join; `each` adds to one."""
  address = f"127.0.0.1:{free_port()}"
  return [
    start(
      [*command, f"--distributed={address},{count},{i}", *each(i)],
      cwd=cwd,
      devices=devices,
    )
    for i in range(count)
  ]


def call_all(function, *, count, cwd):
  """Starts "module:function" as so many processes that join."""
  address = f"127.0.0.1:{free_port()}"
  return [
    start([__file__, function, f"{address},{count},{i}"], cwd=cwd)
    for i in range(count)
  ]


def finish(running):
  """[(status, output)] of processes, each at its end."""
  try:
    outs = [process.communicate(timeout=_SECONDS)[0] for process in running]
  finally:
    for process in running:
      process.kill()
  return [
    (process.returncode, out)
    for process, out in zip(running, outs, strict=True)
  ]


if __name__ == "__main__":
  from longctx_jax.runtime import processes

  processes.join(sys.argv[2])
  module, name = sys.argv[1].split(":")
  getattr(importlib.import_module(module), name)()
