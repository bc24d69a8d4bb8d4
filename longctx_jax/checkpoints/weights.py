"""Parameters from a source of tensors, with everything checked on the way."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping

import jax
import ml_dtypes  # noqa: F401  safetensors reads bfloat16 only with it
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import Mesh
from jax.typing import DTypeLike
from jaxtyping import UInt32

from longctx_jax.checkpoints import placement, tensor_map, weight_faults
from longctx_jax.checkpoints.tensor_map import TensorRef
from longctx_jax.checkpoints.tensor_source import TensorSource
from longctx_jax.model import int8, partition
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.parameters import abstract_model, parameter_shapes

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
_COMPARED_ROWS = 4096
# Tables that old checkpoints store although the config determines them.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")


def tensor_shapes(
  table: Mapping[str, list[TensorRef]], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
  """Hugging Face tensor name -> shape, from the parameters' shapes."""
  found: dict[str, tuple[int, ...]] = {}
  for name, refs in table.items():
    for ref in refs:
      core = shapes[name][len(ref.place) :]
      core = core[::-1] if ref.transpose else core
      if ref.rows:
        before = found[ref.tensor][0] if ref.tensor in found else 0
        core = (max(before, ref.rows[1]), *core[1:])
      found[ref.tensor] = core
  return found


def with_stored_head(source: TensorSource, config: ModelConfig) -> ModelConfig:
  """The facts with a head of its own, where a tied model stores another.

  As transformers 5 does: an equal head is the embedding, one that differs is
  used, whatever the config says of it.

  Args:
    source: a source of tensors.
    config: the facts as the config states them.
  """
  stored = source.shapes
  if not (config.tied and _HEAD in stored and _EMBEDDING in stored):
    return config
  count = stored[_HEAD][0]
  blocks = (
    (slice(start, min(start + _COMPARED_ROWS, count)),)
    for start in range(0, count, _COMPARED_ROWS)
  )
  if tuple(stored[_HEAD]) == tuple(stored[_EMBEDDING]) and all(
    np.array_equal(source.read(_HEAD, rows), source.read(_EMBEDDING, rows))
    for rows in blocks
  ):
    return config
  logging.warning(
    "%s: tie_word_embeddings is true, but %s differs from the embedding: the "
    "stored head is used, as transformers 5 does",
    source.path,
    _HEAD,
  )
  return dataclasses.replace(config, tied=False)


class CheckedSource:
  """A source whose tensors are exactly those that the config explains.

  Attributes:
    path, config, weight_format: of the source.
    shapes: tensor name -> shape.
    inspector: has seen all that was read.
  """

  def __init__(
    self, source: TensorSource, config: ModelConfig, allow_missing: str = ""
  ):
    """Compares names and shapes; reads no weights.

    Args:
      source: a source of tensors.
      config: the facts of the model.
      allow_missing: regular expression of whole tensor names. Those that are
        missing become 0, norms the identity; those that are not understood
        are left out.

    Raises:
      ValueError: for missing, extra or misshapen tensors; all are named.
    """
    shapes = parameter_shapes(config)
    table = tensor_map.parameter_table(config, shapes)
    self.path, self.config = source.path, source.config
    self.weight_format = source.weight_format
    self.shapes = tensor_shapes(table, shapes)
    self.inspector = weight_faults.Inspector(config)
    self._source = source
    # A tied model may store its one table as the head.
    alone = config.tied and _EMBEDDING not in source.shapes
    self._stored_as = {_EMBEDDING: _HEAD} if alone else {}
    stored_shapes = {
      name: source.shapes[self._stored_as.get(name, name)]
      for name in self.shapes
      if self._stored_as.get(name, name) in source.shapes
    }
    self._norm = 0.0 if config.norm_plus_one else 1.0
    for name in filter(_DERIVED.fullmatch, source.shapes):
      self.inspector.see_frequencies(name, source.read(name))
    self._absent = set(self.shapes) - set(stored_shapes)
    extra = {
      name
      for name in set(source.shapes) - set(self.shapes)
      if not _DERIVED.fullmatch(name)
      # A tied head may be stored once more.
      and not (config.tied and name == _HEAD)
    }
    wrong = [
      f"{name} is {tuple(stored_shapes[name])}, not {shape}"
      for name, shape in self.shapes.items()
      if name in stored_shapes and tuple(stored_shapes[name]) != shape
    ]
    allowed = re.compile(allow_missing or r"(?!)")
    found = {
      "missing tensors": _unmatched(self._absent, allowed),
      "tensors that the config does not explain": _unmatched(extra, allowed),
      "misshapen tensors": wrong,
    }
    problems = [f"{title}: {_listed(n)}" for title, n in found.items() if n]
    if problems:
      raise ValueError(
        f"{self.path}: {'; '.join(problems)}. Missing and unexplained ones can "
        "be allowed: scripts/convert.py --allow_missing PATTERN"
      )
    for title, excused in (("missing", self._absent), ("ignored", extra)):
      if excused:
        logging.warning("%s tensors: %s", title, _listed(sorted(excused)))

  def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    """A part of the tensor, or all of it, in the stored dtype."""
    if name in self._absent:
      norm = name.endswith("norm.weight")
      value = np.float32(self._norm if norm else 0)
      return np.broadcast_to(value, self.shapes[name])[index]
    part = self._source.read(self._stored_as.get(name, name), index)
    self.inspector.see(name, part)
    return part


