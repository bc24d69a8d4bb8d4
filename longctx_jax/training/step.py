"""One pure training step: cross-entropy, LongCE, or stored weights."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from longctx_jax.model import (
  defaults,
  log_probs,
  parameters,
  partition,
  row_parts,
  sharding,
)
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.training import losses
from longctx_jax.training import rows as rows_lib
from longctx_jax.training.losses import LossConfig
from longctx_jax.training.state import TrainState

Batch = dict[str, Array]
Sums = dict[str, Array]

# Of the windows of a row, in place of its positions.
_PLAN = ("window_start", "score_start", "score_end")


def make_train_step(
  model: LoadedModel,
  optimizer: optax.GradientTransformation,
  loss: LossConfig,
  *,
  compute_dtype: Any,
  accumulate: int = 1,
  backend: str = "blockwise",
  remat: str = "block",
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
  """Makes the step; pure and not compiled.

  Trace it under `jax.set_mesh(model.mesh)`, and compile it with the state
  donated: `state.shardings` says where its parts live, and
  `program.place_batch` where those of a batch do.

  A batch has `inputs`, `targets` and `loss_mask` [B, T]; `segment_ids` and
  `positions` [B, T] where rows are packed; `lengths` where RoPE tables depend
  on them; `window_start`, `score_start` and `score_end` [B, W], in ids of the
  row, for live weights; `weights` [B, T] for stored ones. Window w is
  predicted from ids [window_start, ...) and scores ids [score_start,
  score_end), of which the first is window_start + short_len; a window that
  scores nothing is padding.

  Args:
    model: graphdef, config and mesh are used; the parameters are the state's.
    optimizer: see `optimizer.make_optimizer`.
    loss: which weights.
    compute_dtype: of parameters and activations in the passes; the master
      parameters, log-softmax and all sums are float32.
    accumulate: parts that a batch is cut into, one after the other; gradients
      and counts are pooled, and divided once.
    backend: one of `attention.BACKENDS`.
    remat: see `Transformer.__call__`.

  Returns:
    (state, batch) -> (state, sums). `sums` are float32 scalars, to be added
    over steps: those of `losses.fused_longce` (`fused_weighted_nll` without
    live weights), and `nonfinite`: 1 where loss or gradient is not finite.
    `grad_norm` is the norm before clipping.
  """
  # A copy of the parameters must not live as long as the step.
  model = dataclasses.replace(model, params=nnx.State({}))
  compute_dtype = jnp.dtype(compute_dtype)
  precision = defaults.matmul_precision(compute_dtype)
  add_up = functools.partial(
    _gradients,
    model=model,
    loss=loss,
    backend=backend,
    remat=remat,
  )

  def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
    _check_batch(batch, model, loss, accumulate)
    with jax.default_matmul_precision(precision):
      params = jax.tree.map(lambda p: p.astype(compute_dtype), state.params)
      grads, sums = _accumulate(add_up, params, batch, accumulate)
    grads = _constrain(grads, model)
    count = jnp.maximum(sums["targets"], 1.0)
    grads = jax.tree.map(lambda g: g / count, grads)
    norm = optax.tree.norm(grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    finite = jnp.isfinite(norm) & jnp.isfinite(sums["weighted_nll"])
    sums |= {"grad_norm": norm, "nonfinite": 1.0 - finite}
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, opt_state), sums

  return train_step


def _check_batch(
  batch: Batch, model: LoadedModel, loss: LossConfig, accumulate: int
) -> None:
  """Raises ValueError for a batch that does not fit; shapes only."""
  rows_lib.require_batch_size(
    batch["inputs"].shape[0],
    accumulate=accumulate,
    ways=sharding.row_ways(model.mesh),
  )
  row_parts.require_length(
    batch["inputs"].shape[1], model.mesh.shape[row_parts.AXIS], name="seq_len"
  )
  needed = {
    "none": (),
    "live": _PLAN,
    "stored": ("weights",),
  }[loss.weights]
  missing = [name for name in needed if name not in batch]
  if missing:
    raise ValueError(f"weights={loss.weights!r} need {missing} in the batch")
  in_use = jax.sharding.get_abstract_mesh().shape_tuple
  if model.mesh.size > 1 and in_use != model.mesh.shape_tuple:
    raise ValueError(
      "the step is traced outside jax.set_mesh(model.mesh): every device "
      "would hold all activations"
    )


def _accumulate(
  add_up: Callable[[nnx.State, Batch], tuple[nnx.State, Sums]],
  params: nnx.State,
  batch: Batch,
  accumulate: int,
) -> tuple[nnx.State, Sums]:
  """Gradients and sums over the parts of a batch, float32."""

  def run(part: Batch) -> tuple[nnx.State, Sums]:
    grads, sums = add_up(params, part)
    return jax.tree.map(lambda g: g.astype(jnp.float32), grads), sums

  if accumulate == 1:
    return run(batch)

  def split(x: Array) -> Array:
    # Strided, so that each device keeps its own rows.
    x = x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1)
    tail = (None,) * (x.ndim - 2)
    return sharding.constrain(x, None, sharding.ROW_AXES, *tail)

  parts = jax.tree.map(split, batch)
  shapes = jax.eval_shape(run, jax.tree.map(lambda x: x[0], parts))
  zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
  total, _ = jax.lax.scan(
    lambda total, part: (jax.tree.map(jnp.add, total, run(part)), None),
    zeros,
    parts,
  )
  return total


def _gradients(
  params: nnx.State,
  batch: Batch,
  *,
  model: LoadedModel,
  loss: LossConfig,
  backend: str,
  remat: str,
) -> tuple[nnx.State, Sums]:
  """(gradients of the loss summed over targets, sums) of a part."""
  if loss.weights == "live":
    short, short_mask = map(
      row_parts.split,
      short_pass(params, batch, model=model, loss=loss, backend=backend),
    )
  rows = {
    name: row_parts.repeat(x) if x.ndim == 1 else row_parts.split(x)
    for name, x in batch.items()
    if name not in _PLAN
  }
  head_options = dict(softcap=model.config.softcap, chunk=loss.chunk)

  def total_of(params: nnx.State) -> tuple[Float[Array, ""], Sums]:
    transformer = nnx.merge(model.graphdef, params)
    hidden = transformer(
      rows["inputs"],
      positions=rows.get("positions"),
      segment_ids=rows.get("segment_ids"),
      lengths=rows.get("lengths"),
      in_parts=True,
      backend=backend,
      remat=remat,
    )
    common = hidden, transformer.head(), rows["targets"]
    if loss.weights == "live":
      total, _, sums = losses.fused_longce(
        *common,
        short,
        short_mask,
        rows["loss_mask"],
        gamma=loss.gamma,
        floor=loss.weight_floor,
        thresholds=loss.thresholds,
        **head_options,
      )
    else:
      stored = loss.weights == "stored"
      mask = rows["loss_mask"]
      total, _, sums = losses.fused_weighted_nll(
        *common,
        rows["weights"] if stored else jnp.ones(mask.shape),
        mask,
        gamma=loss.gamma if stored else math.inf,
        **head_options,
      )
    return total, sums

  (_, sums), grads = jax.value_and_grad(total_of, has_aux=True)(params)
  return _constrain(grads, model), sums


def _constrain(grads: nnx.State, model: LoadedModel) -> nnx.State:
  """Gradients lie as the parameters do: reduced and scattered at once."""
  if model.mesh.size == 1:
    return grads
  shapes = {
    name: leaf.shape for name, leaf in parameters.flatten(grads).items()
  }
  placed = partition.parameter_shardings(model.config, shapes, model.mesh)
  flat = [
    (path, leaf.replace(jax.lax.with_sharding_constraint(leaf[...], where)))
    for (path, leaf), where in zip(
      nnx.to_flat_state(grads), placed.values(), strict=True
    )
  ]
  return nnx.from_flat_state(flat)


def short_pass(
  params: nnx.State,
  batch: Batch,
  *,
  model: LoadedModel,
  loss: LossConfig,
  backend: str,
) -> tuple[Float[Array, "B T"], Bool[Array, "B T"]]:
  """Log-probs under the short context, and where there are any.

  The windows of all rows are pooled; each device runs those of its own rows,
  `window_batch` at a time. Devices that share rows share their windows: a
  window is whole on one of them.

  Args:
    params: parameters in the dtype of the pass.
    batch: see `make_train_step`.
    model: graphdef, config and mesh are used.
    loss: windows and chunk.
    backend: attention backend.

  Returns:
    (log-probs in nats, 0 where not scored; True where scored).
  """
  starts, score_start, score_end = (batch[name] for name in _PLAN)
  rows, length = batch["inputs"].shape
  count = starts.shape[1]
  short = jnp.zeros((rows, length), jnp.float32)
  if not count:
    return short, jnp.zeros(short.shape, bool)
  ids = _cut_windows(batch, loss.windows.length)
  lengths = score_end - starts
  log_p = _score_windows(params, ids, lengths, model, loss, backend)
  # Target t is id t + 1; what is not scored goes past the end and is dropped.
  step = jnp.arange(loss.stride).reshape(1, 1, -1)
  scored = step < (score_end - score_start)[..., None]
  places = jnp.where(scored, score_start[..., None] - 1 + step, length)

  def scatter(row: Array, places: Int[Array, "W d"], values: Array) -> Array:
    return row.at[places.reshape(-1)].set(values.reshape(-1), mode="drop")

  mask = jax.vmap(scatter)(jnp.zeros(short.shape, bool), places, scored)
  return jax.vmap(scatter)(short, places, log_p), mask


def _cut_windows(batch: Batch, size: int) -> Int[Array, "B W size"]:
  """Ids of every window; past the end of a row it holds zeros."""
  ids = jnp.concatenate([batch["inputs"], batch["targets"][:, -1:]], axis=1)
  # A slice that reached past the end would be shifted silently.
  ids = jnp.pad(ids, ((0, 0), (0, size)))
  ids = sharding.constrain(ids, sharding.ROW_AXES, None)

  def cut(
    row: Int[Array, " P"], starts: Int[Array, " W"]
  ) -> Int[Array, "W size"]:
    return jax.vmap(
      lambda start: jax.lax.dynamic_slice_in_dim(row, start, size)
    )(starts)

  return jax.vmap(cut)(ids, batch["window_start"])


def _score_windows(
  params: nnx.State,
  ids: Int[Array, "B W size"],
  lengths: Int[Array, "B W"],
  model: LoadedModel,
  loss: LossConfig,
  backend: str,
) -> Float[Array, "B W d"]:
  """Log-probs of the last `stride` ids of each window [B, W, stride]."""
  rows, count, _ = ids.shape
  ways, sharing = sharding.row_ways(model.mesh), row_parts.count()
  own = rows // ways * count  # windows of the devices that share rows
  at_once = min(defaults.window_batch(loss.window_batch), -(-own // sharing))
  at_once *= sharing
  steps = -(-own // at_once)

  def pool(x: Array) -> Array:
    """[B, W, ...] -> [steps, ways * at_once, ...], split over the devices."""
    tail = x.shape[2:]
    x = x.reshape(ways, own, *tail)
    x = jnp.pad(x, ((0, 0), (0, steps * at_once - own), *((0, 0),) * len(tail)))
    x = x.reshape(ways, steps, at_once, *tail).swapaxes(0, 1)
    x = x.reshape(steps, ways * at_once, *tail)
    return sharding.constrain(
      x, None, sharding.BATCH_AXES, *(None,) * len(tail)
    )

  transformer = nnx.merge(model.graphdef, params)
  first = loss.short_len

  def of_group(xs: tuple[Array, Array]) -> Float[Array, "G d"]:
    ids, lengths = xs
    hidden = transformer(
      ids[:, :-1],
      lengths=jnp.maximum(lengths, 1),
      score_rows=(first - 1, first + loss.stride - 1),
      backend=backend,
    )
    return log_probs.target_log_probs(
      hidden,
      transformer.head(),
      ids[:, first:],
      softcap=model.config.softcap,
      chunk=loss.chunk,
    )

  log_p = jax.lax.map(of_group, (pool(ids), pool(lengths)))
  log_p = log_p.reshape(steps, ways, at_once, loss.stride).swapaxes(0, 1)
  log_p = log_p.reshape(ways, steps * at_once, loss.stride)[:, :own]
  return log_p.reshape(rows, count, loss.stride)
