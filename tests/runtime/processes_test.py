"""Processes that join; two that train are in train_processes_test.py."""

import jax
import pytest
from support.command_line import run

from longctx_jax.runtime import processes


def test_one_process_joins_nobody(monkeypatch):
  # cases H4
  def initialize(**options):
    raise AssertionError(options)

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  processes.join("")


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("auto", {}),
    (
      "host:12,4,3",
      dict(coordinator_address="host:12", num_processes=4, process_id=3),
    ),
  ],
)
def test_who_joins_whom(monkeypatch, text, expected):
  found = {}
  monkeypatch.setattr(jax.distributed, "initialize", found.update)
  processes.join(text, timeout=7)
  assert found == expected | {"initialization_timeout": 7}


def test_processes_that_do_not_come_are_reported(monkeypatch):
  # cases H4
  def initialize(**options):
    raise RuntimeError("DEADLINE_EXCEEDED: barrier\nmore")

  monkeypatch.setattr(jax.distributed, "initialize", initialize)
  with pytest.raises(ValueError, match="not all .* within 5 s: DEADLINE.*er$"):
    processes.join("host:12,2,0", timeout=5)


def test_a_mistake_is_one_line(tmp_path):
  commands = [
    ["scripts/train.py", "--workdir=w", f"--distributed={text}"]
    for text in ("host,2", "host:1,2,2")
  ]
  first, second = run(commands, cwd=tmp_path, home=tmp_path)
  assert first.status == second.status == 2
  assert "neither 'auto' nor HOST:PORT,COUNT,INDEX" in first.err
  assert "of 2 processes the last has index 1" in second.err