def _unmatched(found: Iterable[str], allowed: re.Pattern[str]) -> list[str]:
  return sorted(name for name in found if not allowed.fullmatch(name))


def _listed(found: list[str]) -> str:
  more = f" and {len(found) - 8} more" if len(found) > 8 else ""
  return f"{', '.join(found[:8])}{more}"


def load_parameters(
  source: TensorSource,
  config: ModelConfig,
  *,
  dtype: DTypeLike,
  mesh: Mesh,
  allow_missing: str = "",
  rounded: bool = False,
) -> tuple[nnx.GraphDef, nnx.State]:
  """Reads every tensor straight into its place on the mesh.

  Args:
    source: a source of tensors.
    config: the facts of the model.
    dtype: dtype of the parameters on the devices.
    mesh: where they go, by `partition.parameter_shardings`.
    allow_missing: see `CheckedSource`.
    rounded: whether a kernel becomes an `int8.Int8Kernel`.

  Returns:
    (graphdef, params) of a `Transformer`.

  Raises:
    ValueError: see `CheckedSource`, or for a mesh that does not divide the
      parameters; before anything is allocated.
  """
  source = CheckedSource(source, config, allow_missing)
  dtype = np.dtype(dtype)
  graphdef, params = abstract_model(config, dtype)
  shapes = parameter_shapes(config)
  table = tensor_map.parameter_table(config, shapes)
  shardings = partition.parameter_shardings(config, shapes, mesh)
  flat = []
  paths = nnx.to_flat_state(params)
  for name, (path, leaf) in zip(shapes, paths, strict=True):
    if rounded and int8.is_rounded(name):
      place = placement.place_int8
    else:
      place = functools.partial(placement.place, dtype=dtype)
    placed = place(
      source.read, table[name], shapes[name], sharding=shardings[name]
    )
    # Transfers hold the host's copy: one parameter at a time.
    flat.append((path, leaf.replace(jax.block_until_ready(placed))))
  source.inspector.warn()
  return graphdef, nnx.from_flat_state(flat)


_PRIME = 65521


@functools.cache
def _index_weights(size: int) -> UInt32[np.ndarray, " n"]:
  return (np.arange(size, dtype=np.uint32) % _PRIME) + np.uint32(1)


def tensor_checksum(bits: np.ndarray) -> int:
  """sum_i bits[i] * (1 + i mod p) mod 2^32, p = 65521, over the flat tensor.

  64 bits count as two words.

  Position counts, so that permuted rows are seen; the sum can be taken shard
  by shard.
  """
  flat = bits.reshape(-1)
  if flat.itemsize == 8:
    flat = flat.view(np.uint32)
  total = 0
  step = _PRIME * 64
  weights = _index_weights(step)
  for start in range(0, flat.size, step):
    part = flat[start : start + step].astype(np.uint32)
    total += int((part * weights[: part.size]).sum(dtype=np.uint32))
  return total % 2**32


def checksum(source: TensorSource) -> str:
  """Identity of the weights as stored, independent of the dtype of loading."""
  digest = hashlib.sha256()
  for name in sorted(source.shapes):
    if not _DERIVED.fullmatch(name):
      digest.update(f"{name} {tensor_checksum(source.raw(name))}\n".encode())
  return digest.hexdigest()[:16]
