"""The compiled step of a run: training is jitted here and nowhere else."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from absl import logging
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from longctx_jax.model import defaults, row_parts, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.training import config as config_lib
from longctx_jax.training import optimizer
from longctx_jax.training import state as state_lib
from longctx_jax.training import step as step_lib
from longctx_jax.training.state import TrainState


def compile_step(
  config: ConfigDict,
  model: LoadedModel,
  state: Any,
  batch: Any,
  *,
  first_step: int = 0,
) -> jax.stages.Compiled:
  """The compiled step of a run.

  Args:
    config: as configs/llama2_7b.py.
    model: graphdef, facts and mesh; its parameters are not read.
    state: `TrainState` of arrays, or of shapes with shardings.
    batch: the arrays of a batch, or their shapes with shardings.
    first_step: at which the optimizer begins.
  """
  dtype = config_lib.compute_dtype(config)
  backend = defaults.attention_backend(
    config.model.backend,
    model.config,
    dtype=dtype,
    packed=config.data.packing,
    in_parts=model.mesh.shape[row_parts.AXIS] > 1,
  )
  remat = defaults.remat(config.model.remat)
  step = step_lib.make_train_step(
    model,
    optimizer.make_optimizer(
      config_lib.optimizer_config(config), config.optimizer.steps - first_step
    ),
    config_lib.loss_config(config),
    compute_dtype=dtype,
    accumulate=config.optimizer.accumulate,
    backend=backend,
    remat=remat,
  )
  whole = NamedSharding(model.mesh, PartitionSpec())
  return compile_on(
    model.mesh,
    step,
    state,
    batch,
    note=f" with remat={remat}",
    donate_argnums=0,  # The old state and the new one would not fit together.
    # Sums are read by the host; the state stays where it was placed.
    out_shardings=(jax.tree.map(lambda leaf: leaf.sharding, state), whole),
  )


def compile_on(
  mesh: jax.sharding.Mesh,
  function: Callable[..., Any],
  *arguments: Any,
  note: str = "",
  **options: Any,
) -> jax.stages.Compiled:
  """Compiles a function for a mesh; says what it takes of a device.

  Args:
    mesh: in use while the function is traced.
    function: pure.
    *arguments: arrays, or shapes with shardings.
    note: for the message, behind the name of the function.
    **options: of `jax.jit`.
  """
  start = time.monotonic()
  with jax.set_mesh(mesh):
    compiled = jax.jit(function, **options).lower(*arguments).compile()
  memory = compiled.memory_analysis()
  sizes = (
    memory.argument_size_in_bytes,
    memory.temp_size_in_bytes,
    _peak_bytes(compiled, mesh),
  )
  logging.info(
    "compiled %s%s in %.1f s: %.2f GiB of arguments and %.2f GiB of "
    "temporaries per device, at most %.2f GiB at a time (%d, %d and %d bytes)",
    function.__name__,
    note,
    time.monotonic() - start,
    *(size / 2**30 for size in sizes),
    *sizes,
  )
  return compiled


def _peak_bytes(compiled: jax.stages.Compiled, mesh: jax.sharding.Mesh) -> int:
  """Bytes of a device in use at a time."""
  memory = compiled.memory_analysis()
  if mesh.devices.flat[0].platform != "cpu":
    return memory.peak_memory_in_bytes
  # There XLA leaves temporaries out.
  return (
    memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    - memory.alias_size_in_bytes
    + memory.temp_size_in_bytes
  )


def describe_state(
  model: LoadedModel, rule: optax.GradientTransformation
) -> TrainState:
  """Shapes and shardings of a state; the model may hold shapes only."""
  shapes = jax.eval_shape(
    lambda params: state_lib.create(
      dataclasses.replace(model, params=params), rule
    ),
    model.params,
  )
  placed = state_lib.shardings(shapes, model.config, model.mesh)
  return jax.tree.map(
    lambda leaf, where: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=where
    ),
    shapes,
    placed,
  )


def place_batch(
  batch: dict[str, np.ndarray], mesh: jax.sharding.Mesh
) -> dict[str, jax.Array]:
  """This process's rows of a batch (`sharding.row_share`), onto the mesh.

  A device gets the positions that it has of a row, and the plan of all of its
  windows.
  """
  _, shares = sharding.row_share(mesh)
  placed = {}
  for name, array in batch.items():
    split = sharding.row_sharding(
      mesh, by_position=array.shape == batch["inputs"].shape
    )
    placed[name] = jax.make_array_from_process_local_data(
      split, array, (len(array) * shares, *array.shape[1:])
    )
  return placed
