"""From a path or hub id to a model on a mesh with its tokenizer."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from longctx_jax import sharding
from longctx_jax.model import config as config_lib
from longctx_jax.model import gguf, hf
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.transformer import Transformer
from longctx_jax.tokenizer import TextTokenizer

_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py")


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
    with jax.set_mesh(self.mesh):
      model = nnx.merge(self.graphdef, self.params)
      return jnp.einsum(
        "btd,vd->btv",
        model(jnp.asarray(ids)),
        model.head(),
        preferred_element_type=jnp.float32,
      )

  def with_attention(self, *, window: int, sink_len: int) -> LoadedModel:
    """The same weights, seeing the first sink_len and last window positions.

    Raises:
      ValueError: see `ModelConfig.with_attention`.
    """
    config = self.config.with_attention(window=window, sink_len=sink_len)
    return dataclasses.replace(
      self, config=config, graphdef=_graphdef(config, self.dtype)
    )


def _graphdef(config, dtype):
  abstract = nnx.eval_shape(
    lambda: Transformer(config, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
  )
  return nnx.split(abstract, nnx.Param)[0]


def load_model(
  path: str | pathlib.Path,
  *,
  mesh: jax.sharding.Mesh | None = None,
  dtype: Any = None,
) -> LoadedModel:
  """Loads a model and its tokenizer.

  Args:
    path: a Hugging Face folder, a .gguf file, or a hub id.
    mesh: default: all devices on the `fsdp` axis.
    dtype: of the parameters and activations; default float32 on CPU, where it
      is the fastest, and bfloat16 elsewhere. Log-probs are float32 in any case.

  Raises:
    FileNotFoundError: where there is no such path, or a file of it is missing.
    ValueError: for a checkpoint that cannot be read faithfully; see
      `config.from_hf` and `hf.load_parameters`.
  """
  name = str(path)
  folder, revision = resolve(name)
  if dtype is None:
    cpu = jax.default_backend() == "cpu"
    dtype = jnp.float32 if cpu else jnp.bfloat16
  if mesh is None:
    mesh = sharding.make_mesh({"fsdp": -1})
  is_gguf = folder.suffix == ".gguf"
  source = gguf.GgufSource(folder) if is_gguf else hf.SafetensorsSource(folder)
  tokenizer = None
  if is_gguf or any(folder.glob("tokenizer*")) or any(folder.glob("vocab*")):
    tokenizer = load_tokenizer(name)
  config = config_lib.from_hf(source.config, source=name)
  if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
    raise ValueError(
      f"{name}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, the "
      f"model {config.vocab_size} embeddings: they do not belong together"
    )
  graphdef, params = hf.load_parameters(source, config, dtype=dtype, mesh=mesh)
  return LoadedModel(
    name=name,
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=tokenizer,
    mesh=mesh,
    checksum=hf.checksum(source),
    revision=revision,
    weight_format=source.weight_format,
  )


def load_tokenizer(path: str | pathlib.Path) -> TextTokenizer:
  """Loads the tokenizer of a folder, a .gguf file or a hub id.

  Raises:
    FileNotFoundError: where there is none.
    ValueError: for a GGUF vocabulary that cannot be read faithfully.
  """
  name = str(path)
  folder, _ = resolve(name)
  if folder.suffix == ".gguf":
    source = gguf.GgufSource(folder)
    return TextTokenizer(gguf.load_gguf_tokenizer(source), name=name)
  return TextTokenizer.from_folder(folder)


def resolve(name: str) -> tuple[pathlib.Path, str]:
  """Path on this machine and, for a hub id, the commit.

  Raises:
    FileNotFoundError: where neither a path nor the hub has it; the message
      says what to copy where.
  """
  path = pathlib.Path(name).expanduser()
  if path.exists():
    return path, ""
  looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
  if looks_local or path.suffix == ".gguf":
    raise FileNotFoundError(
      f"{name}: no such file or folder, and not a hub id (owner/name)"
    )
  import huggingface_hub
  from huggingface_hub import errors

  try:
    snapshot = huggingface_hub.snapshot_download(
      name, allow_patterns=_HUB_FILES, etag_timeout=3
    )
  except errors.GatedRepoError as error:
    raise FileNotFoundError(
      f"{name} is gated: accept its licence on its hub page, then log in "
      "(`hf auth login`), give the path of a folder you have, or evaluate "
      "from published key tokens (--keys slices:FOLDER)"
    ) from error
  except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as e:
    raise FileNotFoundError(
      f"{name} is neither a folder here nor in the hub cache "
      f"({huggingface_hub.constants.HF_HUB_CACHE}), and the hub does not "
      f"answer ({type(e).__name__}). Copy its config.json, *.safetensors and "
      "tokenizer files into a folder and give that path"
    ) from e
  snapshot = pathlib.Path(snapshot)
  return snapshot, snapshot.name
