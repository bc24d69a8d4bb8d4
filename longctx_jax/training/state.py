"""What a training run carries from step to step, and where it lives."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from longctx_jax.model import int8, parameters, partition, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.loaded import LoadedModel


@functools.partial(
  jax.tree_util.register_dataclass,
  data_fields=["step", "params", "opt_state"],
  meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class TrainState:
  """State of training; a pytree.

  Attributes:
    step: updates done, int32 []; or, as all leaves, a shape or a sharding.
    params: float32 master parameters of a `Transformer`.
    opt_state: of the optimizer.
  """

  step: Any
  params: nnx.State
  opt_state: optax.OptState


def create(
  model: LoadedModel, optimizer: optax.GradientTransformation
) -> TrainState:
  """The state before the first step, on the model's mesh.

  The parameters are copied to float32: the model stays usable when the state
  is donated.

  Raises:
    ValueError: see `int8.require_plain`.
  """
  int8.require_plain(model.params, doing="training")

  def init(params: nnx.State) -> TrainState:
    params = jax.tree.map(lambda p: p.astype(jnp.float32), params)
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=params,
      opt_state=optimizer.init(params),
    )

  placed = shardings(
    jax.eval_shape(init, model.params), model.config, model.mesh
  )
  # Compiled, so that every part is born in its place and no process needs more
  # than its own.
  return jax.jit(init, out_shardings=placed)(model.params)


def shardings(
  state: TrainState, config: ModelConfig, mesh: sharding.AnyMesh
) -> TrainState:
  """Where each part of a state lives, in the form of the state.

  Parts of the optimizer's state that mirror a parameter lie as it does; step
  and counters are everywhere.

  Args:
    state: arrays, or their shapes.
    config: the facts of the model.
    mesh: see `partition.parameter_shardings`.

  Raises:
    ValueError: where the mesh does not divide the parameters.
  """
  shapes = {
    name: leaf.shape for name, leaf in parameters.flatten(state.params).items()
  }
  by_name = partition.parameter_shardings(config, shapes, mesh)
  everywhere = NamedSharding(mesh, PartitionSpec())

  def place(
    path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct | jax.Array
  ) -> NamedSharding:
    name = _parameter_name(path)
    mirrors = name in shapes and leaf.shape == shapes[name]
    return by_name[name] if mirrors else everywhere

  return jax.tree_util.tree_map_with_path(place, state)


def _parameter_name(path: tuple[Any, ...]) -> str:
  """Dotted name of the parameter that a path of the state ends in, or ""."""
  return ".".join(
    str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)
  )
