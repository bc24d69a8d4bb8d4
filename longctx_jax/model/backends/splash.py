"""Attention by the Splash kernel of Pallas: for TPU.

The kernel wants tiled shapes, does not scale, and XLA cannot partition it:
here the inputs are padded and scaled, and each shard of the mesh in use runs
it on its own. A table of all pairs of blocks has to fit into scalar memory:
of longer rows, a kernel takes some of the queries at a time.
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
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from longctx_jax.model import remat, row_parts
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import splash_tables

# Longer sequences take larger blocks.
_LONG = 1 << 17
# Pairs of blocks whose table fits into 1 MiB of scalar memory: those of 524,288
# positions.
_MOST_PAIRS = 1 << 18
# Head size up to which a row holds -> positions from which blocks are of 1,024.
# A step of the grid costs some 0.35 us by itself, and its two products on a v5e
# take 4 x block^2 x head size / 197e12 s: 0.7 us for 512 and a head of 128. But
# blocks on the diagonal are computed whole: half a block of keys for each row,
# 1 / 16 of all at sixteen blocks. In larger heads the step is long enough.
_WIDE_FROM = ((64, 1 << 13), (128, 1 << 14))
LONGEST_BLOCK = 1024
_HEAD_TILE = 64


def block_size(length: int, head_dim: int, window: int = 0) -> int:
  """Rows or keys of a block: the largest that costs little beside.

  Args:
    length: rows or keys; they are padded by at most an eighth.
    head_dim: padded size of a head.
    window: of the layer; blocks that reach far beyond it are computed in vain.
  """
  if length > _LONG:
    return LONGEST_BLOCK
  wide_from = next(
    (start for size, start in _WIDE_FROM if head_dim <= size), _LONG
  )
  blocks = (512, 256)
  if length >= wide_from and not window:
    blocks = (LONGEST_BLOCK, *blocks)
  for block in blocks:
    if -length % block <= length // 8:
      return block
  return 128


@dataclasses.dataclass(frozen=True)
class _Plan:
  """How the rows of all shards become kernels; static.

  Attributes:
    starts: first row of each chunk of each shard, counted from `q_offset`.
    chunk: rows of a chunk, before padding.
    num_k: keys, before padding.
    most_pairs: of blocks, in the table of a kernel.
    head_dim: padded size of a head.
    window: of the layer.
  """

  starts: tuple[tuple[int, ...], ...]
  chunk: int
  num_k: int
  most_pairs: int
  head_dim: int = 128
  window: int = 0

  @property
  def block_q(self) -> int:
    return block_size(self.chunk, self.head_dim, self.window)

  @property
  def block_k(self) -> int:
    return block_size(self.num_k, self.head_dim, self.window)

  @property
  def padded_k(self) -> int:
    return self.num_k + -self.num_k % self.block_k

  @property
  def piece(self) -> int:
    """Rows of a chunk that one kernel takes, padded."""
    blocks = -(-self.chunk // self.block_q)
    at_once = self.most_pairs // (self.padded_k // self.block_k)
    pieces = -(-blocks // max(at_once // len(self.starts[0]), 1))
    return -(-blocks // pieces) * self.block_q

  @property
  def pieces(self) -> int:
    """Kernels, one after the other."""
    return -(-self.chunk // self.piece)

  def kernels(
    self, spec: AttentionSpec, *, interpret: bool
  ) -> list[kernel_lib.SplashAttentionKernel]:
    """One for each piece; its tables are split among the shards."""
    block_q, block_k = self.block_q, self.block_k
    made = []
    for piece in range(self.pieces):
      make = functools.partial(
        splash_tables.make_tables,
        spec,
        np.array(self.starts) + piece * self.piece,
        run=self.piece,
        num_k=self.padded_k,
        block_q=block_q,
        block_k=block_k,
      )
      tables = make(), make(by_keys=True)
      by_queries, by_keys = jax.tree.map(jnp.array, tables)
      made.append(
        kernel_lib.SplashAttentionKernel(
          by_queries,
          by_queries,
          by_keys,
          block_sizes=kernel_lib.BlockSizes(
            block_q=block_q,
            block_kv=block_k,
            block_q_dkv=block_q,
            block_kv_dkv=block_k,
            block_q_dq=block_q,
            block_kv_dq=block_k,
          ),
          is_mqa=True,
          save_residuals=False,
          mask_value=kernel_lib.DEFAULT_MASK_VALUE,
          attn_logits_soft_cap=spec.softcap or None,
          residual_checkpoint_name=remat.NAME,
          mask_function=spec.sees,
          interpret=interpret,
        )
      )
    return made

  def lay_out(self, rows: Array) -> Array:
    """Rows [B, T, ...] of a shard, padded, as [pieces, B, rows, ...]."""
    batch, _, *tail = rows.shape
    rows = rows.reshape(batch, -1, self.chunk, *tail)
    pad = self.pieces * self.piece - self.chunk
    # What lies in the padding is dropped; a segment there has keys to see.
    rows = jnp.pad(
      rows, ((0, 0), (0, 0), (0, pad), *((0, 0),) * len(tail)), mode="edge"
    )
    rows = rows.reshape(batch, -1, self.pieces, self.piece, *tail)
    rows = jnp.moveaxis(rows, 2, 0)
    return rows.reshape(self.pieces, batch, -1, *tail)

  def take_back(self, pieces: Array) -> Array:
    """Undoes `lay_out`."""
    _, batch, _, *tail = pieces.shape
    pieces = pieces.reshape(self.pieces, batch, -1, self.piece, *tail)
    rows = jnp.moveaxis(pieces, 0, 2).reshape(
      batch, -1, self.pieces * self.piece, *tail
    )
    return rows[:, :, : self.chunk].reshape(batch, -1, *tail)


def _attend(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  segment_ids: Int[Array, "B S"] | None,
  tables: tuple[list[kernel_lib.SplashAttentionKernel], Int[Array, "s c"]],
  *,
  plan: _Plan,
  scale: float,
) -> Float[Array, "B T N H"]:
  """The kernels on one shard, padded."""
  kernels, starts = tables
  batch, _, num_heads, dim = q.shape
  kv_heads = k.shape[2]
  pad_k, pad_dim = plan.padded_k - plan.num_k, -dim % _HEAD_TILE
  q = jnp.pad(q * scale, ((0, 0), (0, 0), (0, 0), (0, pad_dim)))
  q = q.reshape(*q.shape[:2], kv_heads, num_heads // kv_heads, dim + pad_dim)
  q = plan.lay_out(q).transpose(0, 1, 3, 4, 2, 5)
  k, v = (
    jnp.pad(x, ((0, 0), (0, pad_k), (0, 0), (0, pad_dim))).swapaxes(1, 2)
    for x in (k, v)
  )
  segments = [None] * plan.pieces
  if segment_ids is not None:
    own = [
      jax.lax.dynamic_slice_in_dim(segment_ids, start, plan.chunk, axis=1)
      for start in starts[0]
    ]
    # No real segment is -1.
    keys = jnp.pad(segment_ids, ((0, 0), (0, pad_k)), constant_values=-1)
    segments = [
      kernel_lib.SegmentIds(q=rows, kv=keys)
      for rows in plan.lay_out(jnp.concatenate(own, axis=1))
    ]
  out = jnp.stack(
    [
      jax.vmap(jax.vmap(kernel, in_axes=(0, 0, 0, None)))(rows, k, v, segment)
      for kernel, rows, segment in zip(kernels, q, segments, strict=True)
    ]
  )
  out = plan.take_back(out.transpose(0, 1, 4, 2, 3, 5))[..., :dim]
  return out.reshape(batch, -1, num_heads, dim)


def splash_attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  spec: AttentionSpec,
  segment_ids: Int[Array, "B S"] | None,
  *,
  in_parts: bool = False,
  interpret: bool = False,
  most_pairs: int = _MOST_PAIRS,
) -> Float[Array, "B T N H"]:
  """Causal attention; see `attention.attention` for the arguments.

  Under a mesh the batch is split over `sharding.BATCH_AXES` and the heads over
  "tensor", as far as they divide evenly; else every shard computes all.

  Args:
    interpret: run the kernel's definition in XLA, for platforms other than
      TPU: slow, for tests.
    most_pairs: blocks of queries times blocks of keys that a kernel takes at a
      time; a longer row is given to several, some queries each.
  """
  parts = row_parts.count() if in_parts else 1
  num_q = q.shape[1]
  starts = ((0,),)
  if parts > 1:
    starts = row_parts.chunk_starts(parts, num_q)
    starts = tuple(map(tuple, starts.tolist()))
  plan = _Plan(
    starts=starts,
    chunk=num_q // len(starts[0]),
    num_k=k.shape[1] * parts,
    most_pairs=most_pairs,
    head_dim=q.shape[-1] + -q.shape[-1] % _HEAD_TILE,
    window=spec.window,
  )
  kernels = plan.kernels(spec, interpret=interpret)
  first = jnp.asarray(starts, jnp.int32) + spec.q_offset
  if parts == 1:
    split = jax.tree.map(lambda _: PartitionSpec(), (kernels, first))
  else:
    rows = PartitionSpec(None, row_parts.AXIS)
    mesh = jax.sharding.get_abstract_mesh()
    split = (
      [one.manual_sharding_spec(NamedSharding(mesh, rows)) for one in kernels],
      PartitionSpec(row_parts.AXIS),
    )
  return row_parts.on_shards(
    functools.partial(_attend, plan=plan, scale=spec.scale),
    q,
    k,
    v,
    segment_ids,
    in_parts=in_parts,
    tables=(kernels, first),
    table_specs=split,
  )
