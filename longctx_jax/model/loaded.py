"""A model ready to score: parameters on a mesh, and its tokenizer."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from longctx_jax.model import int8, parameters, partition, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.text.tokenizer import TextTokenizer


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LoadedModel:
  """A model ready to score.

  Attributes:
    name: as given to `load_model`.
    graphdef: structure of the `Transformer`.
    params: its parameters, on the mesh.
    config: facts of the checkpoint.
    tokenizer: None where the folder has none; then only ids can be scored.
    mesh: where the parameters live.
    checksum: identity of the stored weights; see `weights.checksum`.
    revision: commit of a hub snapshot, else "".
    weight_format: e.g. "safetensors BF16", "gguf Q4_1".
  """

  name: str
  graphdef: nnx.GraphDef
  params: nnx.State
  config: ModelConfig
  tokenizer: TextTokenizer | None
  mesh: sharding.AnyMesh
  checksum: str
  revision: str
  weight_format: str

  def __repr__(self) -> str:
    count = sum(x.size for x in parameters.flatten(self.params).values())
    return (
      f"LoadedModel({self.name}: {count / 1e6:,.1f} M parameters, "
      f"{self.dtype}, {self.mesh.size} devices)"
    )

  @property
  def dtype(self) -> str:
    """Name of the parameters' dtype on the devices."""
    return str(parameters.flatten(self.params)["embedding"].dtype)

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
    graphdef, _ = parameters.abstract_model(config, jnp.dtype(self.dtype))
    return dataclasses.replace(self, config=config, graphdef=graphdef)


def describe(
  name: str,
  config: ModelConfig,
  *,
  mesh: sharding.AnyMesh,
  dtype: DTypeLike,
  weights: str = "",
) -> LoadedModel:
  """The model as shapes with their places on a mesh; there are no weights.

  Args:
    name: of the model.
    config: its facts.
    mesh: may be one of chips that are not there.
    dtype: of the parameters.
    weights: "int8" for kernels in 8 bits; see `int8`.

  Raises:
    ValueError: where the mesh does not divide the model.
  """
  graphdef, params = parameters.abstract_model(config, jnp.dtype(dtype))
  shapes = {
    name: leaf.shape for name, leaf in parameters.flatten(params).items()
  }
  placed = partition.parameter_shardings(config, shapes, mesh)

  def place(path: tuple[Any, ...], leaf: nnx.Param) -> nnx.Param:
    name = ".".join(map(str, path))
    value = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    where = placed[name]
    if weights == int8.FORMAT and int8.is_rounded(name):
      value = jax.eval_shape(int8.quantise, value)
      where = int8.shardings(where)
    return leaf.replace(
      jax.tree.map(
        lambda part, sharding: part.update(sharding=sharding), value, where
      )
    )

  params = nnx.from_flat_state(
    [(path, place(path, leaf)) for path, leaf in nnx.to_flat_state(params)]
  )
  return LoadedModel(
    name=name,
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=None,
    mesh=mesh,
    checksum="",
    revision="",
    weight_format="",
  )


def require_tokenizer(model: LoadedModel) -> None:
  """Raises ValueError for a model that was loaded without a tokenizer."""
  if model.tokenizer is None:
    raise ValueError(
      f"{model.name} has no tokenizer files, so no text can be scored: copy "
      "tokenizer.json and tokenizer_config.json into its folder"
    )
