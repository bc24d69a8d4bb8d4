"""Fixed shapes for documents of any length."""

from __future__ import annotations

import jax

from longctx_jax.model import row_parts

# TPU kernels tile sequences by 128, and 512 is the shortest length from which
# a step of 128 keeps a bucket within 1.25 times the one below.
_TILE = 128


def bucket_length(n: int) -> int:
  """Smallest bucket that holds n positions.

  Buckets are multiples of 128, four to the octave from 512 up (1024, 1280,
  1536, 1792, 2048, ...): each at most 1.25 times the one below.
  """
  step = max(_TILE, (1 << max(0, n - 1).bit_length()) // 8)
  return max(_TILE, -(-n // step) * step)


def row_length(n: int, mesh: jax.sharding.Mesh) -> int:
  """The smallest bucket for n positions that the mesh has equal parts of."""
  return row_parts.fitting_length(bucket_length(n), mesh.shape[row_parts.AXIS])
