"""What stands beside the weights in a folder: config.json, the tokenizer."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.gguf import tensors, tokenizer
from longctx_jax.model.config import ModelConfig
from longctx_jax.runtime import foreign_files
from longctx_jax.text import tokenizer_files

# Facts for generation, which `ModelConfig` does not hold.
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# The longest context in config.json, and where other files repeat it.
_LENGTH = "max_position_embeddings"
_LENGTHS = ("model_max_length", "max_length")
_REPEATING = ("tokenizer_config.json", "generation_config.json")


def config_fields(
  config: ModelConfig, *, dtype: str, origin: pathlib.Path | None
) -> dict[str, Any]:
  """The config.json of a model, with the special ids of its origin.

  Args:
    config: the facts.
    dtype: of the weights; transformers loads them in it.
    origin: folder or .gguf file that the model came from.

  Raises:
    ValueError: for a model that no config.json can state, before anything is
      written.
  """
  fields = config_json.to_hf(config)
  back = config_json.from_hf(fields, source="the exported config.json")
  if back != config:
    lost = [
      name
      for name, value in vars(config).items()
      if value != getattr(back, name)
    ]
    raise ValueError(
      f"a config.json of {config.model_type} cannot state "
      f"{', '.join(f'{name}={getattr(config, name)!r}' for name in lost)}"
    )
  fields |= {"dtype": dtype, "torch_dtype": dtype}
  found = _origin_fields(origin)
  return fields | {name: found[name] for name in _SPECIAL_IDS if name in found}


def _origin_fields(origin: pathlib.Path | None) -> dict[str, Any]:
  if origin is None:
    return {}
  if origin.suffix == ".gguf":
    return tensors.GgufSource(origin).config
  path = origin / "config.json"
  fields = foreign_files.read_json(path) if path.is_file() else {}
  return (fields.get("text_config") or {}) | fields


def write_beside_weights(
  folder: pathlib.Path, fields: dict[str, Any], origin: pathlib.Path | None
) -> None:
  """Writes config.json, and copies tokenizer and generation config.

  Args:
    folder: exists.
    fields: of the config.json.
    origin: folder, or .gguf file whose tokenizer is written out; None: the
      folder gets no tokenizer.
  """
  (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")
  if origin is None:
    return
  if origin.suffix == ".gguf":
    tokenizer.save_tokenizer(tensors.GgufSource(origin), folder)
    ids = {name: fields[name] for name in _SPECIAL_IDS if name in fields}
    (folder / "generation_config.json").write_text(json.dumps(ids, indent=2))
    return
  patterns = (*tokenizer_files.PATTERNS, "generation_config.json")
  for path in tokenizer_files.find(origin, patterns):
    shutil.copyfile(path, folder / path.name)
  _restate(folder, fields, _origin_fields(origin))


def _restate(
  folder: pathlib.Path, fields: dict[str, Any], before: dict[str, Any]
) -> None:
  """Corrects what copied files repeat of a config.json that has changed."""
  now, was = (
    facts[_LENGTH] if _LENGTH in facts else 0 for facts in (fields, before)
  )
  for name in _REPEATING:
    path = folder / name
    if not path.is_file():
      continue
    stated = json.loads(path.read_text())
    corrected = {
      field: now if field in _LENGTHS and value == was else value
      for field, value in stated.items()
    }
    if fields.get("sliding_window") != before.get("sliding_window"):
      # A kind of cache for layers that see a window.
      corrected.pop("cache_implementation", None)
    if corrected != stated:
      text = json.dumps(corrected, indent=2, ensure_ascii=False)
      path.write_text(text + "\n")


def require_free(folder: pathlib.Path) -> None:
  """Raises FileExistsError where `folder` exists and is not empty."""
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise FileExistsError(
      f"{folder} exists: give another folder, or move it out of the way"
    )


@contextlib.contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """A folder to write into, which appears as `folder` when all is written.

  Raises:
    FileExistsError: where `folder` exists and is not empty.
  """
  folder = pathlib.Path(folder)
  require_free(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
  part = pathlib.Path(
    tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)
  )
  try:
    yield part
    part.chmod(0o755)
    os.replace(part, folder)
  finally:
    shutil.rmtree(part, ignore_errors=True)
