"""What a run lacks, all of it at once, before anything heavy is done.

Looking begins before the devices are found: what the hub, the data and the
disks say needs none. What is found is said together, each with what to do.
"""

from __future__ import annotations

import concurrent.futures
import errno
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from huggingface_hub import constants
from ml_collections import ConfigDict

from longctx_jax.checkpoints import hub, loading
from longctx_jax.key_tokens import store
from longctx_jax.model import parameters, row_parts, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.runtime import device as device_lib
from longctx_jax.runtime import failures, files, machine
from longctx_jax.text import corpus
from longctx_jax.text.corpus import Corpus
from longctx_jax.training import config as config_lib
from longctx_jax.training import data, rows
from longctx_jax.training import workdir as workdir_lib

# Until a hub that is slow is left alone: the run itself will find out.
_WAIT_SECONDS = 20.0
_PATIENCE_SECONDS = 2.0
# Of a parameter, float32: itself, two moments; and its gradient in a step.
_STORED_BYTES, _STEP_BYTES = 12, 16
_GB = 1e9


class Preflight:
  """A look at what a run needs; see `begin`."""

  def __init__(self, config: ConfigDict, workdir: pathlib.Path):
    """Begins to look, in threads."""
    self._config, self._workdir = config, workdir
    pool = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="preflight")
    looks = (_look_at_model, _look_at_stores, _open_held_out, _open_data)
    self._found = [pool.submit(look, config) for look in looks]
    pool.shutdown(wait=False)

  def require(self, devices: Sequence[Any]) -> Corpus:
    """Raises where something is missing; call it once devices are known.

    Args:
      devices: of the run, over all processes.

    Returns:
      The documents to train on.

    Raises:
      failures.Several: what is missing, a sentence each.
    """
    config, faults = self._config, []

    def ask(look: Callable[[], Any]) -> Any:
      try:
        return look()
      except concurrent.futures.TimeoutError:
        return None
      except Exception as error:
        sentence = failures.explain(error)
        if not sentence:
          raise
        faults.append(sentence)

    model, stores, held_out, documents = self._found
    ask(machine.require_array_record)
    ask(lambda: config_lib.check_config(config))
    ask(lambda: _require_workdir(self._workdir))
    mesh = ask(lambda: _mesh_shape(config, len(devices)))
    facts, missing = ask(lambda: model.result(_WAIT_SECONDS)) or (None, 0)
    if facts:
      ask(lambda: config_lib.adapted_facts(config, facts))
      ask(lambda: _require_space(config, self._workdir, facts, missing))
      if mesh:
        ask(lambda: _require_memory(config, facts, mesh, devices))
    for others in (stores, held_out, documents):
      # A corpus may take minutes to open; what is known need not wait for it.
      wait = _PATIENCE_SECONDS if faults else None
      found = ask(lambda others=others, wait=wait: others.result(wait))
    if faults:
      raise failures.Several(list(dict.fromkeys(faults)))
    return found


def begin(config: ConfigDict, *, workdir: str | pathlib.Path) -> Preflight:
  """Begins to look for what a run lacks; no device is touched.

  Args:
    config: as configs/llama2_7b.py.
    workdir: of the run.
  """
  return Preflight(config, pathlib.Path(workdir))


def _open_data(config: ConfigDict) -> Corpus:
  if not config.data.sources:
    raise ValueError(
      "no documents are named: give --data, a file, folder, glob or URL"
    )
  return data.open_corpus(config_lib.data_config(config, ""))


def _look_at_stores(config: ConfigDict) -> None:
  held_out = config.eval.key_tokens if config.eval.every else ""
  for folder in filter(None, (config.data.key_tokens, held_out)):
    store.read_store(folder)


def _open_held_out(config: ConfigDict) -> None:
  if config.eval.every:
    corpus.open_corpus(
      list(config.eval.sources),
      text_column=config.eval.text_column,
      id_column=config.eval.id_column,
    )


def _look_at_model(config: ConfigDict) -> tuple[ModelConfig, int] | None:
  """Its facts, and bytes of weights that are yet to be downloaded."""
  name = config.model.path
  if not name:
    return None
  folder, _ = hub.resolve(name, weights=False)
  missing = hub.missing_bytes(name)
  facts = loading.read_facts(folder, name=name, weights_here=not missing)
  return facts, missing


