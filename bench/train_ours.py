"""One training step of this project, in a process of its own.

Prints one line of JSON: CPU seconds, peak memory, loss and gradient norm.
"""

from __future__ import annotations

import json
import pathlib
import resource
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import longctx_jax as lc
from longctx_jax.model import sharding
from longctx_jax.paper import windows
from longctx_jax.training import losses, optimizer
from longctx_jax.training import state as state_lib
from longctx_jax.training import step as step_lib

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DOCUMENT = flags.DEFINE_string("document", None, "Text file.", required=True)
_SHORT_LEN = flags.DEFINE_integer("short_len", None, "K.", required=True)
_STRIDE = flags.DEFINE_integer("stride", None, "d.", required=True)
_WEIGHTS = flags.DEFINE_enum("weights", None, losses.WEIGHTS, "Which loss.")


def make_batch(
  ids: np.ndarray, *, short_len: int, stride: int
) -> dict[str, np.ndarray]:
  """A batch of one row with all of its windows but the first."""
  plan = windows.Windows(short_len, stride).plan(len(ids))
  inputs, targets = windows.align(ids)
  ones = np.ones((1, len(targets)), np.float32)
  columns = {
    "inputs": inputs,
    "targets": targets,
    "window_start": plan.start[1:],
    "score_start": plan.score_start[1:],
    "score_end": plan.score_end[1:],
  }
  return {"loss_mask": ones, "weights": ones} | {
    name: value[None].astype(np.int32) for name, value in columns.items()
  }


def main(argv):
  """Loads, compiles, then takes one step."""
  del argv
  text = pathlib.Path(_DOCUMENT.value).read_bytes().decode()
  mesh = sharding.make_mesh({"data": 1}, jax.devices()[:1])
  model = lc.load_model(_MODEL.value, mesh=mesh, dtype=jnp.float32)
  sizes = dict(short_len=_SHORT_LEN.value, stride=_STRIDE.value)
  ids = model.tokenizer.encode(text, add_special_tokens=False).ids
  batch = make_batch(ids, **sizes)
  config = optimizer.OptimizerConfig(learning_rate=2e-5, warmup_steps=0)
  adam = optimizer.make_optimizer(config, 200)
  loss = losses.LossConfig(weights=_WEIGHTS.value, chunk=128, **sizes)
  step = step_lib.make_train_step(model, adam, loss, compute_dtype=jnp.float32)
  state = state_lib.create(model, adam)
  del model
  start = time.process_time()
  compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
  compilation = time.process_time() - start
  wall, start = time.monotonic(), time.process_time()
  state, sums = jax.block_until_ready(compiled(state, batch))
  seconds = time.process_time() - start
  wall = time.monotonic() - wall
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  memory = compiled.memory_analysis()
  print(
    json.dumps(
      {
        "compile_s": compilation,
        "pass_s": seconds,
        "wall_s": wall,
        "peak_rss_mib": peak / 1024,
        "temp_mib": memory.temp_size_in_bytes / 2**20,
        "loss": float(sums["weighted_nll"] / sums["targets"]),
        "grad_norm": float(sums["grad_norm"]),
        "n_ids": len(ids),
        "versions": f"jax {jax.__version__}",
      }
    )
  )


if __name__ == "__main__":
  app.run(main)
