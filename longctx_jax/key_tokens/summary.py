"""What a store holds, in numbers: reasons, percentiles, what was cut."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from longctx_jax.key_tokens.record import KeyTokens

PERCENTILES = (10, 50, 90)
# Column -> what a reader is told of it.
_SHOWN = {
  "n_tokens": "targets",
  "key_token_ratio": "key tokens per eligible target",
  "mean_context_benefit": "mean context benefit, nats",
}
_UNREAD = "the text could not be read"
_NOT_FINITE = "log-probs that are no numbers"


class Summary:
  """Counts and percentiles of documents, added one at a time.

  Attributes:
    total: documents.
    reasons: reason -> documents; "" are those with key tokens.
    causes: of documents that failed, why -> how many.
    n_cut: documents that were cut.
    n_targets, n_targets_full: scored targets, and those before the cut.
  """

  def __init__(self, rows: Iterable[Mapping[str, Any]] = ()):
    """Adds rows: columns of a store by name."""
    self.reasons: collections.Counter[str] = collections.Counter()
    self.causes: collections.Counter[str] = collections.Counter()
    self.n_cut = self.n_targets = self.n_targets_full = 0
    self._values: dict[str, list[float]] = {name: [] for name in _SHOWN}
    for row in rows:
      self.add(row)

  @property
  def total(self) -> int:
    """Documents."""
    return self.reasons.total()

  @property
  def cut_share(self) -> float:
    """Share of the targets that were not read, of documents that were."""
    full = self.n_targets_full
    return 1 - self.n_targets / full if full else 0.0

  def add_key_tokens(self, row: KeyTokens) -> None:
    """Adds a record, whose scores are those of its thresholds."""
    fields = ("reason", "text_sha256", "truncated", "n_tokens", "n_tokens_full")
    self.add({name: getattr(row, name) for name in fields} | row.scores)

  def add(self, row: Mapping[str, Any]) -> None:
    """Adds a document."""
    self.reasons[row["reason"]] += 1
    if row["reason"] == "failed":
      self.causes[_NOT_FINITE if row["text_sha256"] else _UNREAD] += 1
    self.n_cut += bool(row["truncated"] and row["n_tokens"])
    self.n_targets += row["n_tokens"]
    self.n_targets_full += row["n_tokens_full"] if row["n_tokens"] else 0
    for name, values in self._values.items():
      value = row.get(name)
      if value is not None and row["n_tokens"]:
        values.append(value)

  def table(self) -> list[tuple[str, int, list[float]]]:
    """(what, documents that have it, its PERCENTILES)."""
    return [
      (_SHOWN[name], len(values), np.percentile(values, PERCENTILES).tolist())
      for name, values in self._values.items()
      if values
    ]

  def __str__(self) -> str:
    """A few lines for the log."""
    heads = "".join(f"{f'p{p}':>10}" for p in PERCENTILES)
    width = max(map(len, _SHOWN.values()))
    lines = [f"{'':{width}}{heads}  documents"]
    for what, count, values in self.table():
      cells = "".join(f"{value:>10,.4g}" for value in values)
      lines.append(f"{what:<{width}}{cells}  {count:,}")
    lines.append(
      f"cut: {self.n_cut:,} of {self.total:,} documents, "
      f"{self.cut_share:.1%} of all targets unread"
    )
    if self.causes:
      said = ", ".join(f"{n:,} {why}" for why, n in self.causes.most_common())
      lines.append(f"failed: {said}")
    return "\n".join(lines)
