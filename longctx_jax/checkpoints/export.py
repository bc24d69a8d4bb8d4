"""Parameters back to a Hugging Face folder that stock transformers loads."""

from __future__ import annotations

import collections
import functools
import itertools
import json
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from longctx_jax.checkpoints import folder_files, tensor_map, weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.tensor_source import TensorSource
from longctx_jax.model import int8, parameters
from longctx_jax.model.config import ModelConfig

_KINDS = {
  np.dtype(np.float32): "F32",
  np.dtype(np.float16): "F16",
  np.dtype(ml_dtypes.bfloat16): "BF16",
}


MAX_SHARD_BYTES = 5 * 10**9


class ParameterSource:
  """Parameters on a mesh as a source of tensors: `load_parameters` back.

  Each tensor is gathered when it is read; the host holds no more than one.

  Attributes:
    path: of nothing: what messages call it.
    config: the facts in the form of a config.json.
    parameters: parameter name -> shape.
    shapes: Hugging Face tensor name -> shape.
    weight_format: e.g. "parameters BF16".
  """

  path = "parameters"

  def __init__(self, params: nnx.State, config: ModelConfig):
    """Names the tensors; moves nothing.

    Raises:
      ValueError: see `int8.require_plain`.
    """
    int8.require_plain(params, doing="a checkpoint")
    self._params = {
      name: value[...] for name, value in parameters.flatten(params).items()
    }
    self.parameters = {
      name: array.shape for name, array in self._params.items()
    }
    table = tensor_map.parameter_table(config, self.parameters)
    self.config = config_json.to_hf(config)
    self.shapes = weights.tensor_shapes(table, self.parameters)
    self._pieces = collections.defaultdict(list)
    for name, refs in table.items():
      for ref in refs:
        self._pieces[ref.tensor].append((ref.rows or (0, 0), name, ref))
    dtype = self._params["embedding"].dtype
    self.weight_format = f"parameters {_kind(dtype)}"

  def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    """The tensor, or a part of it, in the parameters' dtype."""
    parts = [
      _gather(self._params[owner], ref.place, ref.transpose)
      for _, owner, ref in sorted(
        self._pieces[name], key=lambda piece: piece[0]
      )
    ]
    return (np.concatenate(parts) if len(parts) > 1 else parts[0])[index]

  def raw(self, name: str) -> np.ndarray:
    """Its bits as unsigned integers."""
    tensor = self.read(name)
    return tensor.view(np.dtype(f"u{tensor.dtype.itemsize}"))


def _gather(
  stack: jax.Array, place: tuple[int, ...], transpose: bool
) -> np.ndarray:
  everywhere = NamedSharding(stack.sharding.mesh, PartitionSpec())
  piece = _piece(stack, place, transpose=transpose, sharding=everywhere)
  return np.asarray(piece.addressable_data(0))


@functools.partial(jax.jit, static_argnames=("transpose", "sharding"))
def _piece(
  stack: jax.Array,
  place: tuple[int, ...],
  *,
  transpose: bool,
  sharding: NamedSharding,
) -> jax.Array:
  for i in place:
    stack = jax.lax.dynamic_index_in_dim(stack, i, keepdims=False)
  stack = stack.T if transpose else stack
  return jax.lax.with_sharding_constraint(stack, sharding)


