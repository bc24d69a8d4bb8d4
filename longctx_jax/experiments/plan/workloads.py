"""What a config asks of the devices: its programs, and their shapes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from longctx_jax.checkpoints import loading
from longctx_jax.model import (
  attention,
  defaults,
  flops,
  int8,
  loaded,
  memory,
  row_parts,
  sharding,
)
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.flops import Operations
from longctx_jax.model.memory import Memory
from longctx_jax.scoring import buckets, scorer, setup
from longctx_jax.scoring import rows as scored_rows
from longctx_jax.training import config as config_lib
from longctx_jax.training import losses, optimizer, program, rows

KINDS = ("score", "eval", "train")
# What a TPU takes where a config leaves it open.
_DTYPE, _BACKEND, _WINDOW_BATCH, _REMAT = "bfloat16", "splash", 4, "block"
_SPLIT = {
  "long pass": sharding.row_sharding,
  "short pass": sharding.batch_sharding,
}


@dataclasses.dataclass(frozen=True)
class Scoring:
  """Documents of one length through an evaluator, or a model under test.

  Attributes:
    config: as configs/longppl.py.
    model: name of the model.
    facts: of the model.
    kind: "score", or "eval": no short windows.
    length: ids of a document.
  """

  config: ConfigDict
  model: str
  facts: ModelConfig
  kind: str
  length: int

  @property
  def sizes(self) -> Mapping[str, int]:
    """Devices per axis of the mesh."""
    return setup.mesh_sizes(self.config)

  @property
  def programs(self) -> tuple[str, ...]:
    """What is compiled."""
    return ("long pass", "short pass")[: 2 if self.kind == "score" else 1]

  @property
  def unit(self) -> str:
    """What `operations` are of."""
    return f"a document of {self.length:,} ids"

  @property
  def units(self) -> int:
    """How many there are of it; 0 where nobody knows."""
    return 0

  def with_length(self, length: int) -> Scoring:
    """The same with longer or shorter documents."""
    return dataclasses.replace(self, length=length)

  def operations(self) -> Operations:
    """Of one document."""
    windows = setup.windows_of(self.config)
    count = max(0, len(windows.plan(self.length)) - 1)
    return flops.row_operations(
      self.facts,
      rows=1,
      length=self.length - 1,
      n_windows=count if self.kind == "score" else 0,
      windows=windows,
      trained=False,
    )

  def has_rows_to_part(self, count: int) -> bool:
    """Whether so many devices could take fewer rows: they have one."""
    del count
    return False

  def memory(self, name: str, mesh: sharding.AnyMesh) -> Memory:
    """What a program takes of a device, by the analytic model."""
    model = self._describe(mesh)
    batch, ids = self._shape(name, mesh)
    split = _SPLIT[name](mesh)
    return memory.forward(
      memory.Activations(
        config=self.facts,
        mesh=mesh,
        rows=split.shard_shape((batch,))[0],
        length=ids - 1,
        in_parts=name == "long pass",
        itemsize=jnp.dtype(model.dtype).itemsize,
      ),
      weights=memory.shard_bytes(model.params),
      rounded=self.config.scoring.weights == int8.FORMAT,
      is_short=name == "short pass",
    )

  def compile(self, name: str, mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
    """The real program, for the mesh of chips that need not be there."""
    model = self._describe(mesh)
    made = self._scorer(model)
    batch, ids = self._shape(name, mesh)
    function, columns, static = made.long_pass, ((batch,),), ()
    if name == "short pass":
      function, static = made.window_pass, (self._prefix_len,)
    elif self._alignment(mesh):
      # Lengths, positions and segments of the documents in shared rows.
      columns = ((batch, ids - 1),) * 3
    inputs = (
      jax.ShapeDtypeStruct(size, jnp.int32, sharding=_SPLIT[name](mesh))
      for size in ((batch, ids), *columns)
    )
    precision = defaults.matmul_precision(model.dtype)
    with jax.set_mesh(mesh), jax.default_matmul_precision(precision):
      return function.lower(model.params, *inputs, *static).compile()

  @property
  def _prefix_len(self) -> int:
    """Leading ids of every window: the BOS, in the strict protocol."""
    return int(self.config.longppl.protocol == "strict")

  @property
  def _backend(self) -> str:
    stated = self.config.scoring.backend
    return _BACKEND if stated == "auto" else stated

  @property
  def _window_batch(self) -> int:
    return self.config.scoring.window_batch or _WINDOW_BATCH

  def _alignment(self, mesh: sharding.AnyMesh) -> int:
    """Where documents start in rows that they share; 0 where they don't."""
    if self.facts.sink_len or sharding.row_ways(mesh) == 1:
      return 0
    return attention.alignment(self._backend)

  def _shape(self, name: str, mesh: sharding.AnyMesh) -> tuple[int, int]:
    """(rows, ids) of a batch."""
    if name == "short pass":
      batch = self._window_batch * sharding.batch_ways(mesh)
      return batch, self._prefix_len + setup.windows_of(self.config).length
    length = buckets.row_length(self.length - 1, mesh)
    if self._alignment(mesh):
      parts = mesh.shape[row_parts.AXIS]
      length = row_parts.fitting_length(
        scored_rows.row_length(self.length), parts
      )
    return sharding.row_ways(mesh), 1 + length

  def _describe(self, mesh: sharding.AnyMesh) -> loaded.LoadedModel:
    return loaded.describe(
      self.model,
      self.facts,
      mesh=mesh,
      dtype=self.config.scoring.dtype or _DTYPE,
      weights=self.config.scoring.weights,
    )

  def _scorer(self, model: loaded.LoadedModel) -> scorer.Scorer:
    return scorer.make_scorer(
      model,
      setup.windows_of(self.config),
      window_batch=self._window_batch,
      chunk=self.config.scoring.chunk,
      backend=self._backend,
    )