def _require_workdir(workdir: pathlib.Path) -> None:
  """Raises OSError where the folder can't be written; makes none."""
  if workdir.exists():
    with workdir_lib.locked(workdir):
      return
  above, _ = files.disk_of(workdir)
  if not above.is_dir():
    code = errno.ENOTDIR
  elif not os.access(above, os.W_OK | os.X_OK):
    code = errno.EACCES
  else:
    return
  raise OSError(code, os.strerror(code), str(above))


def _mesh_shape(config: ConfigDict, count: int) -> dict[str, int]:
  try:
    shape = sharding.mesh_shape(dict(config.mesh), count)
  except ValueError as error:
    raise ValueError(
      f"{error}. --config.mesh.fsdp=-1 takes those that the others leave, "
      f"e.g. --config.mesh.data=1 --config.mesh.tensor=1"
    ) from error
  rows.require_batch_size(
    config.data.batch_size,
    accumulate=config.optimizer.accumulate,
    ways=math.prod(shape[axis] for axis in sharding.ROW_AXES),
  )
  row_parts.require_length(
    config.data.seq_len, shape[row_parts.AXIS], name="data.seq_len"
  )
  return shape


def _require_memory(
  config: ConfigDict,
  facts: ModelConfig,
  mesh: dict[str, int],
  devices: Sequence[Any],
) -> None:
  """Raises ValueError where not even the parameters of a step fit."""
  device, size = devices[0], device_lib.memory_bytes(devices[0])
  state = _STEP_BYTES * _count_parameters(facts)
  takes = (
    f"{config.model.path} in training takes {state / 2**30:,.0f} GiB for "
    "parameters, gradient and optimizer alone"
  )
  if device.platform == "cpu":  # All of them share the machine's.
    if 0 < size < state * mesh["data"]:
      raise ValueError(
        f"{takes}, and this machine has {size / 2**30:,.0f} GiB and no "
        "accelerator that JAX sees: name a smaller model (--model), or run on "
        "one that has"
      )
    return
  ways = math.prod(mesh[axis] for axis in (*sharding.PARAMETER_AXES, "tensor"))
  least = math.ceil(state / (size or 1))
  if size and ways < least:
    raise ValueError(
      f"{takes}, and the mesh splits it over {ways} of {len(devices)} x "
      f"{device.device_kind} with {size / 2**30:,.0f} GiB each: take {least} "
      "or more of them (--config.mesh.fsdp=-1 is all), activations come on top"
    )


def _require_space(
  config: ConfigDict, workdir: pathlib.Path, facts: ModelConfig, missing: int
) -> None:
  """Raises OSError where a disk does not hold what the run will write."""
  count = _count_parameters(facts)
  # The one that is written stands beside those that are kept.
  checkpoints = (config.checkpoint.keep + 1) * _STORED_BYTES * count
  export = jnp.dtype(config.checkpoint.export_dtype).itemsize * count
  own = max(0, checkpoints + export - _size(workdir))
  needs = [
    (
      workdir,
      own,
      f"checkpoints {checkpoints / _GB:,.1f} GB and export "
      f"{export / _GB:,.1f} GB, beside the corpus' tokens: name a --workdir on "
      "a larger disk, or keep fewer (--config.checkpoint.keep=1)",
    ),
    (
      pathlib.Path(constants.HF_HUB_CACHE),
      missing,
      f"weights of {config.model.path}: let HF_HOME name a folder of a larger "
      "disk",
    ),
  ]
  by_disk: dict[int, list[tuple[pathlib.Path, float, str]]] = {}
  for need in needs:
    if need[1]:
      there, _ = files.disk_of(need[0])
      by_disk.setdefault(there.stat().st_dev, []).append(need)
  for these in by_disk.values():
    needed, free = sum(n for _, n, _ in these), files.disk_of(these[0][0])[1]
    if needed > free:
      raise OSError(
        f"the disk of {these[0][0]} has {free / _GB:,.1f} GB free, and the run "
        f"takes {needed / _GB:,.1f} GB of it more: "
        + "; ".join(f"{place}: {what}" for place, _, what in these)
      )


def _count_parameters(facts: ModelConfig) -> int:
  return sum(map(math.prod, parameters.parameter_shapes(facts).values()))


def _size(workdir: pathlib.Path) -> int:
  """Bytes of the checkpoints and the export that are there."""
  return sum(
    path.stat().st_size
    for name in (workdir_lib.CHECKPOINTS, workdir_lib.EXPORT)
    for path in (workdir / name).rglob("*")
    if path.is_file()
  )
