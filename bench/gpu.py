"""What one accelerator does of its peak, in a given number of seconds.

Of the shape of Llama-3.1-8B with random weights: long passes over 32,768 ids in
bfloat16 and what share of its peak they reach; the share of the time that the
device works while documents are scored; bfloat16 against float32 on the same
device; and a LongCE step, of fewer layers, since the optimizer of all of them
does not fit. Each part prints a line of JSON when it ends; one that would not
end within the budget is not begun, and says so.

  python bench/gpu.py                # at most 9 minutes, on a GPU or TPU
  python bench/gpu.py --tiny         # a tiny shape, on any machine
"""

from __future__ import annotations

import dataclasses
import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from flax import nnx

from longctx_jax import testing
from longctx_jax.model import defaults, flops, parameters, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper.windows import Windows, align
from longctx_jax.runtime import chips
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.training import losses, optimizer, program
from longctx_jax.training import step as step_lib

_TINY = flags.DEFINE_bool("tiny", False, "A tiny shape, to try the script.")
_BUDGET = flags.DEFINE_float(
  "budget_s", 540.0, "Seconds in all; parts that would not fit are left out."
)


@dataclasses.dataclass(frozen=True)
class Shape:
  """What is measured.

  Attributes:
    config: of the model that scores.
    length: ids of a document.
    windows: of the short contexts.
    train_layers: layers of the model that is trained.
    parity_layers: layers of the model that is run in float32.
    parity_length: ids that it reads.
    repeats: of each measurement.
  """

  config: ModelConfig
  length: int
  windows: Windows
  train_layers: int
  parity_layers: int
  parity_length: int
  repeats: int = 3


LLAMA31_8B = Shape(
  config=testing.tiny_config(
    vocab_size=128256,
    embed_dim=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    mlp_dim=14336,
    tied=False,
    windows=(0,) * 32,
    max_position=131072,
    ropes=(
      RopeConfig(
        "llama3",
        500000.0,
        factor=8.0,
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
      ),
    ),
  ),
  length=32768,
  windows=Windows(4096, 1024),
  train_layers=8,
  parity_layers=4,
  parity_length=4096,
)
TINY = Shape(
  config=testing.tiny_config(tied=False),
  length=96,
  windows=Windows(32, 16),
  train_layers=1,
  parity_layers=2,
  parity_length=64,
)
# Seconds that a part may take at most, compilation included; on one H100 or
# H200 they are guesses, and what ends earlier leaves its time to the rest.
_LIMITS = {"scoring": 180.0, "parity": 90.0, "longce_step": 210.0}


def random_model(
  config: ModelConfig, dtype: str, mesh: jax.sharding.Mesh
) -> LoadedModel:
  """A model of random weights, made on the device."""
  graphdef, shapes = parameters.abstract_model(config, jnp.dtype(dtype))

  def make(key: jax.Array) -> nnx.State:
    flat = nnx.to_flat_state(shapes)
    keys = jax.random.split(key, len(flat))

    def fill(path: tuple[Any, ...], leaf: Any, key: jax.Array) -> Any:
      if path[-1] == "scale":
        return leaf.replace(jnp.ones(leaf.shape, leaf.dtype))
      # Kernels are [in, out], embeddings [entries, size].
      rows = -2 if path[-1] == "kernel" else -1
      scale = jnp.asarray(leaf.shape[rows] ** -0.5, leaf.dtype)
      return leaf.replace(
        scale * jax.random.normal(key, leaf.shape, leaf.dtype)
      )

    return nnx.from_flat_state(
      [
        (path, fill(path, leaf, key))
        for (path, leaf), key in zip(flat, keys, strict=True)
      ]
    )

  return LoadedModel(
    name="random",
    graphdef=graphdef,
    params=jax.jit(make)(jax.random.key(0)),
    config=config,
    tokenizer=None,
    mesh=mesh,
    checksum="",
    revision="",
    weight_format=f"random {dtype}",
  )


def _with_layers(config: ModelConfig, count: int) -> ModelConfig:
  return dataclasses.replace(
    config, num_layers=count, windows=config.windows[:count]
  )


def _seconds(function: Callable[[], Any], repeats: int) -> list[float]:
  """Wall seconds of calls after the first, which compiles."""
  jax.block_until_ready(function())
  seconds = []
  for _ in range(repeats):
    start = time.monotonic()
    jax.block_until_ready(function())
    seconds.append(time.monotonic() - start)
  return seconds


def _rate(operations: float, seconds: list[float]) -> dict[str, Any]:
  """Of the median: TFLOP/s, and the share of the peak where it is known."""
  rate = operations / statistics.median(seconds)
  peak = chips.peak_flops(jax.devices()[0].device_kind)
  return {
    "seconds": seconds,
    "tflops_per_s": rate / 1e12,
    "mfu": rate / peak if peak else None,
  }


def _random_ids(shape: Shape, length: int, count: int) -> np.ndarray:
  rng = np.random.default_rng(0)
  return rng.integers(0, shape.config.vocab_size, (count, length), np.int32)


