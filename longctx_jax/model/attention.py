"""One entry point to attention, plain attention as its oracle, and a choice."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from longctx_jax.model import remat, row_parts
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends.blockwise import (
  block_length,
  blockwise_attention,
)
from longctx_jax.model.backends.cudnn import DTYPES as CUDNN_DTYPES
from longctx_jax.model.backends.cudnn import cudnn_attention
from longctx_jax.model.backends.splash import LONGEST_BLOCK, splash_attention
from longctx_jax.model.config import ModelConfig

# (q, k, v, spec, segment_ids) -> out, as `plain_attention`.
Backend = Callable[..., jax.Array]

BACKENDS = ("plain", "blockwise", "splash", "cudnn")
_CHECKED_LENGTHS = (64, 100, 128, 192)
# Largest error over the largest value. A TPU multiplies float32 in bfloat16
# passes by default; a mask that is off by one key is off by 0.1 and more.
_TOLERANCES = {"float32": 2e-2, "bfloat16": 3e-2, "float16": 5e-3}


def attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  spec: AttentionSpec,
  *,
  segment_ids: Int[Array, "B S"] | None = None,
  in_parts: bool = False,
  backend: str = "blockwise",
) -> Float[Array, "B T N H"]:
  """Causal grouped-query attention.

  A row sees the keys that the spec says, of its own segment. Softmax and its
  sums are in float32.

  Args:
    q: queries [B, T, N, H]; T may be less than S.
    k: keys [B, S, K, H], N a multiple of K.
    v: values [B, S, K, H].
    spec: what is visible, and how scores are made.
    segment_ids: document of each key position, at least 0 [B, S].
    in_parts: whether rows are parts of rows (`row_parts.split`), which see the
      keys of the whole row; then T is S, and all positions are queries.
    backend: one of `BACKENDS`; see `choose_backend`.

  Returns:
    [B, T, N, H] in the dtype of q.

  Raises:
    ValueError: for an unknown backend, or one that cannot do what is asked.
  """
  if backend not in _FUNCTIONS:
    raise ValueError(
      f"attention backend {backend!r} is not one of {', '.join(BACKENDS)}"
    )
  function = _FUNCTIONS[backend]
  if in_parts and row_parts.count() > 1:
    return function(q, k, v, spec, segment_ids, in_parts=True)
  return function(q, k, v, spec, segment_ids)


@row_parts.chunk_by_chunk
def plain_attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  spec: AttentionSpec,
  segment_ids: Int[Array, "B S"] | None,
  first: Int[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
  """The definition, with all scores in memory: the oracle of the others.

  What is visible is written out once more, apart from `AttentionSpec.sees`.
  """
  batch, num_q, num_heads, dim = q.shape
  num_k, kv_heads = k.shape[1:3]
  grouped = q.reshape(batch, num_q, kv_heads, num_heads // kv_heads, dim)
  scores = spec.scale * jnp.einsum(
    "btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32
  )
  if spec.softcap:
    scores = spec.softcap * jnp.tanh(scores / spec.softcap)
  first = spec.q_offset if first is None else first
  rows = first + jnp.arange(num_q)[:, None]
  keys = jnp.arange(num_k)[None]
  visible = keys <= rows
  if spec.window:
    visible &= (rows - keys < spec.window) | (keys < spec.sink_len)
  visible = visible[None]
  if segment_ids is not None:
    own = jax.lax.dynamic_slice_in_dim(segment_ids, first, num_q, axis=1)
    visible = visible & (own[..., None] == segment_ids[:, None])
  scores = jnp.where(visible[:, None, None], scores, -1e30)
  probs = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum(
    "bkgts,bskh->btkgh", probs, v, preferred_element_type=jnp.float32
  )
  return remat.keep(out.reshape(q.shape).astype(q.dtype))


_FUNCTIONS = {
  "plain": plain_attention,
  "blockwise": blockwise_attention,
  "splash": splash_attention,
  "cudnn": cudnn_attention,
}


def alignment(backend: str) -> int:
  """Where documents that share a row are to start: multiples of this.

  Their blocks then are those that they have alone. 0: they can't share one.

  Args:
    backend: one of `BACKENDS`.
  """
  return {
    "plain": 1, "blockwise": block_length(), "splash": LONGEST_BLOCK, "cudnn": 0
  }[backend]  # fmt: skip


@functools.cache
def choose_backend(
  config: ModelConfig,
  *,
  dtype: DTypeLike,
  packed: bool = False,
  in_parts: bool = False,
) -> str:
  """The backend of this machine for a model, checked by running it once.

  "splash" on TPU; "cudnn" on GPU where it can do the model's attention; else,
  and where `find_fault` finds one, "blockwise".

  Args:
    config: the model; its head sizes, windows, sink and cap decide.
    dtype: of the activations.
    packed: whether rows hold several documents.
    in_parts: whether a mesh splits them (`row_parts`).
  """
  backend = {"tpu": "splash", "gpu": "cudnn"}.get(jax.default_backend())
  cudnn_can = not (config.sink_len or config.attention_softcap)
  cudnn_can &= not (packed or in_parts)
  cudnn_can &= jnp.dtype(dtype).name in CUDNN_DTYPES
  if backend is None or (backend == "cudnn" and not cudnn_can):
    return "blockwise"
  fault = find_fault(_FUNCTIONS[backend], config, dtype=dtype)
  if fault:
    logging.warning(
      "attention: blockwise is used, since %s failed its check: %s",
      backend,
      fault,
    )
    return "blockwise"
  return backend


def find_fault(
  function: Backend, config: ModelConfig, *, dtype: DTypeLike
) -> str:
  """Compares a backend with plain attention; "" where they agree.

  Outputs and gradients of all rows and of the last rows alone, at awkward
  lengths with padding on the right, for the model's heads; its windows and
  sink are cut to what fits into these lengths.

  Args:
    function: called as the functions behind `attention`.
    config: the model.
    dtype: of the activations.

  Returns:
    What is wrong, on one line.
  """
  for length in _CHECKED_LENGTHS:
    for window in sorted({min(window, 24) for window in config.windows}):
      spec = AttentionSpec.of_layer(config, window=window)
      spec = dataclasses.replace(spec, sink_len=min(spec.sink_len, 4))
      try:
        fault = _compare(function, config, length, spec, jnp.dtype(dtype))
      # Whatever a kernel raises here it would raise in the model.
      except Exception as error:
        fault = f"{type(error).__name__}: {error}".partition("\n")[0]
      if fault:
        return f"length {length}, window {window}: {fault}"
  return ""


def _compare(
  function: Backend,
  config: ModelConfig,
  length: int,
  spec: AttentionSpec,
  dtype: np.dtype,
) -> str:
  """What differs at one length, a quarter of which is padding."""
  real, first = length - length // 4, length // 2
  kv_heads = min(config.num_kv_heads, 2)
  heads = config.num_heads // config.num_kv_heads * kv_heads
  rng = np.random.default_rng(length)
  q, k, v, weights = (
    rng.normal(size=(2, rows, n, config.head_dim)).astype(np.float32)
    for rows, n in (
      (length, heads),
      (length, kv_heads),
      (length, kv_heads),
      (2 * real - first, heads),
    )
  )
  # A padded key that is seen makes itself felt.
  for x in (q, k, v):
    x[:, real:] *= 10
  qkv = [jnp.asarray(x, dtype) for x in (q, k, v)]

  from_first = dataclasses.replace(spec, q_offset=first)

  def run(function: Backend, *qkv: jax.Array) -> list[np.ndarray]:
    def loss(
      q: jax.Array, k: jax.Array, v: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
      whole = function(q, k, v, spec, None)[:, :real]
      last = function(q[:, first:], k, v, from_first, None)[:, : real - first]
      out = jnp.concatenate([whole, last], axis=1).astype(jnp.float32)
      return (weights * out).sum(), out

    graded = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
    (_, out), grads = graded(*qkv)
    return [np.asarray(x, np.float32) for x in (out, *grads)]

  got = run(function, *qkv)
  with jax.default_matmul_precision("highest"):
    out, *grads = run(
      plain_attention, *(x[:, :real].astype(jnp.float32) for x in qkv)
    )
  padding = ((0, 0), (0, length - real), (0, 0), (0, 0))
  expected = [out, *(np.pad(x, padding) for x in grads)]
  names = ("output", "gradient of q", "gradient of k", "gradient of v")
  limit = _TOLERANCES[dtype.name]
  for name, a, b in zip(names, got, expected, strict=True):
    error = np.abs(a - b).max() / np.abs(b).max()
    if not error <= limit:  # NaN too
      return f"{name} is off by {error:.2g} of its range (limit {limit:g})"
  return ""
