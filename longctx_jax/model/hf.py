"""Hugging Face checkpoints: safetensors to parameters, by one ordered table.

A source of tensors has `config`, `shapes`, `read(name)`, `raw(name)` and
`weight_format`; `SafetensorsSource` and `gguf.GgufSource` are the two.
"""

from __future__ import annotations

import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import jax
import ml_dtypes  # noqa: F401  safetensors reads bfloat16 only with it
import numpy as np
import safetensors
from absl import logging
from flax import nnx

from longctx_jax.model import partition
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.transformer import Transformer

# Ours -> theirs. A kernel is stored transposed there ([out, in]); {} is the
# layer, which is the first axis here.
_NAMES = {
  "embedding": "model.embed_tokens.weight",
  "norm.scale": "model.norm.weight",
  "output": "lm_head.weight",
  "layers.attention_norm.scale": "model.layers.{}.input_layernorm.weight",
  "layers.mlp_norm.scale": "model.layers.{}.post_attention_layernorm.weight",
  "layers.attention.q_norm.scale": "model.layers.{}.self_attn.q_norm.weight",
  "layers.attention.k_norm.scale": "model.layers.{}.self_attn.k_norm.weight",
} | {
  f"layers.{ours}.{leaf}": f"model.layers.{{}}.{theirs}.{their_leaf}"
  for ours, theirs in (
    ("attention.q_proj", "self_attn.q_proj"),
    ("attention.k_proj", "self_attn.k_proj"),
    ("attention.v_proj", "self_attn.v_proj"),
    ("attention.o_proj", "self_attn.o_proj"),
    ("mlp.gate_proj", "mlp.gate_proj"),
    ("mlp.up_proj", "mlp.up_proj"),
    ("mlp.down_proj", "mlp.down_proj"),
  )
  for leaf, their_leaf in (("kernel", "weight"), ("bias", "bias"))
}
# Tables that old checkpoints store although the config determines them.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")


class SafetensorsSource:
  """The tensors of a folder with config.json and *.safetensors.

  Attributes:
    config: the parsed config.json.
    shapes: tensor name -> shape.
    weight_format: e.g. "safetensors bfloat16".

  Raises:
    FileNotFoundError: for a missing config, index or shard, before anything
      is read; the missing files are named.
  """

  def __init__(self, folder: str | pathlib.Path):
    folder = pathlib.Path(folder)
    path = folder / "config.json"
    if not path.is_file():
      raise FileNotFoundError(f"{folder}: no config.json")
    self.config: dict[str, Any] = json.loads(path.read_text())
    index = folder / "model.safetensors.index.json"
    if index.is_file():
      named = json.loads(index.read_text())["weight_map"]
      files = sorted(set(named.values()))
    else:
      named, files = {}, ["model.safetensors"]
    absent = [file for file in files if not (folder / file).is_file()]
    if absent:
      others = sorted(p.name for p in folder.glob("*.bin"))
      hint = f"; {others[0]} is not safetensors: convert it" if others else ""
      raise FileNotFoundError(f"{folder}: missing {', '.join(absent)}{hint}")
    self._files = {
      name: file
      for file in (
        safetensors.safe_open(folder / file, framework="numpy")
        for file in files
      )
      for name in file.keys()  # noqa: SIM118  not a mapping
    }
    lost = sorted(set(named) - set(self._files))
    if lost:
      raise ValueError(f"{folder}: in the index but in no shard: {lost[:8]}")
    self.shapes = {
      name: tuple(file.get_slice(name).get_shape())
      for name, file in self._files.items()
    }
    kinds = {f.get_slice(name).get_dtype() for name, f in self._files.items()}
    self.weight_format = f"safetensors {'+'.join(sorted(kinds))}"

  def read(self, name: str) -> np.ndarray:
    """The tensor in the stored dtype."""
    return self._files[name].get_tensor(name)

  def raw(self, name: str) -> np.ndarray:
    """The stored bits as unsigned integers."""
    tensor = self.read(name)
    return tensor.view(np.dtype(f"u{tensor.dtype.itemsize}"))