def scoring(shape: Shape, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """MFU of long passes, and the share of scoring that the device works."""
  model = random_model(shape.config, "bfloat16", mesh)
  scorer = scorer_lib.make_scorer(model, shape.windows)
  documents = _random_ids(shape, shape.length + 1, shape.repeats)
  one = jax.device_put(
    (documents[:1], np.full(1, shape.length + 1, np.int32)),
    sharding.batch_sharding(mesh),
  )
  with jax.set_mesh(mesh):
    passes = _seconds(
      lambda: scorer.long_pass(model.params, *one), shape.repeats
    )

  def read() -> float:
    start = time.monotonic()
    jobs = (scorer_lib.Job(i, ids) for i, ids in enumerate(documents))
    assert len(list(scorer.score_long(jobs))) == shape.repeats
    return time.monotonic() - start

  read()  # Compiles the pass of its own length.
  wall = read()
  operations = flops.forward_flops(shape.config, shape.length)
  return _rate(operations, passes) | {
    "ids": shape.length,
    "attention": defaults.attention_backend(
      "auto", shape.config, dtype=model.dtype
    ),
    "busy_share": shape.repeats * statistics.median(passes) / wall,
  }


def parity(shape: Shape, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """Log-probs in bfloat16 against float32, of the same weights, in nats."""
  config = _with_layers(shape.config, shape.parity_layers)
  narrow = random_model(config, "bfloat16", mesh)
  wide = dataclasses.replace(
    narrow,
    params=jax.tree.map(lambda p: p.astype(jnp.float32), narrow.params),
  )
  (ids,) = _random_ids(shape, shape.parity_length + 1, 1)

  def log_probs(model: LoadedModel) -> np.ndarray:
    scorer = scorer_lib.make_scorer(model, shape.windows)
    (scores,) = scorer.score_long([scorer_lib.Job(0, ids)])
    return scores.long.astype(np.float64)

  difference = log_probs(narrow) - log_probs(wide)
  return {
    "layers": shape.parity_layers,
    "ids": shape.parity_length,
    "rms_nats": float(np.sqrt((difference**2).mean())),
    "max_nats": float(np.abs(difference).max()),
    "mean_nats": float(difference.mean()),
  }


def longce_step(shape: Shape, mesh: jax.sharding.Mesh) -> dict[str, Any]:
  """MFU of a LongCE step over one row, in bfloat16 with float32 masters."""
  config = _with_layers(shape.config, shape.train_layers)
  model = random_model(config, "float32", mesh)
  (ids,) = _random_ids(shape, shape.length + 1, 1)
  plan = shape.windows.plan(len(ids))
  inputs, targets = align(ids)
  columns = {
    "inputs": inputs,
    "targets": targets,
    "loss_mask": np.ones(len(targets)),
    "window_start": plan.start[1:],
    "score_start": plan.score_start[1:],
    "score_end": plan.score_end[1:],
  }
  batch = program.place_batch(
    {name: value[None].astype(np.int32) for name, value in columns.items()},
    mesh,
  )
  rule = optimizer.make_optimizer(
    optimizer.OptimizerConfig(learning_rate=1e-5, warmup_steps=0), 100
  )
  windows = shape.windows
  step = step_lib.make_train_step(
    model,
    rule,
    losses.LossConfig(
      weights="live", short_len=windows.short_len, stride=windows.stride
    ),
    compute_dtype=jnp.bfloat16,
    backend=defaults.attention_backend("auto", config, dtype=jnp.bfloat16),
  )
  state = step_lib.TrainState(
    step=jnp.zeros((), jnp.int32),
    params=model.params,
    opt_state=rule.init(model.params),
  )
  del model
  compiled = program.compile_on(mesh, step, state, batch, donate_argnums=0)
  held = [state]
  del state

  def run() -> Any:
    after, sums = compiled(held.pop(), batch)
    held.append(after)
    return sums

  seconds = _seconds(run, shape.repeats)
  n_windows = len(plan.start) - 1
  operations = flops.row_operations(
    config,
    rows=1,
    length=shape.length,
    n_windows=n_windows,
    windows=windows,
    trained=True,
  ).total
  memory = compiled.memory_analysis()
  return _rate(operations, seconds) | {
    "layers": shape.train_layers,
    "ids": shape.length,
    "windows": n_windows,
    "loss": float(run()["weighted_nll"]) / shape.length,
    "temporary_bytes": memory.temp_size_in_bytes,
  }


PARTS = {"scoring": scoring, "parity": parity, "longce_step": longce_step}


def measure(shape: Shape, budget: float) -> Iterator[dict[str, Any]]:
  """A line for each part: what it found, what failed, or that it had no time.

  Args:
    shape: what is measured.
    budget: seconds for all parts, from now.
  """
  start = time.monotonic()
  # One device: what is asked is what it does by itself.
  mesh = sharding.make_mesh({"data": 1}, jax.devices()[:1])
  for name, part in PARTS.items():
    begun = time.monotonic()
    left = budget - (begun - start)
    line = {"part": name, "device": jax.devices()[0].device_kind}
    if left < _LIMITS[name]:
      line["left_out"] = (
        f"{left:.0f} s are left of {budget:.0f}, and it may take "
        f"{_LIMITS[name]:.0f}"
      )
    else:
      try:
        line |= part(shape, mesh)
      # One that does not fit must not take the others with it.
      except Exception as error:
        line["failed"] = f"{type(error).__name__}: {error}".partition("\n")[0]
      line["took_s"] = time.monotonic() - begun
    yield line


def main(argv):
  """Prints a line of JSON for each part."""
  del argv
  logging.set_verbosity(logging.ERROR)
  shape = TINY if _TINY.value else LLAMA31_8B
  if jax.default_backend() == "cpu" and not _TINY.value:
    raise app.UsageError(
      "there is no GPU or TPU: a model of 8B would take hours. --tiny tries "
      "the script"
    )
  # A part that takes longer than was thought ends the process.
  signal.setitimer(signal.ITIMER_REAL, _BUDGET.value)
  for line in measure(shape, _BUDGET.value):
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
  app.run(main)
