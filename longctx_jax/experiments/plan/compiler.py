"""The TPU compiler, for chips that are not there: what it says of a program."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from longctx_jax.experiments.plan import collectives, search
from longctx_jax.experiments.plan.collectives import Traffic
from longctx_jax.experiments.plan.workloads import Workload
from longctx_jax.model import sharding
from longctx_jax.runtime import progress
from longctx_jax.runtime.chips import Slice

# No metadata server is asked, and several processes may load the compiler.
_ENVIRONMENT = {
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_ACCELERATOR_TYPE": "v5litepod-8",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What the compiler says of a program.

  Attributes:
    peak: bytes of a device: arguments, results that take no argument's place,
      and temporaries. Where they do not fit, what the compiler says it needs;
      0 where it does not say.
    temporaries: bytes of them; 0 where it does not fit.
    fits: whether it compiled.
    traffic: collectives by kind.
  """

  peak: int
  temporaries: int
  fits: bool
  traffic: dict[str, Traffic]


def is_here() -> bool:
  """Whether there is a TPU compiler on this machine."""
  return importlib.util.find_spec("libtpu") is not None


def describe_devices(place: Slice) -> list[jax.Device]:
  """The chips of a slice, to compile for; needs libtpu.

  Args:
    place: the slice.
  """
  for name, value in _ENVIRONMENT.items():
    os.environ.setdefault(name, value)
  options = {}
  if place.chip.name == "v4":  # Its two cores are one device, as in use.
    options["chip_config_name"] = "megacore"
  if place.size == 1:
    options["chips_per_host_bounds"] = (1, 1, 1)
  topology = topologies.get_topology_desc(
    platform="tpu", topology_name=place.name, **options
  )
  return topology.devices


@contextlib.contextmanager
def uncached() -> Iterator[None]:
  """Keeps no programs: what is for absent chips can't be read again."""
  before = jax.config.jax_enable_compilation_cache
  jax.config.update("jax_enable_compilation_cache", False)
  compilation_cache.reset_cache()  # It remembers whether it is in use.
  try:
    yield
  finally:
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()


def compile_program(workload: Workload, name: str, place: Slice) -> Compiled:
  """Compiles a program of a workload for a slice; nothing is run.

  Args:
    workload: what is asked of the devices.
    name: one of its programs.
    place: the slice.

  Raises:
    ValueError: where the mesh does not fit the slice or the model.
  """
  mesh = sharding.make_mesh(workload.sizes, describe_devices(place))
  title = f"the {name} of {workload.length:,} ids for {place.name}"
  try:
    with uncached(), progress.heartbeat(title, doing="compiling"):
      compiled = workload.compile(name, mesh)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    planned = search.estimate(workload, place)[name]
    given = planned.weights + planned.optimizer
    return Compiled(needed(str(error), given), 0, False, {})
  memory = compiled.memory_analysis()
  return Compiled(
    peak=peak(memory),
    temporaries=memory.temp_size_in_bytes,
    fits=True,
    traffic=collectives.count(compiled.as_text()),
  )


def peak(memory: Any) -> int:
  """Bytes that a device has to have: arguments, results, temporaries.

  Results that take the place of an argument count once. What XLA calls the
  peak leaves out the gaps between temporaries, which a device allocates as one
  piece; where that is more all the same, it is taken.

  Args:
    memory: of `jax.stages.Compiled.memory_analysis`.
  """
  results = memory.output_size_in_bytes - memory.alias_size_in_bytes
  given = memory.argument_size_in_bytes + results
  return max(given + memory.temp_size_in_bytes, memory.peak_memory_in_bytes)


def needed(message: str, given: int) -> int:
  """Bytes that the compiler says a program takes, in its refusal; 0: unsaid.

  Args:
    message: of the error.
    given: bytes of the arguments, which one kind of refusal leaves out.
  """
  if found := re.search(r"HLO temporaries \(([\d.]+)([KMGT])\)", message):
    return given + int(float(found[1]) * _UNITS[found[2]])
  found = re.search(r"Used ([\d.]+)([KMGT]) of", message)
  return int(float(found[1]) * _UNITS[found[2]]) if found else 0
