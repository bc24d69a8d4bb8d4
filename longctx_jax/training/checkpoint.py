"""Checkpoints of a training run: state, data position and settings, by Orbax.

A checkpoint appears under its step by rename, so that a killed run leaves
whole ones. Arrays are stored by name and read onto any mesh.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging

from longctx_jax.checkpoints import step_folder
from longctx_jax.runtime import failures, progress, settings

_STATE, _META = step_folder.STATE, step_folder.META


class Checkpoints:
  """The last checkpoints of a run, in one folder."""

  def __init__(self, folder: str | os.PathLike[str], *, keep: int):
    """Opens the folder, or makes it; what a kill left half is removed.

    Args:
      folder: holds one folder per step.
      keep: how many stay.

    Raises:
      ValueError: unless keep is at least 1.
    """
    if keep < 1:
      raise ValueError(f"keep={keep}: at least 1 checkpoint must be kept")
    self._folder = pathlib.Path(folder).resolve()
    self._manager = ocp.CheckpointManager(
      self._folder,
      item_names=(_STATE, _META),
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        enable_async_checkpointing=True,
        cleanup_tmp_directories=True,
      ),
    )

  @property
  def steps(self) -> list[int]:
    """Steps whose checkpoint is whole, ascending."""
    return sorted(self._manager.all_steps())

  def save(
    self,
    step: int,
    state: Any,
    *,
    data: Any,
    identity: dict[str, Any],
  ) -> None:
    """Copies the state off the devices, then writes it in the background.

    A write of the step before is waited for first.

    Args:
      step: names the checkpoint.
      state: tree of arrays on any mesh; it may be donated afterwards.
      data: position of the data iterator, as JSON holds it.
      identity: settings of the run, as JSON holds them.
    """
    arrays = _by_name(state)
    meta = {"data": data, "settings": identity, "arrays": _describe(arrays)}
    self._manager.save(
      step,
      args=ocp.args.Composite(
        **{
          _STATE: ocp.args.StandardSave(arrays),
          _META: ocp.args.JsonSave(meta),
        }
      ),
    )

  def read_meta(self, step: int) -> dict[str, Any]:
    """What was saved beside the arrays: `data` and `settings`."""
    folder = self._folder / str(step)
    with failures.restoring(folder, remedy=step_folder.DAMAGED):
      return self._manager.restore(
        step, args=ocp.args.Composite(**{_META: ocp.args.JsonRestore()})
      )[_META]

  def restore(self, step: int, like: Any, *, partial: bool = False) -> Any:
    """Reads the state onto the shardings of `like`, whatever wrote it.

    Args:
      step: of the checkpoint.
      like: tree of `jax.ShapeDtypeStruct` with shardings.
      partial: whether `like` names only some of the arrays.

    Returns:
      A tree as `like`, of arrays.

    Raises:
      ValueError: where the arrays are not those of `like`; the names are given
        and nothing is allocated.
    """
    targets = _by_name(like)
    stored = self.read_meta(step)["arrays"]
    if partial:
      stored = {name: stored[name] for name in targets if name in stored}
    settings.require_same(
      stored,
      _describe(targets),
      where=self._folder / str(step),
      problem="holds other arrays",
      remedy="Go on with the model and optimizer that wrote it",
    )
    with progress.heartbeat(f"checkpoint {step}"):
      arrays = step_folder.read_arrays(self._folder / str(step), targets)
    structure = jax.tree.structure(like)
    return jax.tree.unflatten(structure, [arrays[name] for name in targets])

  def remove_after(self, step: int) -> None:
    """Removes the checkpoints of later steps, and says so."""
    for later in [other for other in self.steps if other > step]:
      logging.warning("%s/%d is removed", self._folder, later)
      self._manager.delete(later)

  def wait(self) -> None:
    """Returns when all that was saved is on the disk."""
    self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits, then ends the background threads."""
    self._manager.close()


def _describe(arrays: Mapping[str, Any]) -> dict[str, Any]:
  """Shape and dtype of arrays by name, as JSON gives them back."""
  return {
    name: [list(array.shape), str(array.dtype)]
    for name, array in arrays.items()
  }


def _by_name(tree: Any) -> dict[str, Any]:
  """Leaves by dotted path: the file does not depend on classes of the tree."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    jax.tree_util.keystr(path, simple=True, separator="."): leaf
    for path, leaf in leaves
  }
