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

from longctx_jax.model import remat, sharding
from longctx_jax.model.attention_spec import AttentionSpec

# Longer sequences take larger blocks: a table of all pairs of blocks has to fit
# into 1 MiB of scalar memory, which it does up to 524,288 positions.
_LONG = 1 << 17
# Head size up to which a row holds -> positions from which blocks are of 1,024.
# A step of the grid costs some 0.35 us by itself, and its two products on a v5e
# take 4 x block^2 x head size / 197e12 s: 0.7 us for 512 and a head of 128. But
# blocks on the diagonal are computed whole: half a block of keys for each row,
# 1 / 16 of all at sixteen blocks. In larger heads the step is long enough.
_WIDE_FROM = ((64, 1 << 13), (128, 1 << 14))
_HEAD_TILE = 64


@dataclasses.dataclass(frozen=True)
class _Sight(mask_lib.Mask):
  """What the rows of a head may see: static, and never an array of its shape.

  The kernel evaluates `mask_function` in the blocks that are seen at all.
  Which those are is asked here, block by block; comparing every position, as
  the masks of the library do, takes minutes at 131,072 rows.
  """

  num_q: int
  num_k: int
  spec: AttentionSpec

  @property
  def shape(self) -> tuple[int, int]:
    return self.num_q, self.num_k

  @property
  def q_sequence(self) -> np.ndarray:
    return np.arange(self.num_q, dtype=np.int32)

  def mask_function(
    self, rows: np.ndarray | jax.Array, keys: np.ndarray | jax.Array
  ) -> np.ndarray | jax.Array:
    """bool, for NumPy in `__getitem__` and for the kernel's own arrays."""
    return self.spec.sees(rows, keys)

  def __getitem__(self, index: tuple[slice, slice]) -> np.ndarray:
    spec = self.spec
    rows, keys = (
      slice_.indices(size)
      for slice_, size in zip(index, self.shape, strict=True)
    )
    first, last = rows[0] + spec.q_offset, rows[1] - 1 + spec.q_offset
    shape = rows[1] - rows[0], keys[1] - keys[0]
    past = spec.window and keys[1] <= first - spec.window + 1
    if keys[0] > last or (past and keys[0] >= spec.sink_len):
      return _constant(shape, False)
    near = not spec.window or last - keys[0] < spec.window
    if keys[1] <= first + 1 and (near or keys[1] <= spec.sink_len):
      return _constant(shape, True)
    return spec.sees(np.arange(*rows)[:, None], np.arange(*keys)[None])


@functools.lru_cache(maxsize=8)
def _constant(shape: tuple[int, int], value: bool) -> np.ndarray:
  return np.full(shape, value)


def block_size(length: int, head_dim: int, window: int = 0) -> int:
  """Rows or keys of a block: the largest that costs little beside.

  Args:
    length: rows or keys; they are padded by at most an eighth.
    head_dim: padded size of a head.
    window: of the layer; blocks that reach far beyond it are computed in vain.
  """
  if length > _LONG:
    return 1024
  wide_from = next(
    (start for size, start in _WIDE_FROM if head_dim <= size), _LONG
  )
  blocks = (512, 256)
  if length >= wide_from and not window:
    blocks = (1024, *blocks)
  for block in blocks:
    if -length % block <= length // 8:
      return block
  return 128


def _attend(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  segment_ids: Int[Array, "B S"] | None,
  *,
  spec: AttentionSpec,
  interpret: bool,
) -> Float[Array, "B T N H"]:
  """The kernel on one shard, padded."""
  batch, num_q, num_heads, dim = q.shape
  num_k, kv_heads = k.shape[1:3]
  groups = num_heads // kv_heads
  pad_dim = -dim % _HEAD_TILE
  block_q, block_k = (
    block_size(length, dim + pad_dim, spec.window) for length in (num_q, num_k)
  )
  pad_q, pad_k = -num_q % block_q, -num_k % block_k
  # A padded row lies in a block with a real one, which sees a key: no block of
  # rows is without keys, whose softmax would be 0 / 0.
  mask = _Sight(num_q=num_q + pad_q, num_k=num_k + pad_k, spec=spec)
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
    attn_logits_soft_cap=spec.softcap or None,
    residual_checkpoint_name=remat.NAME,
    interpret=interpret,
  )
  q = jnp.pad(q * spec.scale, ((0, 0), (0, pad_q), (0, 0), (0, pad_dim)))
  q = q.reshape(batch, num_q + pad_q, kv_heads, groups, dim + pad_dim)
  q = q.transpose(0, 2, 3, 1, 4)
  k, v = (
    jnp.pad(x, ((0, 0), (0, pad_k), (0, 0), (0, pad_dim))).swapaxes(1, 2)
    for x in (k, v)
  )
  segments = None
  if segment_ids is not None:
    own = segment_ids[:, spec.q_offset : spec.q_offset + num_q]
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
  spec: AttentionSpec,
  segment_ids: Int[Array, "B S"] | None,
  *,
  interpret: bool = False,
) -> Float[Array, "B T N H"]:
  """Causal attention; see `attention.attention` for the arguments.

  Under a mesh the batch is split over `sharding.BATCH_AXES` and the heads over
  "tensor", each where they divide evenly; else every shard computes all.

  A sequence is limited by the core's scalar memory to some 524,288 positions;
  compilation fails beyond.

  Args:
    interpret: run the kernel's definition in XLA, for platforms other than
      TPU: slow, for tests.
  """
  attend = functools.partial(_attend, spec=spec, interpret=interpret)
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
