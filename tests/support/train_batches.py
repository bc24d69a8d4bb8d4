"""Batches as the data pipeline makes them, and an optimizer that remembers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from longctx_jax.paper import windows


def keep_gradient():
  """An optimizer whose state is the last gradient, and that moves nothing."""
  return optax.GradientTransformation(
    lambda params: jax.tree.map(jnp.zeros_like, params),
    lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
  )


def make_documents(rng, *lengths):
  return [rng.integers(0, 256, n).astype(np.int32) for n in lengths]


def make_batch(
  rows, *, seq_len, short_len, stride, num_windows=None, packed=False, pad=0
):
  """A batch of one process; each row is the list of documents in it."""
  if num_windows is None:
    num_windows = max(0, -(-(seq_len + 1 - short_len) // stride) - 1)
  found = {
    "inputs": np.full((len(rows), seq_len), pad),
    "targets": np.full((len(rows), seq_len), pad),
    "loss_mask": np.zeros((len(rows), seq_len), np.float32),
    "segment_ids": np.zeros((len(rows), seq_len)),
    "positions": np.zeros((len(rows), seq_len)),
    "lengths": np.ones((len(rows), seq_len)),
  }
  spans = np.zeros((3, len(rows), num_windows))
  for row, documents in enumerate(rows):
    ids = np.full(seq_len + 1, pad)
    ids[: sum(map(len, documents))] = np.concatenate(documents)
    found["inputs"][row], found["targets"][row] = windows.align(ids)
    begin = window = 0
    for segment, document in enumerate(documents, 1):
      end = begin + len(document)
      own = slice(begin, min(end, seq_len))
      found["segment_ids"][row, own] = segment
      found["positions"][row, own] = np.arange(seq_len)[: own.stop - begin]
      found["lengths"][row, own] = len(document)
      found["loss_mask"][row, begin : end - 1] = 1
      plan = windows.Windows(short_len, stride).plan(len(document))
      for triple in list(
        zip(plan.start, plan.score_start, plan.score_end, strict=True)
      )[1:]:
        spans[:, row, window] = np.array(triple) + begin
        window += 1
      begin = end
  names = ("window_start", "score_start", "score_end")
  found |= dict(zip(names, spans, strict=True))
  if not packed:
    del found["segment_ids"], found["positions"]
    found["lengths"] = found["lengths"][:, 0]
  return {
    name: value if name == "loss_mask" else value.astype(np.int32)
    for name, value in found.items()
  }
