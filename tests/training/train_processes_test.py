"""Two processes over loopback train one step together.

The file is also what each process runs: process, count, port, output, mesh.
"""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import loopback, tiny_runs, tiny_training
from support.command_line import ROOT, environment

from longctx_jax.evaluation import files
from longctx_jax.training import metrics

_DEVICES = 4  # in all


def step(process, count, port, out, sizes):
  """One LongCE step on a mesh over all processes; process 0 writes it."""
  os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={_DEVICES // count}"
  )
  import jax
  import jax.numpy as jnp

  if count > 1:
    jax.distributed.initialize(f"127.0.0.1:{port}", count, process)
  from jax.experimental import multihost_utils
  from step_test import CONFIG, LIVE, make_batch, make_documents

  from longctx_jax import testing
  from longctx_jax.model import parameters, sharding
  from longctx_jax.training import optimizer, program
  from longctx_jax.training import state as state_lib
  from longctx_jax.training import step as step_lib

  assert (jax.process_count(), jax.device_count()) == (count, _DEVICES)
  mesh = sharding.make_mesh(sizes)
  model = testing.tiny_model(CONFIG, mesh=mesh)
  config = optimizer.OptimizerConfig(
    learning_rate=1e-3, warmup_steps=0, clip_norm=1.0
  )
  adam = optimizer.make_optimizer(config, 10)
  state = state_lib.create(model, adam)
  placed = state_lib.shardings(state, CONFIG, mesh)
  run = jax.jit(
    step_lib.make_train_step(
      model, adam, LIVE, compute_dtype=jnp.float32, accumulate=2
    ),
    donate_argnums=0,
    out_shardings=(placed, None),
  )
  documents = make_documents(
    np.random.default_rng(0), 32, 5, 29, 12, 32, 20, 9, 25
  )
  batch = make_batch([[one] for one in documents], seq_len=32)
  # Each process has the rows of its devices, as from the pipeline.
  share, shares = sharding.row_share(mesh)
  assert shares == (1 if sizes.get("context") else count)
  own = slice(share * 8 // shares, (share + 1) * 8 // shares)
  batch = program.place_batch(
    {name: value[own] for name, value in batch.items()}, mesh
  )
  with jax.set_mesh(mesh):
    state, sums = run(state, batch)
  found = {name: float(value) for name, value in sums.items()}
  found |= {
    f"params.{name}": multihost_utils.process_allgather(value[...], tiled=True)
    for name, value in parameters.flatten(state.params).items()
  }
  if process == 0:
    np.savez(out, **found)


def start(process, count, port, out, sizes):
  env = environment(out.parent)
  env["PYTHONPATH"] += os.pathsep + str(ROOT / "tests")
  arguments = process, count, port, out, json.dumps(sizes)
  return subprocess.Popen(
    [sys.executable, __file__, *map(str, arguments)],
    env=env,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def free_port():
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    return free.getsockname()[1]


def finish(running):
  try:
    for process in running:
      out, _ = process.communicate(timeout=240)
      assert not process.returncode, out[-3000:]
  finally:
    for process in running:
      process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
  "sizes",
  # In the latter, each row is split between the processes.
  [{"data": 2, "fsdp": 2}, {"context": 4}],
  ids=str,
)
def test_two_processes_take_the_step_of_one(tmp_path, sizes):
  # cases H3, H4, H8
  port = free_port()
  running = [start(i, 2, port, tmp_path / "two.npz", sizes) for i in range(2)]
  running.append(start(0, 1, port, tmp_path / "one.npz", sizes))
  finish(running)
  one, two = (dict(np.load(tmp_path / f"{n}.npz")) for n in ("one", "two"))
  assert one.keys() == two.keys() and one["scored"] > 20
  for name, value in one.items():
    np.testing.assert_allclose(
      two[name], value, rtol=0, atol=1e-5 * np.abs(value).max(), err_msg=name
    )


@pytest.mark.slow
def test_two_processes_run_the_whole_program(tmp_path):
  """Cases H4, H5: data, steps, checkpoints and the one export."""
  config = tiny_training.make_config(tmp_path)

  def start(workdir, devices, join):
    command = [
      sys.executable, ROOT / "scripts" / "train.py",
      f"--config={ROOT / 'configs' / 'tiny.py'}",
      f"--model={config.model.path}",
      f"--data={config.data.sources[0]}",
      f"--workdir={tmp_path / workdir}",
      "--config.data.seq_len=96", "--config.optimizer.steps=6",
      "--compilation_cache=", *join,
    ]  # fmt: skip
    flags = f"--xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
      command,
      env=environment(tmp_path, XLA_FLAGS=flags),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  address = f"127.0.0.1:{free_port()}"
  running = [
    start("two", 2, [f"--distributed={address},2,{i}"]) for i in range(2)
  ]
  running.append(start("one", 4, []))
  finish(running)
  one, two = (
    load_file(tmp_path / name / "export" / "model.safetensors")
    for name in ("one", "two")
  )
  assert one.keys() == two.keys()
  for name, value in one.items():
    np.testing.assert_allclose(two[name], value, rtol=0, atol=1e-5)
  losses = [
    [row["loss"] for row in metrics.read_metrics(tmp_path / name)]
    for name in ("one", "two")
  ]
  np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_find_what_an_evaluation_of_the_export_finds(tmp_path):
  # cases H3, J4
  config = tiny_training.make_config(tmp_path)
  path = tiny_runs.write_jsonl(tmp_path / "d.jsonl", tiny_runs.make_texts(5))
  scored = [
    ROOT / "scripts" / "score.py", *tiny_runs.FLAGS, f"--data={path}",
    f"--evaluator={config.model.path}", f"--workdir={tmp_path / 'keys'}",
    "--compilation_cache=",
  ]  # fmt: skip
  finish([loopback.start(scored, cwd=tmp_path)])
  trained = [
    ROOT / "scripts" / "train.py", f"--config={ROOT / 'configs' / 'tiny.py'}",
    f"--model={config.model.path}", f"--data={config.data.sources[0]}",
    f"--workdir={tmp_path / 'two'}", "--config.data.seq_len=96",
    "--config.optimizer.steps=2", "--config.optimizer.warmup_steps=1",
    "--compilation_cache=", "--config.eval.every=2",
    f"--config.eval.key_tokens={tmp_path / 'keys'}",
    f"--config.eval.sources=('{path}',)",
    f"--config.eval.alpha={tiny_runs.ALPHA}",
    f"--config.eval.beta={tiny_runs.BETA}",
  ]  # fmt: skip
  finish(loopback.start_all(trained, count=2, cwd=tmp_path))
  (*_, last) = metrics.read_metrics(tmp_path / "two")
  evaluated = [
    ROOT / "scripts" / "eval.py", f"--data={path}", "--sums_only",
    f"--keys={tmp_path / 'keys'}", f"--model={tmp_path / 'two' / 'export'}",
    f"--workdir={tmp_path / 'eval'}", "--compilation_cache=",
  ]  # fmt: skip
  finish([loopback.start(evaluated, cwd=tmp_path)])
  (result,) = files.load_results(tmp_path / "eval")
  assert last["eval_key_tokens"] == result.n_key_tokens > 0
  assert last["eval_ppl"] == pytest.approx(result.ppl, rel=1e-5)
  assert last["eval_longppl"] == pytest.approx(result.longppl, rel=1e-5)


if __name__ == "__main__":
  step(*map(int, sys.argv[1:4]), sys.argv[4], json.loads(sys.argv[5]))
