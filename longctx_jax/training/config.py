"""The config of a training run as the settings of its parts."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from longctx_jax.checkpoints import convert
from longctx_jax.model import defaults, parameters, remat
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import machine, settings
from longctx_jax.training import data, losses, optimizer, rows
from longctx_jax.training.context import rope_override

# Where and how fast a run computes, but not what: free to change on a resume.
_FREE_FIELDS = (
  "data.cache_dir",
  "model.backend",
  "model.remat",
  "loss.chunk",
  "loss.window_batch",
  "optimizer.accumulate",
)
# Where inputs lie and what their columns are called: recorded, not compared.
_PLACES = (
  "data.sources",
  "data.text_column",
  "data.ids_column",
  "data.id_column",
  "data.row_range",
  "data.key_tokens",
  "model.path",
)
_FIRST_STEP = "optimizer.first_step"
_FACTS = "model.facts."


def check_config(config: ConfigDict) -> None:
  """Raises ValueError for settings that no run can have; touches no device."""
  if not config.model.path:
    raise ValueError(
      "no model is named: give --model, a folder, a hub id or a .gguf file"
    )
  convert.check_dtype(config.model.dtype, field="model.dtype")
  convert.check_dtype(
    config.checkpoint.export_dtype, field="checkpoint.export_dtype"
  )
  remat.require_policy(config.model.remat, others=("auto",))
  data_config(config, "")
  loss_config(config)
  optimizer_config(config)
  if (config.loss.weights == "stored") != bool(config.data.key_tokens):
    raise ValueError(
      f"weights={config.loss.weights!r} with key_tokens="
      f"{config.data.key_tokens!r}: stored weights, and no others, come from "
      "the key tokens of a workdir that scripts/score.py --chunk_len scored"
    )
  steps, micro = config.optimizer.steps, config.optimizer.accumulate
  if steps < 1 or micro < 1 or config.data.batch_size % micro:
    raise ValueError(
      f"steps={steps}, accumulate={micro}: both must be at least 1, and "
      f"accumulate must divide batch_size={config.data.batch_size}"
    )
  optimizer.learning_rate(optimizer_config(config), steps)
  windows = loss_config(config).windows
  seq_len = config.data.seq_len
  if config.loss.weights == "live" and not rows.max_windows(seq_len, windows):
    raise ValueError(
      f"loss.short_len={windows.short_len} and loss.stride={windows.stride} go "
      f"together beyond a row of {seq_len + 1} ids: no target would have a "
      "short context, and LongCE be cross-entropy. Lower them, or raise "
      "data.seq_len"
    )
  if min(config.checkpoint.every, config.eval.log_every) < 1:
    raise ValueError("checkpoint.every and eval.log_every must be at least 1")
  if config.eval.every and not config.eval.key_tokens:
    raise ValueError(
      f"eval.every={config.eval.every} needs eval.key_tokens, the workdir of "
      "held-out documents that scripts/score.py scored; eval.every=0 is off"
    )
  machine.require_array_record()


def data_config(
  config: ConfigDict, workdir: str | pathlib.Path
) -> data.DataConfig:
  """The settings of the data pipeline; windows and weights are the loss's."""
  loss = config.loss
  fields = dict(config.data)
  fields["cache_dir"] = fields["cache_dir"] or str(
    pathlib.Path(workdir, "cache")
  )
  windowed = loss.weights != "none"
  return data.DataConfig(
    **fields,
    windows=Windows(loss.short_len, loss.stride) if windowed else None,
    thresholds=Thresholds(loss.alpha, loss.beta),
    gamma=loss.gamma,
  )


def loss_config(config: ConfigDict) -> losses.LossConfig:
  """The settings of the loss."""
  return losses.LossConfig(**config.loss)


def optimizer_config(config: ConfigDict) -> optimizer.OptimizerConfig:
  """The settings of the optimizer."""
  fields = dict(config.optimizer)
  del fields["steps"], fields["accumulate"]
  return optimizer.OptimizerConfig(**fields)


