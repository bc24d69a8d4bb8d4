"""A checkpoint in the middle of a training run, read as a model.

`W/checkpoints/<step>` holds the state of the run, by Orbax; `W/model`, which
the run writes when it begins, what is the same at each step: `config.json` and
the tokenizer.
"""

from __future__ import annotations

import json
import pathlib

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from longctx_jax.checkpoints import folder_files
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import parameters, partition
from longctx_jax.model.config import ModelConfig
from longctx_jax.runtime import failures, settings

FACTS = "model"
STATE, META = "state", "meta"
DAMAGED = (
  "take another checkpoint; where this one is removed, the run goes on from "
  "the one before"
)
_PARAMS, _VALUE = "params.", ".value"


def is_step(folder: pathlib.Path) -> bool:
  """Whether a training run wrote it as the checkpoint of a step."""
  return (folder / STATE).is_dir() and (folder / META).is_dir()


def facts_folder(folder: pathlib.Path) -> pathlib.Path:
  """Where config and tokenizer of a checkpoint lie.

  Raises:
    FileNotFoundError: they aren't there.
  """
  found = folder.resolve().parent.parent / FACTS
  if not (found / "config.json").is_file():
    raise FileNotFoundError(
      f"{folder}: a checkpoint needs {found} beside it, with config.json and "
      "the tokenizer. Start the run's command once more, which writes it, or "
      "copy the checkpoint together with its workdir"
    )
  return found


def write_facts(
  folder: pathlib.Path,
  config: ModelConfig,
  *,
  dtype: str,
  origin: pathlib.Path | None,
) -> None:
  """Writes config and tokenizer; what is there stays.

  Args:
    folder: appears when it is whole.
    config: facts of the model.
    dtype: that an export of it has.
    origin: folder or .gguf file that the tokenizer comes from.
  """
  if folder.exists():
    return
  fields = folder_files.config_fields(config, dtype=dtype, origin=origin)
  with folder_files.new_folder(folder) as part:
    folder_files.write_beside_weights(part, fields, origin)


def export_dtype(folder: pathlib.Path) -> str:
  """The dtype that an export of the checkpoint has."""
  fields = json.loads((facts_folder(folder) / "config.json").read_text())
  return fields["dtype"]


def read_config(folder: pathlib.Path) -> ModelConfig:
  """The facts of the model.

  Raises:
    FileNotFoundError: see `facts_folder`.
    ValueError: see `config_json.from_hf`.
  """
  path = facts_folder(folder) / "config.json"
  return config_json.from_hf(json.loads(path.read_text()), source=str(path))


def read_arrays(
  folder: pathlib.Path, targets: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
  """Reads arrays of a checkpoint by name, onto the shardings of the targets."""
  import orbax.checkpoint as ocp

  with (
    failures.restoring(folder, remedy=DAMAGED),
    ocp.PyTreeCheckpointer() as checkpointer,
  ):
    return checkpointer.restore(
      folder.resolve() / STATE,
      args=ocp.args.PyTreeRestore(
        item=targets,
        restore_args=ocp.checkpoint_utils.construct_restore_args(targets),
        partial_restore=True,
      ),
    )


def _stored_shapes(folder: pathlib.Path) -> dict[str, list[int]]:
  """Parameter name -> shape."""
  import orbax.checkpoint as ocp

  with ocp.PyTreeCheckpointer() as checkpointer:
    stored = checkpointer.metadata(folder.resolve() / STATE).item_metadata.tree
  return {
    name.removeprefix(_PARAMS).removesuffix(_VALUE): list(leaf.shape)
    for name, leaf in stored.items()
    if name.startswith(_PARAMS)
  }


def load_parameters(
  folder: pathlib.Path,
  config: ModelConfig,
  *,
  mesh: Mesh,
) -> tuple[nnx.GraphDef, nnx.State]:
  """Reads the parameters onto a mesh, and nothing else of the state.

  Args:
    folder: of a step.
    config: the facts of the model.
    mesh: where they go, by `partition.parameter_shardings`.

  Returns:
    (graphdef, params) of a `Transformer`, float32 as training keeps them.

  Raises:
    ValueError: where parameters are not those that the config explains, before
      anything is allocated.
  """
  graphdef, params = parameters.abstract_model(config, np.dtype(np.float32))
  shapes = parameters.parameter_shapes(config)
  settings.require_same(
    _stored_shapes(folder),
    {name: list(shape) for name, shape in shapes.items()},
    where=folder,
    problem=f"holds other parameters than {FACTS}/config.json explains",
    remedy="Restore the config.json that the run wrote",
  )
  placed = partition.parameter_shardings(config, shapes, mesh)
  arrays = read_arrays(
    folder,
    {
      f"{_PARAMS}{name}{_VALUE}": jax.ShapeDtypeStruct(
        shape, np.float32, sharding=placed[name]
      )
      for name, shape in shapes.items()
    },
  )
  flat = [
    (path, leaf.replace(arrays[f"{_PARAMS}{name}{_VALUE}"]))
    for (path, leaf), name in zip(
      nnx.to_flat_state(params), shapes, strict=True
    )
  ]
  return graphdef, nnx.from_flat_state(flat)
