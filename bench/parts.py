"""How far each part of the work is from the machine's floor.

  taskset -c 1 python bench/parts.py --model=FOLDER

In one process, on the cores that it is given: the rates of matrix products at
the model's shapes, in float32 and bfloat16, and of a copy; then each part, in
rounds of one call each. Random ids: the time does not depend on them.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import floor
import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

import longctx_jax as lc
from longctx_jax.model import attention, log_probs, sharding
from longctx_jax.model import flops as flops_lib
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.training import losses, optimizer

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "Of weights and activations."
)
_N = flags.DEFINE_integer("n", 2048, "Ids of the document.")
_SHORT_LEN = flags.DEFINE_integer("short_len", 512, "K.")
_STRIDE = flags.DEFINE_integer("stride", 128, "d.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Calls of each part.")

_COPIED = 2**25  # float32 values: more than caches hold

Call = Callable[[], Any]


def alternate(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
  """CPU seconds of each call, one of each in turn; the first ones compile.

  Args:
    calls: name -> what is called; the result is waited for.
    rounds: how many of each are counted.
  """
  for call in calls.values():
    jax.block_until_ready(call())
  seconds = {name: [] for name in calls}
  for _ in range(rounds):
    for name, call in calls.items():
      start = time.process_time()
      jax.block_until_ready(call())
      seconds[name].append(time.process_time() - start)
  return seconds


def product_rates(
  shapes: dict[str, tuple[int, int, int]], rounds: int
) -> dict[str, dict[str, float]]:
  """Operations per second: dtype -> name -> rate, products in float32.

  Args:
    shapes: name -> (rows, in, out).
    rounds: products of each, of which the median counts.
  """
  rng = np.random.default_rng(0)
  multiply = jax.jit(
    functools.partial(jnp.dot, preferred_element_type=jnp.float32)
  )
  rates = {}
  for dtype in ("float32", "bfloat16"):
    calls = {}
    for name, (rows, wide, out) in shapes.items():
      a = jnp.asarray(rng.normal(size=(rows, wide)), dtype)
      b = jnp.asarray(rng.normal(size=(wide, out)), dtype)
      calls[name] = functools.partial(multiply, a, b)
    seconds = alternate(calls, rounds)
    rates[dtype] = {
      name: 2.0 * np.prod(shapes[name]) / statistics.median(values)
      for name, values in seconds.items()
    }
  return rates


def copy_rate(size: int, rounds: int) -> float:
  """Bytes per second, read and written, of a copy of float32 values."""
  x = jnp.zeros(size, jnp.float32)
  seconds = alternate(
    {"copy": functools.partial(jax.jit(jnp.negative), x)}, rounds
  )
  return 8.0 * size / statistics.median(seconds["copy"])


def make_calls(
  model: lc.LoadedModel, *, n: int, short_len: int, stride: int
) -> list[tuple[floor.Part, Call]]:
  """Parts of the work, and what runs them.

  Args:
    model: on one device.
    n: ids of the document.
    short_len: the paper's K.
    stride: the paper's d.
  """
  config, dtype = model.config, model.dtype
  rng = np.random.default_rng(0)
  length = short_len + stride - 1
  scorer = scorer_lib.make_scorer(model, Windows(short_len, stride))
  embedding = model.params["embedding"][...]

  def random_ids(size):
    return jnp.asarray(rng.integers(0, config.vocab_size, (1, size)), jnp.int32)

  def random(*shape, dtype=dtype):
    return jnp.asarray(rng.normal(size=shape), dtype)

  long_ids, window_ids = random_ids(n), random_ids(length + 1)
  hidden = random(1, n - 1, config.embed_dim)
  qkv = [
    random(1, length, heads, config.head_dim)
    for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads)
  ]

  @jax.jit
  def attend(q, k, v):
    spec = AttentionSpec(scale=config.head_dim**-0.5)
    return attention.attention(q, k, v, spec)

  @jax.jit
  def head_of(hidden, head, targets):
    return log_probs.target_log_probs(
      hidden, head, targets, softcap=config.softcap, chunk=1024
    )

  @jax.jit
  def sweep(hidden, head, targets):
    ones = jnp.ones(targets.shape)

    def loss(hidden, head):
      return losses.fused_weighted_nll(
        hidden, head, targets, ones, ones, softcap=config.softcap, chunk=256
      )[0]

    return jax.grad(loss, (0, 1))(hidden, head)

  adam = optimizer.make_optimizer(
    optimizer.OptimizerConfig(learning_rate=2e-5, warmup_steps=0), 200
  )
  weights = jax.tree.map(lambda p: p.astype(jnp.float32), model.params)
  state = adam.init(weights)

  @jax.jit
  def update(weights, state):
    updates, state = adam.update(weights, state, weights)
    return optax.apply_updates(weights, updates), state

  count = sum(leaf.size for leaf in jax.tree.leaves(weights))
  call = functools.partial
  return [
    (
      floor.Part("long pass", flops_lib.forward_flops(config, n - 1)),
      call(scorer.long_pass, model.params, long_ids, jnp.array([n])),
    ),
    (
      floor.Part(
        "window pass",
        floor.window_flops(config, short_len=short_len, stride=stride),
      ),
      call(
        scorer.window_pass,
        model.params,
        window_ids,
        jnp.array([length + 1]),
        0,
      ),
    ),
    (
      floor.Part(f"head, {stride} rows", floor.head_flops(config, stride)),
      call(head_of, hidden[:, :stride], embedding, long_ids[:, :stride]),
    ),
    (
      floor.Part(
        f"attention, a layer, {length}", floor.attention_flops(config, length)
      ),
      call(attend, *qkv),
    ),
    (
      floor.Part(f"sweep, {n - 1}", 3 * floor.head_flops(config, n - 1)),
      call(sweep, hidden, embedding, long_ids[:, 1:]),
    ),
    # Weights, gradients and both moments are read; all but gradients written.
    (
      floor.Part("optimizer", 0.0, moved=7.0 * 4 * count),
      call(update, weights, state),
    ),
  ]


def measure(
  model: lc.LoadedModel,
  *,
  n: int,
  short_len: int,
  stride: int,
  rounds: int,
  copied: int = _COPIED,
) -> dict[str, Any]:
  """Rates of the machine, and each part with the seconds of every round.

  Args:
    model: on one device.
    n: ids of the document.
    short_len: the paper's K.
    stride: the paper's d.
    rounds: calls of each part.
    copied: float32 values of the copy whose rate is measured.
  """
  shapes = floor.product_shapes(
    model.config, rows=short_len + stride - 1, head_rows=stride
  )
  exact = "highest" if model.dtype == "float32" else "default"
  with jax.set_mesh(model.mesh), jax.default_matmul_precision(exact):
    calls = make_calls(model, n=n, short_len=short_len, stride=stride)
    rates = product_rates(shapes, rounds)
    copied_per_s = copy_rate(copied, rounds)
    seconds = alternate({part.name: call for part, call in calls}, rounds)
  return {
    "rates": rates,
    "flops_rate": max(rates[str(model.dtype)].values()),
    "copy_rate": copied_per_s,
    "parts": [(part, seconds[part.name]) for part, _ in calls],
  }


def main(argv):
  """Measures, prints rates and parts."""
  del argv
  mesh = sharding.make_mesh({"data": 1}, jax.devices()[:1])
  model = lc.load_model(_MODEL.value, mesh=mesh, dtype=jnp.dtype(_DTYPE.value))
  measured = measure(
    model,
    n=_N.value,
    short_len=_SHORT_LEN.value,
    stride=_STRIDE.value,
    rounds=_ROUNDS.value,
  )
  print(
    f"matrix products, GFLOP/s; a copy {measured['copy_rate'] / 1e9:.1f} GB/s"
  )
  for dtype, rates in measured["rates"].items():
    values = ", ".join(f"{n} {rate / 1e9:.0f}" for n, rate in rates.items())
    print(f"  {dtype}: {values}")
  print(
    floor.format_table(
      measured["parts"],
      flops_rate=measured["flops_rate"],
      copy_rate=measured["copy_rate"],
    )
  )


if __name__ == "__main__":
  app.run(main)
