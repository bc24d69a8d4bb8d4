"""From a config to the corpus, the model and the scorer of a run."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from longctx_jax.checkpoints import convert, loading
from longctx_jax.key_tokens.manifest import DETAILS
from longctx_jax.model import loaded, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import channel, settings
from longctx_jax.scoring import eval_step, finder, protocol, scorer, shared
from longctx_jax.text import chunks
from longctx_jax.text import corpus as corpus_lib
from longctx_jax.text.chunks import ChunkedCorpus
from longctx_jax.text.corpus import Corpus

_LEAST = {
  "data.max_length": 0,
  "scoring.window_batch": 0,
  "scoring.chunk": 1,
  "scoring.flush_seconds": 0,
}


def check_config(config: ConfigDict) -> None:
  """Raises ValueError for settings that no run can have; touches no device."""
  protocol.check_protocol(config.longppl.protocol, config.data.over_length)
  windows_of(config)
  thresholds_of(config)
  convert.check_dtype(config.scoring.dtype, field="scoring.dtype")
  loading.check_weights(config.scoring.weights)
  for name, least in _LEAST.items():
    block, _, field = name.partition(".")
    if config[block][field] < least:
      raise ValueError(
        f"{name}={config[block][field]} must be at least {least}"
      )
  if config.scoring.detail not in DETAILS:
    raise ValueError(
      f"detail={config.scoring.detail!r} is not one of {', '.join(DETAILS)}"
    )
  if config.data.chunk_len:
    chunks.check_chunk_len(config.data.chunk_len)
  elif config.data.chunk_tokenizer:
    raise ValueError(
      f"chunk_tokenizer={config.data.chunk_tokenizer!r} without chunk_len: "
      "documents are scored whole, so that nothing is cut"
    )


def windows_of(config: ConfigDict) -> Windows:
  """K and d of the config."""
  return Windows(config.longppl.short_len, config.longppl.stride)


def thresholds_of(config: ConfigDict) -> Thresholds:
  """alpha and beta of the config."""
  return Thresholds(config.longppl.alpha, config.longppl.beta)


def open_corpus(config: ConfigDict) -> Corpus:
  """The documents that the config names, uncut, ids decoded to text."""
  data = config.data
  corpus = corpus_lib.open_corpus(
    list(data.sources),
    text_column=data.text_column,
    ids_column=data.ids_column,
    id_column=data.id_column,
    columns=tuple(data.columns),
    row_range=tuple(data.row_range),
  )
  if data.ids_column:
    owner = data.ids_tokenizer or config.evaluator
    if not owner:
      raise ValueError(
        f"ids_column={data.ids_column!r} needs the tokenizer that the ids came "
        "from: set ids_tokenizer to its folder or hub id"
      )
    if data.chunk_len and owner == (data.chunk_tokenizer or config.evaluator):
      return corpus  # Encoding their text again need not give the same ids.
    tokenizer = loading.load_tokenizer(owner)
    corpus = corpus.decoded(lambda ids: tokenizer.align(ids)[0])
  return corpus


def cut_corpus(
  config: ConfigDict, corpus: Corpus, evaluator: LoadedModel
) -> Corpus | ChunkedCorpus:
  """The documents as they are scored: cut as training cuts them, or whole."""
  if not config.data.chunk_len:
    return corpus
  owner = config.data.chunk_tokenizer
  tokenizer = loading.load_tokenizer(owner) if owner else evaluator.tokenizer
  return ChunkedCorpus(corpus, tokenizer, config.data.chunk_len)


def leaves_mesh_open(config: ConfigDict) -> bool:
  """Whether the config leaves it to the machine how devices are used."""
  one = {axis: size for axis, size in config.mesh.items() if size != 1}
  return one == {"data": 0, "fsdp": 0}


def mesh_sizes(config: ConfigDict) -> dict[str, int]:
  """Devices per axis that the config names; what it leaves open is `fsdp`."""
  sizes = dict(config.mesh)
  # Of a mesh that is named in part the rest is shards of the weights.
  sizes["data"] = sizes["data"] or 1
  sizes["fsdp"] = sizes["fsdp"] or (1 if -1 in sizes.values() else -1)
  return sizes


def mesh_of(config: ConfigDict) -> jax.sharding.Mesh | None:
  """The mesh that the config names; None where it leaves it open.

  Raises:
    ValueError: see `sharding.make_mesh`.
  """
  return (
    None if leaves_mesh_open(config) else sharding.make_mesh(mesh_sizes(config))
  )


def load_model(config: ConfigDict, path: str) -> LoadedModel:
  """Loads onto the mesh and in the dtype and weights that the config names.

  In all processes, where there are several; process 0 alone reads texts and
  needs a tokenizer.
  """
  group = shared.group()

  def load() -> LoadedModel:
    model = loading.load_model(
      path,
      mesh=mesh_of(config),
      dtype=config.scoring.dtype or None,
      weights=config.scoring.weights,
    )
    if group.leads:
      loaded.require_tokenizer(model)
    return model

  return group.load(path, load, finder.identity)


def make_scorer(config: ConfigDict, model: LoadedModel) -> scorer.Scorer:
  """The compiled passes with the config's windows and batch sizes."""
  made = scorer.make_scorer(
    model,
    windows_of(config),
    window_batch=config.scoring.window_batch,
    chunk=config.scoring.chunk,
    backend=config.scoring.backend,
  )
  return shared.group().lead(made)


def make_summer(config: ConfigDict, scorer: scorer.Scorer) -> eval_step.Summer:
  """The eval step of a scorer's model, where sums alone leave the devices."""
  made = eval_step.make_summer(
    scorer.model,
    chunk=config.scoring.chunk,
    backend=config.scoring.backend,
    usage=scorer.usage,
  )
  return shared.group().lead(made)


@contextlib.contextmanager
def together(config: ConfigDict, **flags: Any) -> Iterator[bool]:
  """Whether this process is the one that scores; the others help inside.

  They do so from the beginning of the block to its end in process 0, which
  reads and writes all there is. One process alone is that process.

  Args:
    config: as configs/longppl.py.
    flags: what else the numbers and files of the run depend on.

  Raises:
    settings.OtherSettings: the processes were given different ones.
    channel.Ended: another process ended.
  """
  group = shared.group()

  def prepare(path: str) -> tuple[scorer.Scorer, eval_step.Summer]:
    made = make_scorer(config, load_model(config, path))
    return made, make_summer(config, made)

  if channel.count() > 1:
    versions = {
      name: importlib.metadata.version(name) for name in ("jax", "flax")
    }
    stated = {
      "config": config.to_dict(),
      "flag": {name: str(value) for name, value in flags.items()},
      "version": versions,
    }
    channel.require_alike(channel.gather("start", settings.flatten(stated)))
  with group.stoppable():
    if not group.leads:
      logging.set_verbosity(logging.WARNING)
      group.follow(prepare)
    yield group.leads
    if group.leads:
      group.tell({"do": "end"})


def max_length_of(config: ConfigDict, model: LoadedModel) -> int:
  """Ids that a model reads of a document; warns past the trained context."""
  limit = model.config.max_position
  if config.data.max_length > limit:
    logging.warning(
      "max_length=%d is more than the %d positions that %s was made for",
      config.data.max_length,
      limit,
      model.name,
    )
  return config.data.max_length or limit
