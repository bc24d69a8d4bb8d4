"""Meshes, sharding rules as data, and constraints on activations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import (
  AbstractMesh,
  AxisType,
  Mesh,
  NamedSharding,
  PartitionSpec,
)

AXES = ("data", "fsdp", "tensor", "context")
# What splits a batch of whole rows, and what does where "context" splits each
# row (`row_parts`).
BATCH_AXES = ("data", "fsdp", "context")
ROW_AXES = ("data", "fsdp")
# What splits a parameter beside "tensor".
PARAMETER_AXES = ("fsdp", "context")

# Shapes have places on devices that are not there, too.
AnyMesh = Mesh | AbstractMesh

Rules = Sequence[tuple[str, PartitionSpec]]


def mesh_shape(sizes: Mapping[str, int], count: int) -> dict[str, int]:
  """Devices per axis of `AXES`; axes without a size get 1.

  Args:
    sizes: devices per axis; one of them may be -1: all that are left.
    count: devices in all.

  Raises:
    ValueError: for an unknown axis, or sizes whose product is not the number
      of devices.
  """
  unknown = sorted(set(sizes) - set(AXES))
  if unknown:
    raise ValueError(f"mesh axes {unknown} are not among {AXES}")
  shape = {axis: sizes[axis] if axis in sizes else 1 for axis in AXES}
  fixed = math.prod(size for size in shape.values() if size != -1)
  left = [axis for axis, size in shape.items() if size == -1]
  if left and fixed and count % fixed == 0:
    shape[left[0]] = count // fixed
  if min(shape.values()) < 1 or math.prod(shape.values()) != count:
    raise ValueError(
      f"mesh {shape} does not cover the {count} devices: the product of the "
      f"sizes must be {count}, with at most one -1"
    )
  return shape


def make_mesh(
  sizes: Mapping[str, int], devices: Sequence[Any] | None = None
) -> Mesh:
  """Makes the mesh over `AXES`.

  Args:
    sizes: see `mesh_shape`.
    devices: default `jax.devices()`.

  Raises:
    ValueError: see `mesh_shape`.
  """
  devices = jax.devices() if devices is None else devices
  shape = mesh_shape(sizes, len(devices))
  return jax.make_mesh(
    tuple(shape.values()),
    AXES,
    axis_types=(AxisType.Auto,) * len(AXES),
    devices=devices,
  )


def abstract_mesh(sizes: Mapping[str, int], count: int) -> AbstractMesh:
  """The same mesh over devices that are not there: for shapes alone."""
  shape = mesh_shape(sizes, count)
  return AbstractMesh(
    tuple(shape.values()), AXES, axis_types=(AxisType.Auto,) * len(AXES)
  )


def infer_shardings(
  shapes: Mapping[str, tuple[int, ...]], rules: Rules, mesh: AnyMesh
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


def _axes_size(mesh: AnyMesh, axes: str | tuple[str, ...] | None) -> int:
  axes = (axes,) if isinstance(axes, str) else axes or ()
  return math.prod(mesh.shape[axis] for axis in axes)


def _name(mesh: AnyMesh, axes: str | tuple[str, ...]) -> str:
  """The axes that split anything."""
  axes = (axes,) if isinstance(axes, str) else axes
  return " x ".join(repr(axis) for axis in axes if mesh.shape[axis] > 1)


def batch_ways(mesh: AnyMesh) -> int:
  """Shards of a batch of whole rows: its size must be a multiple of it."""
  return _axes_size(mesh, BATCH_AXES)


def row_ways(mesh: AnyMesh) -> int:
  """The same of rows that the axis "context" splits."""
  return _axes_size(mesh, ROW_AXES)


def batch_axes(size: int, mesh: AnyMesh) -> tuple[str, ...]:
  """Axes of `BATCH_AXES`, from the first on, that split so many rows evenly."""
  for stop in range(len(BATCH_AXES), 0, -1):
    if size % _axes_size(mesh, BATCH_AXES[:stop]) == 0:
      return BATCH_AXES[:stop]
  return ()


def batch_sharding(mesh: AnyMesh) -> NamedSharding:
  """Sharding of an array whose first axis is a batch of whole rows."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def row_sharding(mesh: AnyMesh, *, by_position: bool = False) -> NamedSharding:
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


def place_rows(rows: Any, split: NamedSharding) -> Any:
  """Puts a batch that each process holds whole onto a mesh.

  Args:
    rows: arrays on the host whose first axis is the batch, in any tree.
    split: over the devices of one process or of several, each of which gives
      its own rows; `batch_sharding` or `row_sharding`.
  """
  if split.is_fully_addressable:
    return jax.device_put(rows, split)
  return jax.tree.map(
    lambda array: jax.make_array_from_callback(
      array.shape, split, array.__getitem__
    ),
    rows,
  )


def has_copies_on_cores(mesh: Mesh) -> bool:
  """Whether each device is some of one machine's cores, with all weights."""
  devices = mesh.devices.flat
  return (
    mesh.size == mesh.shape["data"]
    and all(device.platform == "cpu" for device in devices)
    and not mesh.is_multi_process
  )


def first_devices(mesh: Mesh, count: int) -> Mesh:
  """The mesh of the first devices of one that has them all on `data`."""
  return make_mesh({"data": count}, list(mesh.devices.flat[:count]))


def copies_on(tree: Any, mesh: Mesh) -> Any:
  """Arrays of which each device has a copy, on some of the devices alone.

  Nothing is copied.

  Args:
    tree: arrays, replicated over more devices.
    mesh: some of them.
  """
  whole = NamedSharding(mesh, PartitionSpec())

  def of_array(x: jax.Array) -> jax.Array:
    parts = {shard.device: shard.data for shard in x.addressable_shards}
    own = [parts[device] for device in mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(x.shape, whole, own)

  return jax.tree.map(of_array, tree)


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
  """Constrains the layout of an activation; the identity without a mesh."""
  if jax.sharding.get_abstract_mesh().empty:
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


def gather(
  parameter: jax.Array, axes: Sequence[str | tuple[str, ...] | None]
) -> jax.Array:
  """The parameter whole over `PARAMETER_AXES`, split as it was over "tensor".

  For what is multiplied next, of one layer. Left split, XLA goes round the
  shards of the summed axis and rounds each partial sum to the dtype of the
  product.

  Args:
    parameter: of one layer.
    axes: the mesh axes that split each of its dimensions.
  """
  return constrain(
    parameter, *(None if axis == PARAMETER_AXES else axis for axis in axes)
  )


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
