"""Checkpoints that load without an error and cannot be right."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from absl import logging

from longctx_jax.model import rope
from longctx_jax.model.config import ModelConfig

# NLL then differs from that of uniform logits by less than 1e-3 nats.
_UNIFORM = 5e-4


class Inspector:
  """Sees every part of a checkpoint that is read."""

  def __init__(self, config: ModelConfig):
    self._config = config
    self._shift = float(config.norm_plus_one)
    self._peaks: dict[str, float] = {}
    self._odd_tables = odd_tables(config)

  def see(self, name: str, part: np.ndarray) -> None:
    """Takes note of a part of a tensor."""
    if _is_norm(name):
      part = part + part.dtype.type(self._shift)
    before = self._peaks[name] if name in self._peaks else 0.0
    self._peaks[name] = np.maximum(before, _peak(part))  # NaN stays.

  def see_frequencies(self, name: str, stored: np.ndarray) -> None:
    """Compares a RoPE table that a checkpoint stores with the config's.

    Args:
      name: of the tensor.
      stored: angles per position, in the precision of the weights; older code
        stored them before scaling.
    """
    config = self._config
    for table in config.ropes:
      plain = dataclasses.replace(table, rope_type="default")
      for known in (table, plain):
        own = rope.inverse_frequencies(known, config.head_dim)
        if own.shape == stored.shape and np.allclose(own, stored, rtol=1e-2):
          return
    self._odd_tables.append(
      f"{name}: the RoPE table that the checkpoint stores is not that of its "
      f"config.json, {config.describe_rope()}, which is used"
    )

  def warn(self) -> list[str]:
    """Logs, and returns, what looks wrong in the tensors read so far.

    NaN or infinite values, all zeros (also of a norm's factor), a head whose
    logits are uniform: |logit| <= D max|head| max|norm|, as the normed state
    has a root mean square of 1; and RoPE tables, see `odd_tables`.
    """
    found = list(self._odd_tables)
    found += [
      f"{name} {'is all zero' if peak == 0 else 'has NaN or infinite values'}"
      for name, peak in self._peaks.items()
      if not np.isfinite(peak) or (peak == 0 and not name.endswith(".bias"))
    ]
    config = self._config
    head = "model.embed_tokens.weight" if config.tied else "lm_head.weight"
    if head in self._peaks and "model.norm.weight" in self._peaks:
      bound = self._peaks[head] * self._peaks["model.norm.weight"]
      if bound * config.embed_dim < _UNIFORM:
        found.append(
          f"the output head looks empty: {head} gives every token the "
          f"probability 1 / {config.vocab_size}"
        )
    for text in found:
      logging.warning("This checkpoint looks wrong: %s", text)
    return found


def odd_tables(config: ModelConfig) -> list[str]:
  """RoPE tables that repeat themselves within the context of the model.

  Published models keep a pair of dimensions that does not turn once in all
  that a layer sees. Where none is left, the base or the scaling was most
  often lost on the way.
  """
  found = []
  for window, kind in sorted(set(config.layer_kinds)):
    table = config.ropes[kind]
    reach = min(window or config.max_position, config.max_position)
    slowest = rope.inverse_frequencies(
      table, config.head_dim, config.max_position
    ).min()
    if reach * slowest > 2 * math.pi:
      found.append(
        f"{table.describe()} turns once in {2 * math.pi / slowest:,.0f} "
        f"positions or fewer, in layers that see {reach:,}: has config.json "
        "lost its rope_theta or its RoPE scaling?"
      )
  return found


def _is_norm(name: str) -> bool:
  return name.endswith("norm.weight")


def _peak(values: np.ndarray) -> float:
  """max |value|; NaN or inf where there is one.

  Without the sign, the bits of floats are in the order of the floats.
  """
  if not values.size:
    return 0.0
  unsigned = np.dtype(f"u{values.dtype.itemsize}")
  sign = np.array(1 << (8 * unsigned.itemsize - 1), unsigned)
  return (values.view(unsigned) & ~sign).max().view(values.dtype).astype(float)
