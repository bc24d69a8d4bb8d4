"""Correlation of two scores over models, with bootstrap intervals."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from longctx_jax.evaluation.results import ModelResult
from longctx_jax.report import alike, tables
from longctx_jax.runtime import failures, urls

MIN_PAIRS = 6


class Correlation(NamedTuple):
  """A correlation coefficient, its 95 % interval and the pairs behind it.

  `value` and `ci95` are None where there are fewer than 6 pairs, which say
  nothing, or one side is constant.
  """

  value: float | None
  ci95: tuple[float, float] | None
  n: int


def pearson_ci95(
  x: ArrayLike,
  y: ArrayLike,
  *,
  seed: int,
  resamples: int = 10_000,
) -> Correlation:
  """Pearson's r with a bootstrap interval over pairs.

  Resamples in which one side is constant have no r and are left out.

  Raises:
    ValueError: x and y differ in length.
  """
  return _correlation(x, y, lambda rows: rows, seed, resamples)


def spearman_ci95(
  x: ArrayLike,
  y: ArrayLike,
  *,
  seed: int,
  resamples: int = 10_000,
) -> Correlation:
  """Spearman's rank correlation, as `pearson_ci95`; ties share their rank."""
  return _correlation(
    x, y, lambda rows: stats.rankdata(rows, axis=-1), seed, resamples
  )


def _correlation(
  x: ArrayLike,
  y: ArrayLike,
  transform: Callable[[np.ndarray], np.ndarray],
  seed: int,
  resamples: int,
) -> Correlation:
  pairs = np.stack([np.asarray(x, np.float64), np.asarray(y, np.float64)])
  n = pairs.shape[1]
  value = _row_correlation(transform(pairs)) if n >= MIN_PAIRS else np.nan
  if np.isnan(value):
    return Correlation(None, None, n)
  drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
  values = _row_correlation(transform(pairs[:, drawn]))
  low, high = np.nanpercentile(values, [2.5, 97.5])
  return Correlation(float(value), (float(low), float(high)), n)


def _row_correlation(
  pairs: Float[np.ndarray, "2 *R M"],
) -> Float[np.ndarray, "*R"]:
  x, y = pairs - pairs.mean(axis=-1, keepdims=True)
  constant = np.ptp(pairs, axis=-1).min(axis=0) == 0
  scale = np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
  return np.clip((x * y).sum(-1) / np.where(constant, np.nan, scale), -1.0, 1.0)


@dataclass(frozen=True)
class Correlations:
  """Scores against benchmarks over models.

  Attributes:
    rows: (benchmark, score name, Pearson, Spearman).
    left_out: model -> why it takes no part.
  """

  rows: tuple[tuple[str, str, Correlation, Correlation], ...]
  left_out: dict[str, str]


def correlate(
  results: Sequence[ModelResult],
  benchmark_csv: str | Path,
  *,
  force: bool = False,
  seed: int = 0,
) -> Correlations:
  """Correlates LongPPL and PPL with benchmark scores over models.

  Self-evaluated models take no part: their LongPPL is bounded by construction.

  Args:
    results: as `load_results` returns them.
    benchmark_csv: a column `model` with the results' names, then a column of
      numbers for each benchmark; an empty cell is a missing score.
    force: correlate results that were not made alike.
    seed: of the bootstrap intervals.

  Raises:
    NotComparable: see `alike.check_comparable`.
    ValueError: the CSV has no such columns, a cell is no number, or a model
      stands there twice.
  """
  scores = _read_benchmarks(benchmark_csv)
  benchmarks = list(next(iter(scores.values()), {}))
  left_out = {
    result.name: reason
    for result in results
    if (reason := _why_left_out(result, scores))
  }
  if not force:
    taken = [result for result in results if result.name not in left_out]
    alike.check_comparable(taken)
  names = {result.name for result in results}
  left_out |= {m: "no result" for m in scores if m not in names}
  rows = []
  for benchmark in benchmarks:
    for field, title in (("longppl", "LongPPL"), ("ppl", "PPL")):
      pairs = [
        (getattr(result, field), scores[result.name][benchmark])
        for result in results
        if result.name not in left_out
        and getattr(result, field) is not None
        and scores[result.name][benchmark] is not None
      ]
      x, y = np.array(pairs, np.float64).reshape(-1, 2).T
      pearson = pearson_ci95(x, y, seed=seed)
      rows.append((benchmark, title, pearson, spearman_ci95(x, y, seed=seed)))
  return Correlations(tuple(rows), left_out)


def correlation_table(correlations: Correlations, *, fmt: str) -> str:
  """The correlations as text, markdown, csv or latex, then who is left out."""
  header = ["Benchmark", "Score", "n", "Pearson", "95%", "Spearman", "95% "]
  cells = [
    [benchmark, score, str(r.n), *_coefficient(r), *_coefficient(rho)]
    for benchmark, score, r, rho in correlations.rows
  ]
  table = tables.format_table(header, [("", cells)], fmt=fmt)
  lines = [
    f"left out: {name} ({reason})"
    for name, reason in sorted(correlations.left_out.items())
  ]
  if any(row[2].n < MIN_PAIRS for row in correlations.rows):
    lines.append(f"fewer than {MIN_PAIRS} models carry no coefficient")
  if fmt == "csv" or not lines:
    return table
  comment = "% " if fmt == "latex" else ""
  return table + "\n" + "".join(f"{comment}{line}\n" for line in lines)


def _read_benchmarks(path: str | Path) -> dict[str, dict[str, float | None]]:
  if not str(path):
    raise ValueError(
      "no benchmark scores are named: give --benchmarks FILE.csv, a column "
      "'model' and a column for each benchmark"
    )
  fs, root = urls.open_file_system(path)
  with (
    failures.reading(path),
    urls.reaching(path),
    fs.open(root, "rb") as raw,
    io.TextIOWrapper(raw, "utf-8-sig", newline="") as file,
  ):
    reader = csv.DictReader(file)
    names = [name for name in reader.fieldnames or [] if name != "model"]
    if "model" not in (reader.fieldnames or []) or not names:
      raise ValueError(
        f"{path}: the columns are {reader.fieldnames}; a benchmark table has "
        "'model' and at least one benchmark."
      )
    scores = {}
    for record in reader:
      where = f"{path}, line {reader.line_num}"
      if record["model"] in scores:
        raise ValueError(f"{where}: {record['model']!r} stands there twice.")
      scores[record["model"]] = {
        name: _score(record[name], f"{where}, column {name!r}")
        for name in names
      }
  return scores


def _score(cell: str | None, where: str) -> float | None:
  if not (cell or "").strip():
    return None
  try:
    value = float(cell)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise ValueError(
      f"{where}: {cell!r} is no finite number; leave a missing score empty."
    )
  return value


def _why_left_out(
  result: ModelResult, scores: Mapping[str, Mapping[str, float | None]]
) -> str:
  if result.self_evaluated:
    return "self-evaluated"
  if result.name not in scores:
    return "not in the benchmark table"
  if result.longppl is None:
    return result.reason or "no LongPPL"
  return ""


def _coefficient(correlation: Correlation) -> list[str]:
  if correlation.value is None:
    return ["-", "-"]
  low, high = correlation.ci95
  return [f"{correlation.value:.3f}", f"[{low:.2f}, {high:.2f}]"]