def parameter_table(
  shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, list[str]]:
  """Parameter name -> tensor names, one per layer for stacked parameters."""
  return {
    name: [_NAMES[name].format(layer) for layer in range(shape[0])]
    if name.startswith("layers.")
    else [_NAMES[name]]
    for name, shape in shapes.items()
  }


def flatten(params: nnx.State) -> dict[str, Any]:
  """Parameters by dotted name, e.g. "layers.mlp.up_proj.kernel"."""
  return {
    ".".join(str(part) for part in path): value
    for path, value in nnx.to_flat_state(params)
  }


def load_parameters(
  source: Any, config: ModelConfig, *, dtype: Any, mesh: jax.sharding.Mesh
) -> tuple[nnx.GraphDef, nnx.State]:
  """Reads every tensor straight into its place on the mesh.

  One parameter (all its layers) is held on the host at a time.

  Args:
    source: `SafetensorsSource` or `gguf.GgufSource`.
    config: the facts of the model.
    dtype: dtype of the parameters on the devices.
    mesh: where they go, by `partition.parameter_shardings`.

  Returns:
    (graphdef, params) of a `Transformer`.

  Raises:
    ValueError: for missing, extra or misshapen tensors (all are named), or a
      mesh that does not divide them; before anything is allocated.
  """
  abstract = nnx.eval_shape(
    lambda: Transformer(config, dtype=dtype, rngs=nnx.Rngs(0))
  )
  graphdef, params = nnx.split(abstract, nnx.Param)
  shapes = {name: leaf.shape for name, leaf in flatten(params).items()}
  table = parameter_table(shapes)
  _check_tensors(source.shapes, shapes, table, config)
  shardings = partition.parameter_shardings(config, shapes, mesh)
  flat = []
  for path, leaf in nnx.to_flat_state(params):
    name = ".".join(str(part) for part in path)
    host = np.empty(shapes[name], dtype)
    for layer, tensor in enumerate(table[name]):
      place = host[layer] if name.startswith("layers.") else host
      place[...] = _to_ours(name, source.read(tensor))
    array = jax.make_array_from_callback(
      host.shape, shardings[name], lambda index, host=host: host[index]
    )
    # Transfers hold the host's copy: one parameter at a time.
    flat.append((path, leaf.replace(array.block_until_ready())))
  params = nnx.from_flat_state(flat)
  _warn_if_head_is_empty(params, config)
  return graphdef, params


def _to_ours(name, tensor):
  return tensor.T if name.endswith(".kernel") else tensor


def _check_tensors(found, shapes, table, config):
  """Raises ValueError unless the tensors are exactly the parameters."""
  expected = {}
  for name, tensors in table.items():
    shape = shapes[name][1:] if name.startswith("layers.") else shapes[name]
    shape = shape[::-1] if name.endswith(".kernel") else shape
    expected |= dict.fromkeys(tensors, shape)
  missing = sorted(set(expected) - set(found))
  extra = sorted(
    name
    for name in set(found) - set(expected)
    if not _DERIVED.fullmatch(name)
    # A tied head may be stored once more.
    and not (config.tied and name == _NAMES["output"])
  )
  wrong = [
    f"{name} is {tuple(found[name])}, not {shape}"
    for name, shape in expected.items()
    if name in found and tuple(found[name]) != shape
  ]
  for title, names in (
    ("missing tensors", missing),
    ("tensors that the config does not explain", extra),
    ("misshapen tensors", wrong),
  ):
    if names:
      more = f" and {len(names) - 8} more" if len(names) > 8 else ""
      raise ValueError(f"{title}: {', '.join(names[:8])}{more}")


def _warn_if_head_is_empty(params, config):
  head = flatten(params)["embedding" if config.tied else "output"][...]
  if not bool(jax.numpy.any(head)):
    logging.warning(
      "The output head looks empty: all of its weights are 0, so that every "
      "token has probability 1 / %d",
      config.vocab_size,
    )


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