@dataclasses.dataclass(frozen=True)
class Training:
  """Steps of a training.

  Attributes:
    config: as configs/llama2_7b.py, with what a TPU takes filled in.
    model: name of the model.
    facts: of the model, as it is trained.
  """

  config: ConfigDict
  model: str
  facts: ModelConfig

  kind = "train"
  programs = ("train step",)

  @property
  def sizes(self) -> Mapping[str, int]:
    """Devices per axis of the mesh."""
    return dict(self.config.mesh)

  @property
  def length(self) -> int:
    """Targets of a row."""
    return self.config.data.seq_len

  @property
  def unit(self) -> str:
    """What `operations` are of."""
    return f"a step of {self.config.data.batch_size} rows of {self.length:,}"

  @property
  def units(self) -> int:
    """Steps of the training."""
    return self.config.optimizer.steps

  def with_length(self, length: int) -> Training:
    """The same with longer or shorter rows, whatever the RoPE table reaches."""
    config = copy.deepcopy(self.config)
    config.data.seq_len = length
    return dataclasses.replace(self, config=config)

  def operations(self) -> Operations:
    """Of one step."""
    loss = config_lib.loss_config(self.config)
    return flops.row_operations(
      self.facts,
      rows=self.config.data.batch_size,
      length=self.length,
      n_windows=self._n_windows(loss),
      windows=loss.windows,
      trained=True,
    )

  def has_rows_to_part(self, count: int) -> bool:
    """Whether so many devices could take fewer rows at a time."""
    ways = sharding.row_ways(sharding.abstract_mesh(self.sizes, count))
    own = self.config.data.batch_size // ways
    return own > self.config.optimizer.accumulate

  def memory(self, name: str, mesh: sharding.AnyMesh) -> Memory:
    """What a step takes of a device, by the analytic model."""
    del name
    loss = config_lib.loss_config(self.config)
    parts = self.config.optimizer.accumulate
    ways = sharding.row_ways(mesh)
    batch = self.config.data.batch_size
    rows.require_batch_size(batch, accumulate=parts, ways=ways)
    state = self._state(self._describe(mesh))
    long = memory.Activations(
      config=self.facts,
      mesh=mesh,
      rows=batch // parts // ways,
      length=self.length,
      in_parts=True,
      itemsize=config_lib.compute_dtype(self.config).itemsize,
    )
    windows = min(loss.window_batch, long.rows * self._n_windows(loss))
    short = dataclasses.replace(
      long, rows=windows, length=loss.windows.length - 1, in_parts=False
    )
    return memory.step(
      long,
      weights=memory.shard_bytes(state.params),
      optimizer=memory.shard_bytes(state.opt_state),
      parts=parts,
      short=short if windows else None,
      remat=self.config.model.remat,
    )

  def compile(self, name: str, mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
    """The real step, for the mesh of chips that need not be there."""
    del name
    model = self._describe(mesh)
    data = config_lib.data_config(self.config, "")
    weights = self.config.loss.weights
    one = rows.make_row(
      [np.arange(3)],
      seq_len=data.seq_len,
      packed=data.packing,
      with_lengths=bool(self.facts.rope_by_length),
      windows=data.windows if weights == "live" else None,
      weights=[np.ones(2)] if weights == "stored" else None,
    )
    batch = {
      name: jax.ShapeDtypeStruct(
        (data.batch_size, *field.shape),
        field.dtype,
        sharding=sharding.row_sharding(
          mesh, by_position=field.shape == one["inputs"].shape
        ),
      )
      for name, field in one.items()
    }
    return program.compile_step(self.config, model, self._state(model), batch)

  def _describe(self, mesh: sharding.AnyMesh) -> loaded.LoadedModel:
    """Master parameters are float32."""
    return loaded.describe(self.model, self.facts, mesh=mesh, dtype="float32")

  def _state(self, model: loaded.LoadedModel) -> Any:
    rule = optimizer.make_optimizer(
      config_lib.optimizer_config(self.config), self.config.optimizer.steps
    )
    return program.describe_state(model, rule)

  def _n_windows(self, loss: losses.LossConfig) -> int:
    if loss.weights != "live":
      return 0
    return rows.max_windows(self.length, loss.windows)


Workload = Scoring | Training


def read(config: ConfigDict, *, kind: str = "", model: str = "") -> Workload:
  """What a config asks for; reads no weights.

  Args:
    config: as configs/longppl.py or configs/llama2_7b.py.
    kind: one of `KINDS`; "" is what the config is made for: train or score.
    model: in place of the one that the config names.

  Raises:
    ValueError: a config of another kind, or that names no model; see
      `loading.facts_of`.
    FileNotFoundError: no such model.
  """
  trains = "loss" in config
  kind = kind or ("train" if trains else "score")
  if kind not in KINDS or (kind == "train") != trains:
    raise ValueError(
      f"program={kind!r}: this config is one of "
      f"{'training: train' if trains else 'scoring: score or eval'}"
    )
  if trains:
    return _read_training(config, model or config.model.path)
  named = [config.evaluator]
  if kind == "eval":
    named = [*config.models, config.evaluator]
  name = _require_name(model or named[0])
  setup.check_config(config)
  facts = loading.facts_of(name)
  length = config.data.max_length or facts.max_position
  return Scoring(config, name, facts, kind, length)


def _read_training(config: ConfigDict, name: str) -> Training:
  config = copy.deepcopy(config)
  config.model.path = _require_name(name)
  config.model.dtype = config.model.dtype or _DTYPE
  if config.model.backend == "auto":
    config.model.backend = _BACKEND
  if config.model.remat == "auto":
    config.model.remat = _REMAT
  config.loss.window_batch = config.loss.window_batch or _WINDOW_BATCH
  if config.loss.weights == "stored" and not config.data.key_tokens:
    config.data.key_tokens = "any"  # Which store does not matter here.
  config_lib.check_config(config)
  nowhere = sharding.abstract_mesh({}, 1)
  model = loaded.describe(
    name, loading.facts_of(name), mesh=nowhere, dtype="float32"
  )
  return Training(config, name, config_lib.adapted(config, model).config)


def _require_name(name: str) -> str:
  if not name:
    raise ValueError(
      "no model is named: give --model, a folder with a config.json or a hub id"
    )
  return name
