"""Folders with config.json and *.safetensors, as a source of tensors."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes  # noqa: F401  safetensors reads bfloat16 only with it
import numpy as np
import safetensors

from longctx_jax.checkpoints import tensor_map
from longctx_jax.runtime import foreign_files

_BUFFERS = ("I64", "U64", "BOOL")
_KINDS = ("BF16", "F16", "F32", "F64")


class SafetensorsSource:
  """The tensors of a folder with config.json and *.safetensors.

  One shard is open at a time: its pages count as memory of the process.

  Attributes:
    path: of the folder.
    config: the parsed config.json.
    shapes: tensor name -> shape; names as `tensor_map` has them, whatever
      prefix the file gives them.
    weight_format: e.g. "safetensors BF16".
  """

  def __init__(self, folder: str | pathlib.Path):
    """Reads the headers.

    Raises:
      FileNotFoundError: for a missing config, index or shard, before anything
        is read; the missing files are named.
      ValueError: for quantised tensors, an index that names others, a file
        that is damaged, a pointer in place of one, or an adapter.
    """
    self._folder = pathlib.Path(folder)
    self.path = str(folder)
    self._file, self._handle = "", None
    self.config = read_fields(self._folder)
    indexed, files = _read_index(self._folder)
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
      plain = tensor_map.text_tensor(name, self.config.get("model_type"))
      if plain is not None and plain != "lm_head.weight":
        plain = prefix + plain
      if plain is not None:
        self._places[plain] = file, name
    self.shapes = {
      plain: stored[name][1] for plain, (_, name) in self._places.items()
    }
    kinds = {stored[name][2] for _, name in self._places.values()}
    self.weight_format = f"safetensors {'+'.join(sorted(kinds))}"

  def _open(self, file: str) -> Any:
    if self._file != file:
      self._handle = None  # Its pages go before the next come.
      path = self._folder / file
      foreign_files.require_content(path)
      try:
        self._handle = safetensors.safe_open(path, framework="numpy")
      except safetensors.SafetensorError as error:
        raise ValueError(
          f"{path} cannot be read ({error}): its {path.stat().st_size:,} bytes "
          "are not all of it. Copy it once more"
        ) from error
      self._file = file
    return self._handle

  def _refuse_quantised(self, kinds: Mapping[str, str]) -> None:
    # Other whole numbers are buffers: named where nothing explains them.
    odd = [
      name
      for name, kind in kinds.items()
      if kind not in _KINDS
      and (kind not in _BUFFERS or name.endswith((".weight", ".bias")))
    ]
    if odd and kinds[odd[0]] in _BUFFERS:
      raise ValueError(
        f"{self._folder}: {odd[0]} holds whole numbers ({kinds[odd[0]]}), "
        f"which are no weights. Readable are {', '.join(_KINDS)}"
      )
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


def read_fields(folder: pathlib.Path) -> dict[str, Any]:
  """The fields of a folder's config.json.

  Raises:
    FileNotFoundError: it has none.
    ValueError: an adapter, or no JSON.
  """
  _refuse_adapter(folder)
  path = folder / "config.json"
  if not path.is_file():
    raise FileNotFoundError(f"{folder}: no config.json")
  config: dict[str, Any] = foreign_files.read_json(path)
  _add_stated_length(config, folder)
  return config


def _read_index(folder: pathlib.Path) -> tuple[dict[str, str], list[str]]:
  """Tensor name -> shard, empty without an index, and the shards."""
  path = folder / "model.safetensors.index.json"
  if not path.is_file():
    return {}, ["model.safetensors"]
  indexed = foreign_files.read_json(path).get("weight_map")
  if not isinstance(indexed, dict) or not indexed:
    raise ValueError(f"{path} has no weight_map: copy it once more")
  return indexed, sorted(set(indexed.values()))


def _add_stated_length(config: dict[str, Any], folder: pathlib.Path) -> None:
  """The tokenizer's length, where the config does not state one itself."""
  path = folder / "tokenizer_config.json"
  if "model_max_length" not in config and path.is_file():
    length = foreign_files.read_json(path).get("model_max_length")
    if length is not None:
      config["model_max_length"] = length


def _refuse_adapter(folder: pathlib.Path) -> None:
  path = folder / "adapter_config.json"
  if path.is_file() and not any(folder.glob("model*.safetensors")):
    base = foreign_files.read_json(path).get("base_model_name_or_path")
    raise ValueError(
      f"{folder} is an adapter of {base or 'another model'}: merge it first "
      "(peft: model.merge_and_unload().save_pretrained(FOLDER)), and give the "
      "merged folder"
    )


def _parts(file: Any) -> Iterator[tuple[str, Any]]:
  return ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118


def _guess_method(name: str, kinds: Mapping[str, str]) -> str:
  if kinds[name].startswith("F8"):
    return "FP8"
  if name.endswith((".qweight", ".qzeros", ".g_idx")):
    return "GPTQ" if any(n.endswith(".g_idx") for n in kinds) else "AWQ or GPTQ"
  return "bitsandbytes" if kinds[name] in ("I8", "U8") else "unknown method"
