"""PPL and LSD along the documents: where in them a model loses."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float, Int

_BINS = 24
# A mean of fewer targets says nothing of a place.
_LEAST = 32


@dataclasses.dataclass
class Curve:
  """Means by position, pooled over documents.

  Attributes:
    name: whose.
    edges: characters, ascending [B + 1].
  """

  name: str
  edges: Float[np.ndarray, " E"]

  def __post_init__(self):
    self._sums = np.zeros(len(self.edges) - 1)
    self._counts = np.zeros(len(self.edges) - 1, int)

  def add(
    self, offsets: Int[np.ndarray, "T 2"], values: Float[np.ndarray, " T"]
  ) -> None:
    """Adds the targets of a document: those that are numbers."""
    known = np.isfinite(values)
    bins = np.searchsorted(self.edges, offsets[known, 0], side="right") - 1
    bins = np.clip(bins, 0, len(self._sums) - 1)
    self._sums += np.bincount(bins, values[known], len(self._sums))
    self._counts += np.bincount(bins, minlength=len(self._counts))

  @property
  def means(self) -> Float[np.ndarray, " B"]:
    """NaN where there are fewer than 32 targets."""
    few = self._counts < _LEAST
    return np.where(few, np.nan, self._sums / np.maximum(self._counts, 1))


def edges_of(lengths: Iterable[int]) -> Float[np.ndarray, " E"]:
  """Edges of equal bins over the longest document, characters."""
  return np.linspace(0, max([1, *lengths]), _BINS + 1)
