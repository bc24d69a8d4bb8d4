"""What a machine does best, where a config leaves it open."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from longctx_jax.model import attention
from longctx_jax.model.config import ModelConfig


def dtype(stated: DTypeLike | None = None) -> np.dtype:
  """The stated dtype, or that of this machine where none is.

  Float32 on CPU, where it is the fastest, and bfloat16 elsewhere.
  """
  if stated is not None:
    return jnp.dtype(stated)
  cpu = jax.default_backend() == "cpu"
  return jnp.dtype(jnp.float32 if cpu else jnp.bfloat16)


def window_batch(stated: int = 0) -> int:
  """Short windows per device and pass, as stated; 0: as fits the machine.

  That is 1 on CPU and 4 elsewhere.
  """
  return stated or (1 if jax.default_backend() == "cpu" else 4)


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
  stated: str, config: ModelConfig, *, dtype: DTypeLike, packed: bool = False
) -> str:
  """The stated attention backend, or for "auto" that of this machine.

  Args:
    stated: one of `attention.BACKENDS`, or "auto".
    config: see `attention.choose_backend`.
    dtype: of the activations.
    packed: whether rows hold several documents.
  """
  if stated != "auto":
    return stated
  name = jnp.dtype(dtype).name
  return attention.choose_backend(config, dtype=name, packed=packed)
