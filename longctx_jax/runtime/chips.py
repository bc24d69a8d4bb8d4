"""Chips by name: operations per second, memory, and the slices there are.

Operations: the vendors' data sheets, dense bfloat16. TPUs, with slices and
hosts: docs.cloud.google.com/tpu/docs/v4, /v5e, /v5p and /v6e. Memory: what the
TPU compiler leaves to a program, which is less than the data sheet says (16,
95 and 32 GB).
"""

from __future__ import annotations

import dataclasses
import math
import re

_GIB = 2**30
# Slices of v5e and v6e, and of v4 and v5p, smallest first.
_FLAT = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8")


@dataclasses.dataclass(frozen=True)
class Chip:
  """A kind of TPU.

  Attributes:
    name: as in the name of a slice.
    kind: regular expression of the name that a device gives itself.
    peak_flops: bfloat16 operations per second.
    hbm: bytes of memory that a program may use.
    chips_per_host: of a slice of several hosts.
    largest_host: chips of the largest slice on one host.
    shapes: of the slices, smallest first.
  """

  name: str
  kind: str
  peak_flops: float
  hbm: int
  chips_per_host: int
  largest_host: int
  shapes: tuple[str, ...]

  @property
  def slices(self) -> tuple[Slice, ...]:
    """The slices of this chip, smallest first."""
    return tuple(Slice(self, shape) for shape in self.shapes)


@dataclasses.dataclass(frozen=True)
class Slice:
  """Chips that are joined, e.g. v5p:2x2x2.

  Attributes:
    chip: of what.
    shape: chips in each direction, e.g. "2x2x2".
  """

  chip: Chip
  shape: str

  @property
  def name(self) -> str:
    """As JAX names a topology."""
    return f"{self.chip.name}:{self.shape}"

  @property
  def size(self) -> int:
    """Number of chips, each a JAX device."""
    return math.prod(map(int, self.shape.split("x")))

  @property
  def hosts(self) -> int:
    """Number of machines: processes of a program on it."""
    if self.size <= self.chip.largest_host:
      return 1
    return self.size // self.chip.chips_per_host


CHIPS = {
  chip.name: chip
  for chip in (
    Chip("v4", "TPU v4", 275e12, int(30.75 * _GIB), 4, 4, _CUBES),
    Chip("v5e", "TPU v5 lite|TPU v5e", 197e12, int(15.75 * _GIB), 4, 8, _FLAT),
    Chip("v5p", "TPU v5p?", 459e12, int(95.74 * _GIB), 4, 4, _CUBES),
    Chip("v6e", "TPU v6 lite|TPU v6e", 918e12, int(31.25 * _GIB), 4, 8, _FLAT),
  )
}
# What a run may find itself on beside these: operations per second, and bytes
# where the device does not say.
_OTHERS = (
  (r"TPU ?7x", 2307e12, 192 * _GIB),
  (r"NVIDIA A100.*", 312e12, 0),
  (r"NVIDIA (H100 80GB HBM3|H200|GH200).*", 989e12, 0),
  (r"NVIDIA B200.*", 2250e12, 0),
)


def _find(device_kind: str) -> tuple[float | None, int]:
  """(operations per second, bytes) of a kind of device, None and 0 unknown."""
  known = [(chip.kind, chip.peak_flops, chip.hbm) for chip in CHIPS.values()]
  for pattern, peak, size in (*known, *_OTHERS):
    if re.fullmatch(pattern, device_kind):
      return peak, size
  return None, 0


def peak_flops(device_kind: str) -> float | None:
  """Peak bfloat16 operations per second of a device; None where unknown."""
  return _find(device_kind)[0]


def memory_bytes(device_kind: str) -> int:
  """Bytes that a program may use of a device; 0 where unknown."""
  return _find(device_kind)[1]


def parse(text: str) -> Slice:
  """The slice that a name such as "v5p:2x2x2" means.

  Raises:
    ValueError: no such chip, or no slice of that shape.
  """
  name, _, shape = text.partition(":")
  if name not in CHIPS:
    raise ValueError(
      f"topology={text!r}: {name!r} is not one of {', '.join(CHIPS)}; a "
      "topology is e.g. v5p:2x2x2"
    )
  if shape not in CHIPS[name].shapes:
    raise ValueError(
      f"topology={text!r}: slices of {name} are {', '.join(CHIPS[name].shapes)}"
    )
  return Slice(CHIPS[name], shape)
