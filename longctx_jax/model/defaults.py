"""What a machine does best, where a config leaves it open."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from longctx_jax.model import attention, parameters, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.runtime import device

_SHORT_WINDOW = 128


def dtype(stated: DTypeLike | None = None) -> np.dtype:
  """The stated dtype, or that of this machine where none is.

  Float32 on CPU, where it is the fastest, and bfloat16 elsewhere.
  """
  if stated is not None:
    return jnp.dtype(stated)
  cpu = jax.default_backend() == "cpu"
  return jnp.dtype(jnp.float32 if cpu else jnp.bfloat16)


def mesh(config: ModelConfig, dtype: DTypeLike) -> jax.sharding.Mesh:
  """The mesh of this machine for a model: CPUs copy it, others share it.

  A CPU's devices are one memory and the same cores, so that each takes
  documents of its own: `data` is their number, `fsdp` 1. There are as many as
  `device.copies` allows. Elsewhere, and with several processes, all devices
  are on the `fsdp` axis.

  Args:
    config: of the model, whose weights are counted.
    dtype: of the weights.
  """
  if jax.default_backend() != "cpu" or jax.process_count() > 1:
    return sharding.make_mesh({"fsdp": -1})
  shapes = parameters.parameter_shapes(config).values()
  size = jnp.dtype(dtype).itemsize * sum(map(math.prod, shapes))
  count = device.copies(size)
  return sharding.make_mesh({"data": -1}, jax.devices()[:count])


def window_batch(stated: int = 0, *, length: int = 0) -> int:
  """Short windows per device and pass, as stated; 0: as fits the machine.

  That is 1 on CPU and 4 elsewhere, and where windows are so short that a pass
  costs a CPU's host more than its devices.

  Args:
    stated: windows.
    length: ids of each, where known.
  """
  long_enough = not 0 < length <= _SHORT_WINDOW
  return stated or (1 if jax.default_backend() == "cpu" and long_enough else 4)


def remat(stated: str) -> str:
  """The stated policy of `remat.POLICIES`, or for "auto" that of this machine.

  On CPU attention is slow beside its products, and memory is seldom short;
  elsewhere "block" is what the memory of the configs is planned with.
  """
  if stated != "auto":
    return stated
  return "attention" if jax.default_backend() == "cpu" else "block"


def matmul_precision(dtype: DTypeLike) -> str:
  """JAX's precision of products for parameters of this dtype.

  Float32 is meant to be float32: no bfloat16 or TF32 passes. Splash does not
  compile for bfloat16 under "highest".
  """
  return "highest" if jnp.dtype(dtype) == jnp.float32 else "default"


def attention_backend(
  stated: str,
  config: ModelConfig,
  *,
  dtype: DTypeLike,
  packed: bool = False,
  in_parts: bool = False,
) -> str:
  """The stated attention backend, or for "auto" that of this machine.

  Args:
    stated: one of `attention.BACKENDS`, or "auto".
    config: see `attention.choose_backend`.
    dtype: of the activations.
    packed: whether rows hold several documents.
    in_parts: whether a mesh splits them (`row_parts`).
  """
  if stated != "auto":
    return stated
  name = jnp.dtype(dtype).name
  return attention.choose_backend(
    config, dtype=name, packed=packed, in_parts=in_parts
  )
