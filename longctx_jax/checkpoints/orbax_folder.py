"""A folder with parameters in Orbax's format, config and tokenizer beside.

`config.json`, the tokenizer's files, `params/` (Orbax) and `longctx_jax.json`,
which holds the identity of the weights.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import pathlib
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike

from longctx_jax.checkpoints import export, folder_files, weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import parameters, partition
from longctx_jax.model.config import ModelConfig
from longctx_jax.runtime import failures, foreign_files, settings

_RECORD = "longctx_jax.json"
_PARAMS = "params"


def is_orbax(folder: pathlib.Path) -> bool:
  """Whether `write_folder` made it."""
  return (folder / _RECORD).is_file()


def write_folder(
  params: nnx.State,
  config: ModelConfig,
  folder: str | os.PathLike[str],
  *,
  origin: pathlib.Path | None,
  revision: str,
) -> None:
  """Writes parameters from any mesh; the folder appears when it is whole.

  Args:
    params: parameters of a `Transformer`.
    config: the facts of the model.
    folder: must not exist, or be empty.
    origin: folder or .gguf file whose tokenizer goes along; None: none does.
    revision: commit of the hub snapshot that the weights came from, or "".

  Raises:
    ValueError: for what cannot be written, before anything is.
    FileExistsError: where the folder exists.
  """
  import orbax.checkpoint as ocp

  source = export.ParameterSource(params, config)
  dtype = next(iter(parameters.flatten(params).values())).dtype
  fields = folder_files.config_fields(config, dtype=str(dtype), origin=origin)
  record = {
    "format_version": 1,
    "dtype": str(dtype),
    "checksum": weights.checksum(source),
    "revision": revision,
    "shapes": {name: list(shape) for name, shape in source.parameters.items()},
  }
  with folder_files.new_folder(folder) as part:
    folder_files.write_beside_weights(part, fields, origin)
    (part / _RECORD).write_text(json.dumps(record, indent=2) + "\n")
    with ocp.StandardCheckpointer() as checkpointer:
      checkpointer.save(part.resolve() / _PARAMS, nnx.to_pure_dict(params))


def read_record(folder: pathlib.Path) -> dict[str, Any]:
  """The record of a folder: dtype, checksum, revision."""
  return foreign_files.read_json(folder / _RECORD)


def read_config(folder: pathlib.Path) -> ModelConfig:
  """The facts of the model in a folder.

  Raises:
    ValueError: see `config_json.from_hf`.
  """
  fields = foreign_files.read_json(folder / "config.json")
  return config_json.from_hf(fields, source=str(folder))


def load_parameters(
  folder: pathlib.Path, config: ModelConfig, *, dtype: DTypeLike, mesh: Mesh
) -> tuple[nnx.GraphDef, nnx.State]:
  """Reads the parameters onto a mesh, whichever one they were written from.

  Args:
    folder: see `write_folder`.
    config: the facts of the model.
    dtype: dtype of the parameters on the devices.
    mesh: where they go, by `partition.parameter_shardings`.

  Returns:
    (graphdef, params) of a `Transformer`.

  Raises:
    ValueError: where parameters are not those that the config explains, before
      anything is allocated.
  """
  import orbax.checkpoint as ocp

  dtype = np.dtype(dtype)
  graphdef, params = parameters.abstract_model(config, dtype)
  shapes = parameters.parameter_shapes(config)
  settings.require_same(
    read_record(folder)["shapes"],
    {name: list(shape) for name, shape in shapes.items()},
    where=folder,
    problem="holds other parameters than its config.json explains",
    remedy="Convert the checkpoint again",
  )
  shardings = partition.parameter_shardings(config, shapes, mesh)
  target = [
    (path, jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=shardings[name]))
    for (path, leaf), name in zip(
      nnx.to_flat_state(params), shapes, strict=True
    )
  ]
  remedy = "convert the checkpoint again"
  with (
    failures.restoring(folder / _PARAMS, remedy=remedy),
    ocp.StandardCheckpointer() as checkpointer,
  ):
    arrays = checkpointer.restore(
      folder.resolve() / _PARAMS,
      nnx.to_pure_dict(nnx.from_flat_state(target)),
    )
  flat = [
    (path, leaf.replace(functools.reduce(operator.getitem, path, arrays)))
    for path, leaf in nnx.to_flat_state(params)
  ]
  return graphdef, nnx.from_flat_state(flat)
