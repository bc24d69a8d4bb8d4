"""The definition as a program: a document's long and short log-probs.

What `scorer` computes in buckets and pools, without either: a program for each
length, all windows at once. To be read first; the scorer is tested against it.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from longctx_jax.model import log_probs, sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows

LogProbs = Float[Array, "T"]


def make_paper_step(
  model: LoadedModel, windows: Windows
) -> Callable[[nnx.State, Int[Array, "n"]], tuple[LogProbs, LogProbs]]:
  """Makes `paper_step(params, ids)` -> (long, short) log-probs, nats [n - 1].

  long[t] = log P(ids[t + 1] | ids[: t + 1]). short[t] is the same from the
  start of the window that scores ids[t + 1]: NaN where none does, and long[t]
  in the first window (paper, appendix A.1). Under `jax.set_mesh(model.mesh)`
  the windows are split over the devices.
  """
  short_len, stride = windows.short_len, windows.stride

  def targets_of(params, ids, lengths):
    """Log-probs [B, S - 1] of all ids but the first of each row [B, S]."""
    transformer = nnx.merge(model.graphdef, params)
    hidden = transformer(ids[:, :-1], lengths=lengths)
    softcap = model.config.softcap
    return log_probs.target_log_probs(
      hidden, transformer.head(), ids[:, 1:], softcap=softcap, chunk=1024
    )

  @jax.jit
  def paper_step(params, ids):
    n, ways = len(ids), sharding.batch_ways(model.mesh)
    long = targets_of(params, ids[None], jnp.array([n]))[0]
    # The first window is the long pass; with none left, one is fed for nothing.
    starts = windows.plan(n).start[1:]
    starts = jnp.pad(starts, (0, max(-len(starts) % ways, ways - len(starts))))
    starts = sharding.constrain(starts, sharding.BATCH_AXES)
    padded = jnp.pad(ids, (0, windows.length))
    cut = jax.vmap(
      lambda start: jax.lax.dynamic_slice(padded, [start], [windows.length])
    )
    lengths = jnp.minimum(windows.length, n - starts)
    short = targets_of(params, cut(starts), lengths)[:, short_len - 1 :]
    unscored = jnp.full(short_len - 1, jnp.nan)
    first = long[short_len - 1 : short_len - 1 + stride]
    return long, jnp.concatenate([unscored, first, short.ravel()])[: n - 1]

  return paper_step
