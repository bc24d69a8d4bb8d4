"""A training that is killed at any point goes on with the same command."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.command_line import ROOT, Killed, run
from support.tiny_training import make_config

from longctx_jax.training import metrics

pytestmark = pytest.mark.slow
TIMED = ("tokens_per_second", "mfu")


def test_kill_9_loses_at_most_the_last_interval(tmp_path):
  config = make_config(tmp_path)
  command = [
    "scripts/train.py",
    f"--config={ROOT / 'configs' / 'tiny.py'}",
    f"--model={config.model.path}",
    f"--data={config.data.sources[0]}",
    f"--config.data.cache_dir={config.data.cache_dir}",
    "--config.data.seq_len=96",
    f"--compilation_cache={tmp_path / 'xla'}",
  ]
  killed, whole = (
    [*command, f"--workdir={name}"] for name in ("killed", "whole")
  )
  # Orbax gives a checkpoint its name when it is whole.
  pattern = tmp_path / "killed" / "checkpoints" / "4"
  first, again, straight, twice = run(
    [Killed(killed, pattern, 1), killed, whole, whole],
    cwd=tmp_path,
    home=tmp_path,
  )
  assert first.status == -9
  assert again.status == straight.status == 0, again.err + straight.err
  assert "going on after step" in again.err
  assert "is finished" in twice.err and twice.status == 0
  assert "orbax" not in straight.err
  assert "next: python scripts/eval.py --model whole/export" in straight.out
  rows = [
    [
      {name: row[name] for name in row if name not in TIMED}
      for row in metrics.read_metrics(tmp_path / name)
    ]
    for name in ("killed", "whole")
  ]
  assert rows[0] == rows[1]
  ours, theirs = (
    load_file(tmp_path / name / "export" / "model.safetensors")
    for name in ("killed", "whole")
  )
  for name, array in ours.items():
    np.testing.assert_array_equal(array, theirs[name], err_msg=name)