def write_folder(
  source: TensorSource,
  config: ModelConfig,
  folder: str | os.PathLike[str],
  *,
  dtype: DTypeLike,
  origin: pathlib.Path | None,
  max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
  """Writes config.json, safetensors, tokenizer and generation config.

  The folder appears when it is whole. The host holds one tensor at a time.

  Args:
    source: a source of tensors, e.g. `ParameterSource`.
    config: the facts of the model.
    folder: must not exist, or be empty.
    dtype: float32, bfloat16 or float16.
    origin: folder or .gguf file whose tokenizer goes along; None: none does.
    max_shard_bytes: of a file, unless a single tensor is larger. With one file
      there is no index.

  Raises:
    ValueError: for what cannot be written, before anything is.
    FileExistsError: where the folder exists.
  """
  dtype = np.dtype(dtype)
  fields = folder_files.config_fields(config, dtype=dtype.name, origin=origin)
  shards = plan_shards(source.shapes, dtype, max_shard_bytes)
  if jax.process_index():
    # It takes all processes to gather a tensor, and one to write it.
    for name in itertools.chain.from_iterable(shards):
      source.read(name)
    return
  with folder_files.new_folder(folder) as part:
    folder_files.write_beside_weights(part, fields, origin)
    files = {
      "model.safetensors"
      if len(shards) == 1
      else f"model-{i:05}-of-{len(shards):05}.safetensors": shard
      for i, shard in enumerate(shards, 1)
    }
    for file, shard in files.items():
      _write_shard(part / file, source, shard, dtype)
    if len(shards) > 1:
      _write_index(part, files, source.shapes, dtype)
  logging.info("wrote %s: %d safetensors, %s", folder, len(shards), dtype.name)


def rehearse(
  source: TensorSource,
  config: ModelConfig,
  folder: str | os.PathLike[str],
  *,
  dtype: DTypeLike,
  origin: pathlib.Path | None,
) -> None:
  """Does all of `write_folder` but the weights, and reads it back.

  So that a run cannot fail at its end for a name, a shape, a tokenizer, a
  folder that cannot be written, or a disk that is too small.

  Args:
    source: a source of tensors; none is read.
    config: the facts of the model.
    folder: as for `write_folder`; it is not made.
    dtype: as for `write_folder`.
    origin: as for `write_folder`.

  Raises:
    ValueError: for what could not be written, or not be read back.
    FileExistsError: where the folder exists.
    OSError: where the disk has less room than the weights take.
  """
  dtype, folder = np.dtype(dtype), pathlib.Path(folder)
  folder_files.require_free(folder)
  plan_shards(source.shapes, dtype, MAX_SHARD_BYTES)
  fields = folder_files.config_fields(config, dtype=dtype.name, origin=origin)
  folder.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=folder.parent) as name:
    trial = pathlib.Path(name)
    folder_files.write_beside_weights(trial, fields, origin)
    stored = json.loads((trial / "config.json").read_text())
    weights.CheckedSource(
      source, config_json.from_hf(stored, source=str(folder))
    )
    room = shutil.disk_usage(trial).free
  needed = sum(_nbytes(shape, dtype) for shape in source.shapes.values())
  if room < needed:
    raise OSError(
      f"{folder}: the export takes {needed / 1e9:.1f} GB, and the disk has "
      f"{room / 1e9:.1f} GB left"
    )


def plan_shards(
  shapes: dict[str, tuple[int, ...]], dtype: np.dtype, max_shard_bytes: int
) -> list[list[str]]:
  """Tensor names of each file, layers in order.

  Raises:
    ValueError: unless max_shard_bytes is positive, for a dtype that is none of
      float32, bfloat16 and float16.
  """
  _kind(dtype)
  if max_shard_bytes <= 0:
    raise ValueError(f"max_shard_bytes={max_shard_bytes} must be positive")
  shards: list[list[str]] = [[]]
  size = 0
  for name in sorted(shapes, key=_natural):
    nbytes = _nbytes(shapes[name], dtype)
    if shards[-1] and size + nbytes > max_shard_bytes:
      shards.append([])
      size = 0
    shards[-1].append(name)
    size += nbytes
  return shards


def _natural(name: str) -> list[int | str]:
  return [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]


def _nbytes(shape: Sequence[int], dtype: np.dtype) -> int:
  return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _kind(dtype: np.dtype) -> str:
  if dtype not in _KINDS:
    raise ValueError(
      f"dtype {dtype} cannot be written (can: float32, bfloat16, float16)"
    )
  return _KINDS[dtype]


def _write_shard(
  path: pathlib.Path, source: TensorSource, shard: list[str], dtype: np.dtype
) -> None:
  """The safetensors format, one tensor after the other.

  Written here and not by the safetensors package, which takes all tensors of
  a file at once.
  """
  header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
  begin = 0
  for name in shard:
    end = begin + _nbytes(source.shapes[name], dtype)
    header[name] = {
      "dtype": _kind(dtype),
      "shape": list(source.shapes[name]),
      "data_offsets": [begin, end],
    }
    begin = end
  text = json.dumps(header).encode()
  text += b" " * (-len(text) % 8)
  with path.open("wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    for name in shard:
      tensor = np.ascontiguousarray(source.read(name), dtype)
      file.write(tensor.reshape(-1).view(np.uint8).data)


def _write_index(
  folder: pathlib.Path,
  files: Mapping[str, list[str]],
  shapes: Mapping[str, tuple[int, ...]],
  dtype: np.dtype,
) -> None:
  total = sum(_nbytes(shape, dtype) for shape in shapes.values())
  index = {
    "metadata": {"total_size": total},
    "weight_map": {
      name: file for file, shard in files.items() for name in shard
    },
  }
  (folder / "model.safetensors.index.json").write_text(
    json.dumps(index, indent=2) + "\n"
  )
