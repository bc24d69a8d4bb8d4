"""From a path or hub id to a model on a mesh with its tokenizer."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from flax import nnx
from jaxtyping import Array, Float, Int

from longctx_jax import hub, sharding
from longctx_jax.model import config as config_lib
from longctx_jax.model import gguf, gguf_tokenizer, hf, orbax_folder
from longctx_jax.model.config import ModelConfig
from longctx_jax.tokenizer import TextTokenizer

_LINE_SECONDS = 30.0


@dataclasses.dataclass(frozen=True, eq=False)
class LoadedModel:
  """A model ready to score.

  Attributes:
    name: as given to `load_model`.
    graphdef: structure of the `Transformer`.
    params: its parameters, on the mesh.
    config: facts of the checkpoint.
    tokenizer: None where the folder has none; then only ids can be scored.
    mesh: where the parameters live.
    checksum: identity of the stored weights; see `hf.checksum`.
    revision: commit of a hub snapshot, else "".
    weight_format: e.g. "safetensors BF16", "gguf Q4_1".
  """

  name: str
  graphdef: nnx.GraphDef
  params: nnx.State
  config: ModelConfig
  tokenizer: TextTokenizer | None
  mesh: jax.sharding.Mesh
  checksum: str
  revision: str
  weight_format: str

  @property
  def dtype(self) -> str:
    """Name of the parameters' dtype on the devices."""
    return str(hf.flatten(self.params)["embedding"].dtype)

  def logits(self, ids: Int[Array, "B T"]) -> Float[Array, "B T V"]:
    """Float32 logits of every position, for inspection; memory B x T x V."""
    rows = len(ids)
    padding = -rows % sharding.batch_ways(self.mesh)
    padded = jnp.pad(jnp.asarray(ids), ((0, padding), (0, 0)))
    with jax.set_mesh(self.mesh):
      model = nnx.merge(self.graphdef, self.params)
      return model.logits(model(padded))[:rows]

  def with_attention(self, *, window: int, sink_len: int) -> LoadedModel:
    """The same weights, seeing the first sink_len and last window positions.

    Raises:
      ValueError: see `ModelConfig.with_attention`.
    """
    config = self.config.with_attention(window=window, sink_len=sink_len)
    graphdef, _ = hf.abstract_model(config, jnp.dtype(self.dtype))
    return dataclasses.replace(self, config=config, graphdef=graphdef)


def load_model(
  path: str | pathlib.Path,
  *,
  mesh: jax.sharding.Mesh | None = None,
  dtype: Any = None,
  allow_missing: str = "",
) -> LoadedModel:
  """Loads a model and its tokenizer.

  Args:
    path: a Hugging Face folder, a folder that scripts/convert.py wrote in
      Orbax's format, a .gguf file, or a hub id.
    mesh: default: all devices on the `fsdp` axis.
    dtype: of the parameters and activations; default float32 on CPU, where it
      is the fastest, and bfloat16 elsewhere. Log-probs are float32 in any case.
    allow_missing: regular expression of tensor names; see `hf.CheckedSource`.

  Raises:
    FileNotFoundError: where there is no such path, or a file of it is missing.
    ValueError: for a checkpoint that cannot be read faithfully; see
      `config.from_hf` and `hf.load_parameters`.
  """
  name = str(path)
  folder, revision = hub.resolve(name)
  if dtype is None:
    cpu = jax.default_backend() == "cpu"
    dtype = jnp.float32 if cpu else jnp.bfloat16
  if mesh is None:
    mesh = sharding.make_mesh({"fsdp": -1})
  kwargs = dict(dtype=dtype, mesh=mesh)
  if orbax_folder.is_orbax(folder):
    record = orbax_folder.read_record(folder)
    config = orbax_folder.read_config(folder)
    tokenizer = _tokenizer(folder, name, config)
    with said_to_go_on(name):
      loaded = orbax_folder.load_parameters(folder, config, **kwargs)
    revision, digest = record["revision"], record["checksum"]
    weight_format = f"orbax {record['dtype']}"
  else:
    source = open_source(folder)
    config = config_lib.from_hf(source.config, source=name)
    tokenizer = _tokenizer(folder, name, config)
    with said_to_go_on(name):
      loaded = hf.load_parameters(
        source, config, allow_missing=allow_missing, **kwargs
      )
      digest = hf.checksum(source)
    weight_format = source.weight_format
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


def describe_model(
  path: str | pathlib.Path, *, mesh: jax.sharding.Mesh, dtype: Any
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
  if orbax_folder.is_orbax(folder):
    config = orbax_folder.read_config(folder)
  else:
    config = config_lib.from_hf(open_source(folder).config, source=name)
  graphdef, params = hf.abstract_model(config, jnp.dtype(dtype))
  return LoadedModel(
    name=name,
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=_tokenizer(folder, name, config),
    mesh=mesh,
    checksum="",
    revision=revision,
    weight_format="",
  )


def open_source(path: pathlib.Path) -> gguf.GgufSource | hf.SafetensorsSource:
  """The tensors of a .gguf file or a Hugging Face folder.

  Raises:
    FileNotFoundError: for a missing file; it is named.
    ValueError: for a checkpoint that cannot be read faithfully.
  """
  if path.suffix == ".gguf":
    return gguf.GgufSource(path)
  return hf.SafetensorsSource(path)


def _tokenizer(folder, name, config):
  """The tokenizer, or None where there is none."""
  has = folder.is_file() or any(
    any(folder.glob(pattern)) for pattern in ("tokenizer*", "vocab*")
  )
  tokenizer = _read_tokenizer(folder, name) if has else None
  if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
    raise ValueError(
      f"{name}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, the "
      f"model {config.vocab_size} embeddings: they do not belong together"
    )
  return tokenizer


@contextlib.contextmanager
def said_to_go_on(name: str) -> Iterator[None]:
  """Logs a line every half a minute: reading looks like hanging."""
  done, start = threading.Event(), time.monotonic()

  def tell():
    while not done.wait(_LINE_SECONDS):
      seconds = time.monotonic() - start
      logging.info("still reading %s: %.0f s", name, seconds)

  thread = threading.Thread(target=tell, daemon=True)
  thread.start()
  try:
    yield
  finally:
    done.set()
    thread.join()


def load_tokenizer(path: str | pathlib.Path) -> TextTokenizer:
  """Loads the tokenizer of a folder, a .gguf file or a hub id.

  Raises:
    FileNotFoundError: where there is none.
    ValueError: for a GGUF vocabulary that cannot be read faithfully.
  """
  name = str(path)
  return _read_tokenizer(hub.resolve(name, weights=False)[0], name)


def _read_tokenizer(folder, name):
  if folder.suffix == ".gguf":
    source = gguf.GgufSource(folder)
    return TextTokenizer(gguf_tokenizer.load_tokenizer(source), name=name)
  return TextTokenizer.from_folder(folder)
