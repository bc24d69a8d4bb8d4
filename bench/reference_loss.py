"""The training loss of the paper's own code, in torch.

After `loss_weight` of finetune/finetune.py (PKU-ML/LongPPL, commit 1decd2a),
which fixes K = 4096 and d = 1024: here they are arguments.
"""

from __future__ import annotations

import torch


def cross_entropy(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
  """Mean NLL of ids [1, n] given those before, nats."""
  return _nll(model, ids).mean()


def longce(
  model: torch.nn.Module,
  ids: torch.Tensor,
  *,
  short_len: int,
  stride: int,
  gamma: float,
) -> torch.Tensor:
  """LongCE of ids [1, n], nats; every window runs, the first one too."""
  nll = _nll(model, ids)
  weights = torch.ones_like(nll)
  with torch.no_grad():
    for start in range(0, ids.shape[1] - short_len, stride):
      window = ids[:, start : start + short_len + stride]
      short = _nll(model, window)[short_len - 1 :]
      first = start + short_len - 1
      own = slice(first, first + len(short))
      weights[own] = torch.exp(short - nll[own])
  return (nll * weights.clamp(max=gamma)).mean()


def _nll(model, ids):
  logits = model(ids).logits[0, :-1]
  return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