def compute_dtype(config: ConfigDict) -> jnp.dtype:
  """Dtype of the activations; the parameters are float32 in any case."""
  return defaults.dtype(config.model.dtype or None)


def adapted(config: ConfigDict, model: LoadedModel) -> LoadedModel:
  """The model with the attention and RoPE table that it is trained to.

  Raises:
    ValueError: see `adapted_facts`.
  """
  facts = adapted_facts(config, model.config)
  graphdef, _ = parameters.abstract_model(facts, jnp.dtype(jnp.float32))
  return dataclasses.replace(model, config=facts, graphdef=graphdef)


def adapted_facts(config: ConfigDict, facts: ModelConfig) -> ModelConfig:
  """The facts of a checkpoint as those of the model in training.

  Raises:
    ValueError: see `rope_override`; or rows longer than the table reaches.
  """
  table = {name: value for name, value in config.model.rope.items() if value}
  if config.model.full_attention:
    facts = facts.with_attention(window=0, sink_len=0)
  if table:
    facts = rope_override(facts, **table)
  if config.data.seq_len > facts.max_position:
    raise ValueError(
      f"seq_len={config.data.seq_len} is more than the {facts.max_position} "
      f"positions of {config.model.path} ({facts.describe_rope()}): extend it, "
      "e.g. --config.model.rope.rope_type=linear --config.model.rope.factor=8 "
      f"--config.model.rope.max_position={config.data.seq_len}"
    )
  return facts


def identity(
  config: ConfigDict, model: LoadedModel, checksum: str, first_step: int
) -> dict[str, Any]:
  """What determines the numbers of a run, and where its inputs lay.

  Args:
    config: of the run.
    model: as it is trained; parameters are not read.
    checksum: of the weights that the run starts from.
    first_step: step at which the optimizer began.
  """
  blocks = {
    name: config[name].to_dict()
    for name in ("data", "model", "loss", "optimizer")
  }
  flat = settings.flatten(blocks) | {
    _FIRST_STEP: first_step,
    f"{_FACTS}checksum": checksum,
    f"{_FACTS}rope": model.config.describe_rope(),
    f"{_FACTS}attention": model.config.describe_attention(),
    f"{_FACTS}tokenizer": model.tokenizer.fingerprint
    if model.tokenizer
    else "",
  }
  return {name: flat[name] for name in flat if name not in _FREE_FIELDS}


def first_step(stored: Mapping[str, Any]) -> int:
  """Step at which the optimizer of a checkpoint's settings began."""
  return stored[_FIRST_STEP] if _FIRST_STEP in stored else 0


def require_same_run(
  stored: Mapping[str, Any],
  current: Mapping[str, Any],
  *,
  other_optimizer: bool,
  other_steps: bool,
  where: object,
  remedy: str,
) -> None:
  """Raises OtherSettings where a checkpoint is of another run.

  Data is compared by the iterator, by what was read; where inputs lie and how
  their columns are called may change.

  Args:
    stored: settings of the checkpoint.
    current: see `identity`.
    other_optimizer: whether the optimizer may be another.
    other_steps: whether its steps may.
    where: what holds the checkpoint, for the message.
    remedy: for the message.
  """
  # What is free now may have been noted before.
  free = {*_PLACES, *_FREE_FIELDS}
  # A run of before took no note of these.
  free |= {
    name
    for name in current
    if name not in stored and name.startswith((_FACTS, _FIRST_STEP))
  }
  if other_optimizer:
    free |= {n for n in {*stored, *current} if n.startswith("optimizer.")}
  if other_steps:
    free.add("optimizer.steps")
  settings.require_same(
    {name: value for name, value in stored.items() if name not in free},
    {name: value for name, value in current.items() if name not in free},
    where=where,
    remedy=remedy,
  )
