"""Attention by cuDNN: for GPU, what its causal kernel can do and no more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from longctx_jax.model.attention_spec import AttentionSpec

DTYPES = ("bfloat16", "float16")
# cuDNN has given NaN at lengths between its tiles.
_TILE = 128


def cudnn_attention(
  q: Float[Array, "B T N H"],
  k: Float[Array, "B S K H"],
  v: Float[Array, "B S K H"],
  spec: AttentionSpec,
  segment_ids: Int[Array, "B S"] | None,
  *,
  in_parts: bool = False,
) -> Float[Array, "B T N H"]:
  """Causal attention; see `attention.attention` for the arguments.

  The kernel's first query stands at key 0: the `q_offset` positions before
  the first row are computed from zeros and dropped.

  Raises:
    ValueError: for an attention sink, segments, a cap, rows in parts, or a
      dtype that is not one of `DTYPES`: the kernel has none of them.
  """
  asked = dict(
    sink_len=spec.sink_len > 0,
    segment_ids=segment_ids is not None,
    softcap=spec.softcap > 0,
    in_parts=in_parts,
  )
  refused = [name for name, present in asked.items() if present]
  if q.dtype.name not in DTYPES:
    refused.append(f"dtype {q.dtype} (only {' and '.join(DTYPES)})")
  if refused:
    raise ValueError(
      f"attention backend 'cudnn' does not do {', '.join(refused)}: use "
      "'blockwise'"
    )
  stop = spec.q_offset + q.shape[1]
  pad = -stop % _TILE
  q = jnp.pad(q, ((0, 0), (spec.q_offset, pad), (0, 0), (0, 0)))
  k, v = (
    jnp.pad(x[:, :stop], ((0, 0), (0, pad), (0, 0), (0, 0))) for x in (k, v)
  )
  past = (spec.window - 1, 0) if 0 < spec.window < stop else None
  out = jax.nn.dot_product_attention(
    q,
    k,
    v,
    scale=spec.scale,
    is_causal=True,
    local_window_size=past,
    implementation="cudnn",
  )
  return out[:, spec.q_offset : stop]
