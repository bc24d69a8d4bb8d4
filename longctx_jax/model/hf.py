"""Hugging Face checkpoints: tensors, their identity, and the way to parameters.

A source of tensors has `path`, `config`, `shapes`, `read(name, index)`,
`raw(name)` and `weight_format`: `SafetensorsSource`, `gguf.GgufSource`,
`export.ParameterSource`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes  # noqa: F401  safetensors reads bfloat16 only with it
import numpy as np
import safetensors
from absl import logging
from flax import nnx
from jax.sharding import Mesh

from longctx_jax.model import inspection, names, partition, placement
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.names import TensorRef
from longctx_jax.model.transformer import Transformer

# Tables that old checkpoints store although the config determines them.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
_KINDS = ("BF16", "F16", "F32")


class SafetensorsSource:
  """The tensors of a folder with config.json and *.safetensors.

  One shard is open at a time: its pages count as memory of the process.

  Attributes:
    path: of the folder.
    config: the parsed config.json.
    shapes: tensor name -> shape; names as in `names.parameter_table`, whatever
      prefix the file gives them.
    weight_format: e.g. "safetensors BF16".
  """

  def __init__(self, folder: str | pathlib.Path):
    """Reads the headers.

    Raises:
      FileNotFoundError: for a missing config, index or shard, before anything
        is read; the missing files are named.
      ValueError: for quantised tensors, or an index that names others.
    """
    self._folder = pathlib.Path(folder)
    self.path = str(folder)
    self._file, self._handle = "", None
    path = self._folder / "config.json"
    if not path.is_file():
      raise FileNotFoundError(f"{folder}: no config.json")
    self.config: dict[str, Any] = json.loads(path.read_text())
    index = self._folder / "model.safetensors.index.json"
    indexed, files = {}, ["model.safetensors"]
    if index.is_file():
      indexed = json.loads(index.read_text())["weight_map"]
      files = sorted(set(indexed.values()))
    absent = [file for file in files if not (self._folder / file).is_file()]
    if absent:
      others = sorted(
        path.name
        for pattern in ("*.bin", "*.pth", "consolidated*.safetensors")
        for path in self._folder.glob(pattern)
      )
      hint = (
        f"; {others[0]} is in another layout, which is not read: convert it "
        "with transformers, or take the files that the hub has beside it"
        if others
        else ""
      )
      raise FileNotFoundError(f"{folder}: missing {', '.join(absent)}{hint}")
    stored = {
      name: (file, tuple(part.get_shape()), part.get_dtype())
      for file in files
      for name, part in _parts(self._open(file))
    }
    lost = sorted(set(indexed) - set(stored))
    if lost:
      raise ValueError(f"{folder}: in the index but in no shard: {lost[:8]}")
    self._refuse_quantised({name: kind for name, (*_, kind) in stored.items()})
    # Base models without a head leave the prefix out.
    prefix = "model." if "embed_tokens.weight" in stored else ""
    self._places = {}
    for name, (file, _, _) in stored.items():
      plain = names.text_tensor(name, self.config.get("model_type"))
      if plain is not None and plain != "lm_head.weight":
        plain = prefix + plain
      if plain is not None:
        self._places[plain] = file, name
    self.shapes = {
      plain: stored[name][1] for plain, (_, name) in self._places.items()
    }
    kinds = {stored[name][2] for _, name in self._places.values()}
    self.weight_format = f"safetensors {'+'.join(sorted(kinds))}"

  def _open(self, file):
    if self._file != file:
      self._handle = None  # Its pages go before the next come.
      self._handle = safetensors.safe_open(
        self._folder / file, framework="numpy"
      )
      self._file = file
    return self._handle

  def _refuse_quantised(self, kinds):
    odd = [name for name, kind in kinds.items() if kind not in _KINDS]
    if odd:
      stated = self.config.get("quantization_config") or {}
      method = stated.get("quant_method") or _guess_method(odd[0], kinds)
      raise ValueError(
        f"{self._folder}: the checkpoint is quantised ({method}): {odd[0]} is "
        f"{kinds[odd[0]]}. Readable are {', '.join(_KINDS)}: use the "
        "unquantised checkpoint, a GGUF file, or log-probs computed elsewhere "
        "(scripts/eval.py --log_probs)"
      )

  def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    """A part of the tensor, or all of it, in the stored dtype."""
    file, stored = self._places[name]
    if not index:
      return self._open(file).get_tensor(stored)
    return self._open(file).get_slice(stored)[index]

  def raw(self, name: str) -> np.ndarray:
    """The stored bits as unsigned integers."""
    tensor = self.read(name)
    return tensor.view(np.dtype(f"u{tensor.dtype.itemsize}"))


def _parts(file):
  return ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118


def _guess_method(name, kinds):
  if kinds[name].startswith("F8"):
    return "FP8"
  if name.endswith((".qweight", ".qzeros", ".g_idx")):
    return "GPTQ" if any(n.endswith(".g_idx") for n in kinds) else "AWQ or GPTQ"
  return "bitsandbytes" if kinds[name] in ("I8", "U8") else "unknown method"


def flatten(params: nnx.State) -> dict[str, Any]:
  """Parameters by dotted name, e.g. "layers.mlp.up_proj.kernel"."""
  return {
    ".".join(str(part) for part in path): value
    for path, value in nnx.to_flat_state(params)
  }


@functools.lru_cache(maxsize=8)
def abstract_model(
  config: ModelConfig, dtype: Any
) -> tuple[nnx.GraphDef, nnx.State]:
  """(graphdef, params) of a `Transformer`, shapes in place of arrays."""
  model = nnx.eval_shape(
    lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0))
  )
  return nnx.split(model, nnx.Param)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
  """Parameter name -> shape, layers stacked."""
  params = abstract_model(config, np.dtype(np.float32))[1]
  return {name: leaf.shape for name, leaf in flatten(params).items()}


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


class CheckedSource:
  """A source whose tensors are exactly those that the config explains.

  Attributes:
    path, config, weight_format: of the source.
    shapes: tensor name -> shape.
    inspector: has seen all that was read.
  """

  def __init__(self, source: Any, config: ModelConfig, allow_missing: str = ""):
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
    table = names.parameter_table(config, shapes)
    self.path, self.config = source.path, source.config
    self.weight_format = source.weight_format
    self.shapes = tensor_shapes(table, shapes)
    self.inspector = inspection.Inspector(config)
    self._source = source
    self._norm = 0.0 if config.norm_plus_one else 1.0
    for name in filter(_DERIVED.fullmatch, source.shapes):
      self.inspector.see_frequencies(name, source.read(name))
    self._absent = set(self.shapes) - set(source.shapes)
    extra = {
      name
      for name in set(source.shapes) - set(self.shapes)
      if not _DERIVED.fullmatch(name)
      # A tied head may be stored once more.
      and not (config.tied and name == "lm_head.weight")
    }
    wrong = [
      f"{name} is {tuple(source.shapes[name])}, not {shape}"
      for name, shape in self.shapes.items()
      if name in source.shapes and tuple(source.shapes[name]) != shape
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
    part = self._source.read(name, index)
    self.inspector.see(name, part)
    return part


def _unmatched(found, allowed):
  return sorted(name for name in found if not allowed.fullmatch(name))


def _listed(found):
  more = f" and {len(found) - 8} more" if len(found) > 8 else ""
  return f"{', '.join(found[:8])}{more}"


def load_parameters(
  source: Any,
  config: ModelConfig,
  *,
  dtype: Any,
  mesh: Mesh,
  allow_missing: str = "",
) -> tuple[nnx.GraphDef, nnx.State]:
  """Reads every tensor straight into its place on the mesh.

  Args:
    source: a source of tensors.
    config: the facts of the model.
    dtype: dtype of the parameters on the devices.
    mesh: where they go, by `partition.parameter_shardings`.
    allow_missing: see `CheckedSource`.

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
  table = names.parameter_table(config, shapes)
  shardings = partition.parameter_shardings(config, shapes, mesh)
  flat = []
  paths = nnx.to_flat_state(params)
  for name, (path, leaf) in zip(shapes, paths, strict=True):
    array = placement.place(
      source.read,
      table[name],
      shapes[name],
      dtype=dtype,
      sharding=shardings[name],
    )
    # Transfers hold the host's copy: one parameter at a time.
    flat.append((path, leaf.replace(array.block_until_ready())))
  source.inspector.warn()
  return graphdef, nnx.from_flat_state(flat)


_PRIME = 65521


@functools.cache
def _index_weights(size):
  return (np.arange(size, dtype=np.uint32) % _PRIME) + np.uint32(1)


def tensor_checksum(bits: np.ndarray) -> int:
  """sum_i bits[i] * (1 + i mod p) mod 2^32, p = 65521, over the flat tensor.

  Position counts, so that permuted rows are seen; the sum can be taken shard
  by shard.
  """
  flat = bits.reshape(-1)
  total = 0
  step = _PRIME * 64
  weights = _index_weights(step)
  for start in range(0, flat.size, step):
    part = flat[start : start + step].astype(np.uint32)
    total += int((part * weights[: part.size]).sum(dtype=np.uint32))
  return total % 2**32


def checksum(source: Any) -> str:
  """Identity of the weights as stored, independent of the dtype of loading."""
  digest = hashlib.sha256()
  for name in sorted(source.shapes):
    if not _DERIVED.fullmatch(name):
      digest.update(f"{name} {tensor_checksum(source.raw(name))}\n".encode())
  return digest.hexdigest()[:16]
