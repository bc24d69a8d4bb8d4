"""What a script runs on is said, and chosen by its user."""

import os
import re
import subprocess
import sys
import types

import jax
import pytest
from support.checks import refuses
from support.command_line import environment

from longctx_jax.runtime import device

# Of each case on stdin, in a process of its own: the number of CPU devices, and
# how many copies of 10 and of 1,000 bytes they hold, with 140 bytes of memory.
COUNTS = """
import os, sys
import jax
from longctx_jax.runtime import device, machine
machine.memory_bytes = lambda: 140
for cores, before, spread in eval(sys.stdin.read()):
  if not os.fork():
    machine.cpu_count = lambda: cores
    exec(before)
    device.start("cpu", cache="", spread=spread)
    print(jax.device_count(), device.copies(10), device.copies(1000))
    os._exit(sys.stdout.flush() or 0)
  os.wait()
"""
BY_FLAG = "os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=4'"
CASES = {
  (2, "", True): "2 2 1",
  (64, "", True): "8 3 1",
  (2, "", False): "1 1 1",
  # The user's own number stands, whatever it needs.
  (2, BY_FLAG, True): "4 4 4",
  (2, "jax.config.update('jax_num_cpu_devices', 3)", True): "3 3 3",
  (2, "jax.config.update('jax_num_cpu_devices', 1)", True): "1 1 1",
  # Processes that were joined.
  (2, "jax.distributed.is_initialized = lambda: True", True): "1 1 1",
}


def test_it_is_said_in_one_line():
  assert re.fullmatch(r"jax [\d.]+ \| cpu x\d+ \| \d+ GiB", device.describe())


@pytest.mark.parametrize(
  ("path", "extra"), [("/dev/accel0", "tpu"), ("/dev/nvidia0", "cuda")]
)
def test_a_device_that_jax_does_not_see_is_named_unless_one_was_chosen(
  monkeypatch, path, extra
):
  exists = os.path.exists
  monkeypatch.setattr(os.path, "exists", lambda p: p == path or exists(p))
  monkeypatch.setattr(jax, "config", types.SimpleNamespace(jax_platforms=None))
  device.require_seen("cpu")
  with refuses(rf"sees only the CPU: .*\.\[{extra}\]"):
    device.require_seen("")


def test_each_core_is_a_device_where_nobody_says_otherwise(tmp_path):
  done = subprocess.run(
    [sys.executable, "-c", COUNTS],
    input=repr(list(CASES)),
    env=environment(tmp_path),
    capture_output=True,
    text=True,
    check=False,
  )
  said = done.stdout.splitlines()
  assert dict(zip(CASES, said, strict=True)) == CASES, done.stderr
