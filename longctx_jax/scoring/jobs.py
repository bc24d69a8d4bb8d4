"""Documents as a scorer gets them, and as it gives them back."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Job:
  """One document to score.

  Attributes:
    key: anything that tells the document apart; comes back with the result.
    ids: what the model reads, int32 [n], n >= 2.
    prefix_len: leading ids (BOS) that are repeated in front of every window
      and count neither in short_len nor as text.
  """

  key: Any
  ids: np.ndarray
  prefix_len: int = 0


@dataclasses.dataclass(frozen=True)
class Scores:
  """Log-probs of a document's targets, float32 [n - 1], in nats.

  `short` is NaN where no window scores the target, and equals `long` in the
  first window, whose context is the full one.
  """

  job: Job
  long: np.ndarray
  short: np.ndarray
