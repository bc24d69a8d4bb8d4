"""Meshes, sharding rules as data, and constraints on activations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXES = ("data", "fsdp", "tensor", "context")
# What splits a batch of whole rows, and what does where "context" splits each
# row (`row_parts`).
BATCH_AXES = ("data", "fsdp", "context")
ROW_AXES = ("data", "fsdp")
# What splits a parameter beside "tensor".
PARAMETER_AXES = ("fsdp", "context")


Rules = Sequence[tuple[str, PartitionSpec]]


def make_mesh(
  sizes: Mapping[str, int], devices: Sequence[Any] | None = None
) -> Mesh:
  """Makes the mesh over `AXES`; axes without a size get 1.

  Args:
    sizes: devices per axis; one of them may be -1: all that are left.
    devices: default `jax.devices()`.

  Raises:
    ValueError: for an unknown axis, or sizes whose product is not the number
      of devices.
  """
  devices = jax.devices() if devices is None else devices
  unknown = sorted(set(sizes) - set(AXES))
  if unknown:
    raise ValueError(f"mesh axes {unknown} are not among {AXES}")
  shape = [sizes[axis] if axis in sizes else 1 for axis in AXES]
  fixed = math.prod(size for size in shape if size != -1)
  if -1 in shape and fixed and len(devices) % fixed == 0:
    shape[shape.index(-1)] = len(devices) // fixed
  if min(shape) < 1 or math.prod(shape) != len(devices):
    raise ValueError(
      f"mesh {dict(zip(AXES, shape, strict=True))} does not cover the "
      f"{len(devices)} devices: the product of the sizes must be "
      f"{len(devices)}, with at most one -1"
    )
  return jax.make_mesh(
    tuple(shape), AXES, axis_types=(AxisType.Auto,) * 4, devices=devices
  )


def infer_shardings(
  shapes: Mapping[str, tuple[int, ...]], rules: Rules, mesh: Mesh
) -> dict[str, NamedSharding]:
  """Shardings by the first rule whose pattern matches the whole name.

  Args:
    shapes: parameter name -> shape.
    rules: ordered (regular expression, spec); strict: see Raises.
    mesh: the mesh that the specs speak of.

  Raises:
    ValueError: for a parameter without a rule, a rule without a parameter, or
      a dimension that its axes do not divide; names and numbers are given.
  """
  used = set()
  shardings = {}
  for name, shape in shapes.items():
    matches = (rule for rule in rules if re.fullmatch(rule[0], name))
    pattern, spec = next(matches, (None, None))
    if pattern is None:
      raise ValueError(f"no sharding rule matches parameter {name} {shape}")
    used.add(pattern)
    for size, axes in zip(shape, spec, strict=False):
      ways = _axes_size(mesh, axes)
      if size % ways:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        raise ValueError(
          f"mesh axis {_name(mesh, axes)} of size {ways} does not divide "
          f"dimension {size} of {name} {shape}; sizes that do: {divisors[:12]}"
        )
    shardings[name] = NamedSharding(mesh, spec)
  unused = [pattern for pattern, _ in rules if pattern not in used]
  if unused:
    raise ValueError(f"sharding rules that match no parameter: {unused}")
  return shardings


def _axes_size(mesh: Mesh, axes: str | tuple[str, ...] | None) -> int:
  axes = (axes,) if isinstance(axes, str) else axes or ()
  return math.prod(mesh.shape[axis] for axis in axes)


def _name(mesh: Mesh, axes: str | tuple[str, ...]) -> str:
  """The axes that split anything."""
  axes = (axes,) if isinstance(axes, str) else axes
  return " x ".join(repr(axis) for axis in axes if mesh.shape[axis] > 1)


def batch_ways(mesh: Mesh) -> int:
  """Shards of a batch of whole rows: its size must be a multiple of it."""
  return _axes_size(mesh, BATCH_AXES)


def row_ways(mesh: Mesh) -> int:
  """The same of rows that the axis "context" splits."""
  return _axes_size(mesh, ROW_AXES)


def batch_axes(size: int, mesh: Mesh) -> tuple[str, ...]:
  """Axes of `BATCH_AXES`, from the first on, that split so many rows evenly."""
  for stop in range(len(BATCH_AXES), 0, -1):
    if size % _axes_size(mesh, BATCH_AXES[:stop]) == 0:
      return BATCH_AXES[:stop]
  return ()


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Sharding of an array whose first axis is a batch of whole rows."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def row_sharding(mesh: Mesh, *, by_position: bool = False) -> NamedSharding:
  """Sharding of an array whose first axis are rows that "context" splits.

  Args:
    by_position: whether the second axis are the positions of the rows, equally
      many for each shard; else the shards of a row all have the array.
  """
  positions = ("context",) if by_position else ()
  return NamedSharding(mesh, PartitionSpec(ROW_AXES, *positions))


def row_share(mesh: Mesh, process: int | None = None) -> tuple[int, int]:
  """(share, shares) of a batch's rows that a process gives to its devices.

  Processes among which an axis other than `ROW_AXES` splits the same rows have
  the same share.

  Args:
    mesh: over all processes.
    process: default: this one.

  Raises:
    ValueError: where the rows of a process do not follow one another.
  """
  process = jax.process_index() if process is None else process
  by_rows = mesh.devices.reshape(row_ways(mesh), -1)
  own = [
    shard
    for shard, devices in enumerate(by_rows)
    if any(device.process_index == process for device in devices)
  ]
  share, rest = divmod(own[0], len(own))
  if rest or len(by_rows) % len(own) or own[-1] - own[0] >= len(own):
    raise ValueError(
      f"process {process} has devices of the row shards {own} of "
      f"{len(by_rows)}, which are no block of them: order the mesh "
      f"{dict(mesh.shape)} so that the devices of a process are neighbours"
    )
  return share, len(by_rows) // len(own)


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
  """Constrains the layout of an activation; the identity without a mesh."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def axis_size(*axes: str) -> int:
  """Shards over axes of the mesh in use; 1 without a mesh."""
  mesh = jax.sharding.get_abstract_mesh()
  return 1 if mesh.empty else _axes_size(mesh, axes)


def batch_axis_size() -> int:
  """Shards of a batch on the mesh in use; 1 without a mesh."""
  return axis_size(*BATCH_AXES)


def on_cpu() -> bool:
  """Whether the mesh in use, or without one this machine, is of CPUs."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.abstract_device is None:
    return jax.default_backend() == "cpu"
  return mesh.abstract_device.device_kind == "cpu"
