"""Attention by the Splash kernel of Pallas: for TPU.

The kernel wants tiled shapes, does not scale, and XLA cannot partition it:
here the inputs are padded and scaled, and each shard of the mesh in use runs
it on its own.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_kernel as kernel_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as mask_lib,
)
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from longctx_jax import sharding

_BLOCKS = (512, 256, 128)
_HEAD_TILE = 64


@dataclasses.dataclass(frozen=True)
class _FirstKeys(mask_lib.Mask):
  """Shows the first keys to every row; computed a block at a time."""

  _shape: tuple[int, int]
  count: int

  @property
  def shape(self):
    return self._shape

  def __getitem__(self, index):
    rows, keys = (np.arange(n)[s] for n, s in zip(self.shape, index, strict=True))
    return np.broadcast_to(keys < self.count, (rows.size, keys.size))


def _visible(shape, *, q_offset, window, sink_len):
  """The static mask of one head; nothing of the size of `shape` is made."""
  causal = mask_lib.CausalMask(shape, q_offset)
  if not window:
    return causal
  near = mask_lib.LocalMask(shape, (window - 1, 0), q_offset)
  return near | causal & _FirstKeys(shape, sink_len) if sink_len else near


def _block_size(length):
  """The largest block that pads the length by at most an eighth."""
  for block in _BLOCKS[:-1]:
    if -length % block <= length // 8:
      return block
  return _BLOCKS[-1]


def _attend(
  q, k, v, segment_ids, *, q_offset, window, sink_len, softcap, scale, interpret
):
  """The kernel on one shard, padded."""
  batch, num_q, num_heads, dim = q.shape
  num_k, kv_heads = k.shape[1:3]
  groups = num_heads // kv_heads
  block_q, block_k = _block_size(num_q), _block_size(num_k)
  pad_q, pad_k, pad_dim = -num_q % block_q, -num_k % block_k, -dim % _HEAD_TILE
  # A padded row lies in a block with a real one, which sees a key: no block of
  # rows is without keys, whose softmax would be 0 / 0.
  mask = _visible(
    (num_q + pad_q, num_k + pad_k),
    q_offset=q_offset,
    window=window,
    sink_len=sink_len,
  )
  kernel = kernel_lib.make_splash_mqa_single_device(
    mask_lib.MultiHeadMask([mask] * groups),
    block_sizes=kernel_lib.BlockSizes(
      block_q=block_q,
      block_kv=block_k,
      block_q_dkv=block_q,
      block_kv_dkv=block_k,
      block_q_dq=block_q,
      block_kv_dq=block_k,
    ),
    attn_logits_soft_cap=softcap or None,
    interpret=interpret,
  )
  q = jnp.pad(q * scale, ((0, 0), (0, pad_q), (0, 0), (0, pad_dim)))
  q = q.reshape(batch, num_q + pad_q, kv_heads, groups, dim + pad_dim)
  q = q.transpose(0, 2, 3, 1, 4)
  k, v = (
    jnp.pad(x, ((0, 0), (0, pad_k), (0, 0), (0, pad_dim))).swapaxes(1, 2)
    for x in (k, v)
  )
  segments = None
  if segment_ids is not None:
    own = segment_ids[:, q_offset : q_offset + num_q]
    # No real segment is -1, and padded query rows are dropped below.
    segments = kernel_lib.SegmentIds(
      q=jnp.pad(own, ((0, 0), (0, pad_q)), mode="edge"),
      kv=jnp.pad(segment_ids, ((0, 0), (0, pad_k)), constant_values=-1),
    )
  per_head = jax.vmap(kernel, in_axes=(0, 0, 0, None))
  out = jax.vmap(per_head)(q, k, v, segments)
  out = out.transpose(0, 3, 1, 2, 4)[:, :num_q, ..., :dim]
  return out.reshape(batch, num_q, num_heads, dim)


def splash_attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  *,
  q_offset: int,
  window: int,
  sink_len: int,
  segment_ids: Int[Array, "B S"] | None,
  softcap: float,
  scale: float,
  interpret: bool = False,
) -> Float[Array, "B T N H"]:
  """Causal attention; see `attention.attention` for the arguments.

  Under a mesh the batch is split over `sharding.BATCH_AXES` and the heads over
  "tensor", each where they divide evenly; else every shard computes all.

  Args:
    interpret: run the kernel's definition in XLA, for platforms other than
      TPU: slow, for tests.
  """
  attend = functools.partial(
    _attend,
    q_offset=q_offset,
    window=window,
    sink_len=sink_len,
    softcap=softcap,
    scale=scale,
    interpret=interpret,
  )
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty:
    return attend(q, k, v, segment_ids)
  batch = heads = None
  if q.shape[0] % sharding.batch_ways(mesh) == 0:
    batch = sharding.BATCH_AXES
  if k.shape[2] % mesh.shape["tensor"] == 0:
    heads = "tensor"
  spec = PartitionSpec(batch, None, heads, None)
  return jax.shard_map(
    attend,
    in_specs=(spec, spec, spec, PartitionSpec(batch, None)),
    out_specs=spec,
    # The kernel does not say over which axes its outputs vary.
    check_vma=False,
  )(q, k, v, segment_ids)
