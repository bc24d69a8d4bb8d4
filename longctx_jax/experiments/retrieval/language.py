"""The language of the synthetic documents: its words, and what follows what."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jaxtyping import Int

# Special ids; 2 is unused.
BOS, LINE, END = 0, 1, 3
FIRST_NAME = 4


@dataclasses.dataclass(frozen=True)
class Language:
  """A vocabulary of whole words, and which filler word follows which.

  Attributes:
    names: words for names.
    values: words that values are made of.
    fillers: words of the Markov chain.
    value_len: tokens of a value.
    branches: words that can follow a filler word.
    seed: of the chain; one language is one for a whole experiment.
  """

  names: int = 32
  values: int = 32
  fillers: int = 64
  value_len: int = 1
  branches: int = 4
  seed: int = 1234

  @property
  def vocab_size(self) -> int:
    """Number of ids."""
    return self.first_filler + self.fillers

  @property
  def first_value(self) -> int:
    """Id of the first value word."""
    return FIRST_NAME + self.names

  @property
  def first_filler(self) -> int:
    """Id of the first filler word."""
    return self.first_value + self.values

  @property
  def statement_len(self) -> int:
    """Tokens of a statement."""
    return 3 + self.value_len

  @functools.cached_property
  def chain(self) -> tuple[np.ndarray, np.ndarray]:
    """Successors int [F, branches] and their cumulated probabilities."""
    rng = np.random.default_rng(self.seed)
    successors = np.argsort(rng.random((self.fillers, self.fillers)), axis=1)
    shares = rng.dirichlet(np.ones(self.branches), size=self.fillers)
    cumulated = np.cumsum(shares, axis=1)
    cumulated[:, -1] = 1.0
    return successors[:, : self.branches], cumulated

  def filler(
    self, rng: np.random.Generator, count: int, length: int
  ) -> Int[np.ndarray, "B n"]:
    """Documents of filler words alone, after a BOS.

    Args:
      rng: draws the words.
      count: B.
      length: n, ids of a document.
    """
    successors, cumulated = self.chain
    drawn = rng.random((length, count))
    words = np.empty((length, count), np.int32)
    words[0] = rng.integers(self.fillers, size=count)
    for t in range(1, length):
      branch = (drawn[t, :, None] > cumulated[words[t - 1]]).sum(axis=1)
      words[t] = successors[words[t - 1], branch]
    ids = words.T + self.first_filler
    ids[:, 0] = BOS
    return np.ascontiguousarray(ids, np.int32)
