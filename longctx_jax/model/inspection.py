"""Weights that load without an error and cannot be right."""

from __future__ import annotations

import numpy as np
from absl import logging

from longctx_jax.model.config import ModelConfig

# NLL then differs from that of uniform logits by less than 1e-3 nats.
_UNIFORM = 5e-4


class Inspector:
  """Sees every part of a checkpoint that is read."""

  def __init__(self, config: ModelConfig):
    self._config = config
    self._shift = float(config.norm_plus_one)
    self._peaks: dict[str, float] = {}

  def see(self, name: str, part: np.ndarray) -> None:
    """Takes note of a part of a tensor."""
    if _is_norm(name):
      part = part + part.dtype.type(self._shift)
    before = self._peaks[name] if name in self._peaks else 0.0
    self._peaks[name] = np.maximum(before, _peak(part))  # NaN stays.

  def warn(self) -> list[str]:
    """Logs, and returns, what looks wrong in the tensors read so far.

    NaN or infinite values, all zeros (also of a norm's factor), and a head
    whose logits are uniform: |logit| <= D max|head| max|norm|, as the normed
    state has a root mean square of 1.
    """
    found = [
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
      logging.warning("These weights look wrong: %s", text)
    return found


def _is_norm(name):
  return name.endswith("norm.weight")


def _peak(values):
  """max |value|; NaN or inf where there is one.

  Without the sign, the bits of floats are in the order of the floats.
  """
  if not values.size:
    return 0.0
  unsigned = np.dtype(f"u{values.dtype.itemsize}")
  sign = np.array(1 << (8 * unsigned.itemsize - 1), unsigned)
  return (values.view(unsigned) & ~sign).max().view(values.dtype).astype(float)
