"""From a path or hub id to a model on a mesh with its tokenizer."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp
from absl import logging
from jax.typing import DTypeLike

from longctx_jax.checkpoints import (
  export,
  hf_folder,
  hub,
  orbax_folder,
  step_folder,
)
from longctx_jax.checkpoints import weights as weights_lib
from longctx_jax.checkpoints.facts import config_json, published
from longctx_jax.checkpoints.gguf import tensors
from longctx_jax.checkpoints.gguf import tokenizer as tokenizer_lib
from longctx_jax.checkpoints.tensor_source import TensorSource
from longctx_jax.model import defaults, int8, parameters
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime.progress import heartbeat
from longctx_jax.text import tokenizer_files
from longctx_jax.text.tokenizer import TextTokenizer

# How kernels lie on the devices; "" is in the dtype.
WEIGHTS = ("", int8.FORMAT)


def load_model(
  path: str | pathlib.Path,
  *,
  mesh: jax.sharding.Mesh | None = None,
  dtype: DTypeLike | None = None,
  weights: str = "",
  allow_missing: str = "",
) -> LoadedModel:
  """Loads a model and its tokenizer.

  Args:
    path: a Hugging Face folder, a folder that scripts/convert.py wrote in
      Orbax's format, a .gguf file, a hub id, or the checkpoint of a training
      step (W/checkpoints/100).
    mesh: default: `defaults.mesh`.
    dtype: of the parameters and activations; default: `defaults.dtype`.
      Log-probs are float32 in any case.
    weights: one of `WEIGHTS`: "int8" rounds the kernels of the layers as they
      are read, for scoring alone; see the module `int8`.
    allow_missing: regular expression of tensor names; see
      `weights.CheckedSource`.

  Raises:
    FileNotFoundError: where there is no such path, or a file of it is missing.
    ValueError: for a checkpoint that cannot be read faithfully; see
      `config_json.from_hf` and `weights.load_parameters`.

  >>> import tempfile
  >>> from longctx_jax import testing
  >>> source = testing.RandomSource(testing.tiny_config(), seed=0)
  >>> with tempfile.TemporaryDirectory() as folder:
  ...   source.save(f"{folder}/tiny")
  ...   model = load_model(f"{folder}/tiny")
  >>> model.config.num_layers
  2
  """
  name = str(path)
  check_weights(weights)
  folder, revision = hub.resolve(name)
  if weights:
    _require_tensors(folder, name)
  dtype = defaults.dtype(dtype)
  if orbax_folder.is_orbax(folder):
    record = orbax_folder.read_record(folder)
    config = orbax_folder.read_config(folder)
    tokenizer = _tokenizer(folder, name, config)
    mesh = mesh or defaults.mesh(config, dtype)
    with heartbeat(name, doing="loading"):
      loaded = orbax_folder.load_parameters(
        folder, config, dtype=dtype, mesh=mesh
      )
    revision, digest = record["revision"], record["checksum"]
    weight_format = f"orbax {record['dtype']}"
  elif step_folder.is_step(folder):
    config = step_folder.read_config(folder)
    tokenizer = _tokenizer(facts_folder(folder), name, config)
    mesh = mesh or defaults.mesh(config, dtype)
    with heartbeat(name):
      # As stored, so that the identity doesn't depend on how it is loaded.
      graphdef, params = step_folder.load_parameters(folder, config, mesh=mesh)
      digest = weights_lib.checksum(export.ParameterSource(params, config))
    graphdef, _ = parameters.abstract_model(config, dtype)
    loaded = graphdef, jax.tree.map(lambda x: x.astype(dtype), params)
    weight_format = "checkpoint float32"
  else:
    source = open_source(folder)
    config = read_config(source, name=name)
    tokenizer = _tokenizer(folder, name, config)
    mesh = mesh or defaults.mesh(config, dtype)
    with heartbeat(name, doing="loading"):
      loaded = weights_lib.load_parameters(
        source,
        config,
        allow_missing=allow_missing,
        rounded=weights == int8.FORMAT,
        dtype=dtype,
        mesh=mesh,
      )
      digest = weights_lib.checksum(source)
    weight_format = source.weight_format
    if weights:
      # Part of the identity: the checksum is of what is stored.
      weight_format = int8.named(weight_format)
  return LoadedModel(
    name=name,
    graphdef=loaded[0],
    params=loaded[1],
    config=config,
    tokenizer=tokenizer,
    mesh=mesh,
    checksum=digest,
    revision=revision,
    weight_format=weight_format,
  )


def check_weights(weights: str) -> None:
  """Raises ValueError for weights that are none of `WEIGHTS`."""
  if weights not in WEIGHTS:
    raise ValueError(
      f"weights={weights!r} is not one of {', '.join(filter(None, WEIGHTS))}; "
      "without it they are in the dtype"
    )


def _require_tensors(folder: pathlib.Path, name: str) -> None:
  """Raises ValueError where parameters come whole, and not in slabs."""
  remedy = ""
  if orbax_folder.is_orbax(folder):
    remedy = f"python scripts/convert.py --model {name} --output FOLDER"
  elif step_folder.is_step(folder):
    remedy = "take the export of the run"
  if remedy:
    raise ValueError(
      f"{name}: weights are rounded to int8 from safetensors or GGUF, which "
      f"are read in slabs: {remedy}"
    )


def describe_model(
  path: str | pathlib.Path, *, mesh: jax.sharding.Mesh, dtype: DTypeLike
) -> LoadedModel:
  """The model without its weights: shapes stand where arrays would.

  Args:
    path: see `load_model`.
    mesh: where the parameters would live.
    dtype: of the parameters.

  Raises:
    FileNotFoundError: where there is no such path.
    ValueError: for a checkpoint that cannot be read faithfully.
  """
  name = str(path)
  folder, revision = hub.resolve(name)
  config = read_facts(folder, name=name)
  graphdef, params = parameters.abstract_model(config, jnp.dtype(dtype))
  return LoadedModel(
    name=name,
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=_tokenizer(facts_folder(folder), name, config),
    mesh=mesh,
    checksum="",
    revision=revision,
    weight_format="",
  )


def read_facts(
  folder: pathlib.Path, *, name: str, weights_here: bool = True
) -> ModelConfig:
  """The facts of a model.

  Args:
    folder: what `hub.resolve` found.
    name: of the model, for messages.
    weights_here: whether the tensors are to be looked at: whether all are
      there, and what they say of the output head. False where they have not
      been downloaded.

  Raises:
    FileNotFoundError: a missing file; it is named.
    ValueError: a checkpoint that cannot be read faithfully.
  """
  if orbax_folder.is_orbax(folder):
    return orbax_folder.read_config(folder)
  if step_folder.is_step(folder):
    return step_folder.read_config(folder)
  if weights_here:
    return read_config(open_source(folder), name=name)
  fields = hf_folder.read_fields(facts_folder(folder))
  return config_json.from_hf(fields, source=name)


def facts_of(path: str | pathlib.Path) -> ModelConfig:
  """The facts of a model, of which no weights need to be there.

  Args:
    path: see `load_model`; a folder may hold a config.json alone. What
      `published.FIELDS` knows is not asked for at the hub.

  Raises:
    FileNotFoundError: where there is no such path.
    ValueError: see `config_json.from_hf`.
  """
  name = str(path)
  if name in published.FIELDS and not pathlib.Path(name).exists():
    return config_json.from_hf(published.FIELDS[name], source=name)
  folder, _ = hub.resolve(name, weights=False)
  return read_facts(folder, name=name, weights_here=folder.is_file())


def stored_checksum(path: str | pathlib.Path) -> str:
  """The identity of the weights that `load_model` would load.

  Raises:
    FileNotFoundError, ValueError: see `load_model`.
  """
  folder, _ = hub.resolve(str(path))
  if orbax_folder.is_orbax(folder):
    return orbax_folder.read_record(folder)["checksum"]
  if step_folder.is_step(folder):
    return load_model(path, dtype=jnp.float32).checksum
  return weights_lib.checksum(open_source(folder))


def facts_folder(folder: pathlib.Path) -> pathlib.Path:
  """Where config and tokenizer of a model lie: as a rule with the weights.

  Raises:
    FileNotFoundError: see `step_folder.facts_folder`.
  """
  is_step = step_folder.is_step(folder)
  return step_folder.facts_folder(folder) if is_step else folder


def open_source(path: pathlib.Path) -> TensorSource:
  """The tensors of a .gguf file or a Hugging Face folder.

  Raises:
    FileNotFoundError: for a missing file; it is named.
    ValueError: for a checkpoint that cannot be read faithfully.
  """
  if path.suffix == ".gguf":
    return tensors.GgufSource(path)
  return hf_folder.SafetensorsSource(path)


def read_config(source: TensorSource, *, name: str) -> ModelConfig:
  """The facts of a checkpoint, by its config and by its tensors.

  Args:
    source: a source of tensors.
    name: of the model, for messages.

  Raises:
    ValueError: see `config_json.from_hf`.
  """
  config = config_json.from_hf(source.config, source=name)
  if doubt := config_json.doubtful_context(source.config):
    logging.warning("%s: %s", name, doubt)
  return weights_lib.with_stored_head(source, config)


def _tokenizer(
  folder: pathlib.Path, name: str, config: ModelConfig
) -> TextTokenizer | None:
  """The tokenizer, or None where there is none."""
  has = folder.is_file() or tokenizer_files.vocabularies(folder)
  tokenizer = _read_tokenizer(folder, name) if has else None
  if tokenizer is not None:
    tokenizer.restrict(config.vocab_size)
  return tokenizer


def load_tokenizer(path: str | pathlib.Path) -> TextTokenizer:
  """Loads the tokenizer of a folder, a .gguf file or a hub id.

  Raises:
    FileNotFoundError: where there is none.
    ValueError: for a GGUF vocabulary that cannot be read faithfully.
  """
  name = str(path)
  folder, _ = hub.resolve(name, weights=False)
  return _read_tokenizer(facts_folder(folder), name)


def _read_tokenizer(folder: pathlib.Path, name: str) -> TextTokenizer:
  if folder.suffix == ".gguf":
    backend = tokenizer_lib.find_tokenizer(tensors.GgufSource(folder))
    return TextTokenizer(backend, name=name)
  return TextTokenizer.from_folder(folder)
