"""The alignment law and the plan of short-context windows.

`ids` is exactly what the model reads. `inputs = ids[:-1]`, `targets = ids[1:]`;
every per-token array has length n - 1, and index t speaks of `ids[t + 1]`.
"""

from __future__ import annotations

import dataclasses

import numpy as np


def align(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Splits ids [n] into inputs [n - 1] and targets [n - 1], one step apart."""
  ids = np.asarray(ids)
  return ids[:-1], ids[1:]


@dataclasses.dataclass(frozen=True)
class WindowPlan:
  """Short-context windows over ids: one row per window.

  Window w feeds ids `[start, start + short_len + stride - 1)` (cut at the end
  of the document) and scores ids `[score_start, score_end)`.

  Attributes:
    start: first id that is fed, int64 [W].
    score_start: first id that is scored, int64 [W].
    score_end: one past the last id that is scored, int64 [W].
  """

  start: np.ndarray
  score_start: np.ndarray
  score_end: np.ndarray

  def __len__(self) -> int:
    return len(self.start)


@dataclasses.dataclass(frozen=True)
class Windows:
  """The paper's short contexts: a window of K + d ids every d ids.

  ValueError unless 1 <= stride <= short_len (paper, A.1).

  Attributes:
    short_len: the paper's K, in ids: the least context of a scored id.
    stride: the paper's d, in ids: what a window scores.
  """

  short_len: int
  stride: int

  def __post_init__(self):
    sizes = self.stride, self.short_len
    are_integers = all(isinstance(size, int) for size in sizes)
    if not are_integers or not 1 <= self.stride <= self.short_len:
      raise ValueError(
        f"stride={self.stride!r} and short_len={self.short_len!r}: the paper's "
        "windows need 1 <= stride <= short_len (paper: stride 1024, short_len "
        "4096)"
      )

  @property
  def length(self) -> int:
    """K + d: ids of a window, those that it scores included."""
    return self.short_len + self.stride

  def plan(self, n: int) -> WindowPlan:
    """Plans the windows that score ids [short_len, n), each exactly once.

    Starts are 0, stride, 2 stride, ... below n - short_len; the window at s
    scores ids [s + short_len, min(s + short_len + stride, n)). An id is so
    predicted from at least short_len and fewer than short_len + stride ids.
    Window 0 has the same context as the long pass (paper, appendix A.1).

    Args:
      n: number of ids.

    Returns:
      The plan; empty when n <= short_len.

    >>> plan = Windows(short_len=4, stride=2).plan(9)
    >>> plan.start.tolist(), plan.score_start.tolist(), plan.score_end.tolist()
    ([0, 2, 4], [4, 6, 8], [6, 8, 9])
    """
    start = np.arange(
      0, max(0, n - self.short_len), self.stride, dtype=np.int64
    )
    score_start = start + self.short_len
    score_end = np.minimum(score_start + self.stride, n)
    return WindowPlan(start, score_start, score_end)

  def count_eligible(self, n: int) -> int:
    """Number of ids that can be key: those scored by a window after the first.

    n_eligible = max(0, n - K - d).
    """
    return max(0, n - self.length)
