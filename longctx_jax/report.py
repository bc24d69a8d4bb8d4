"""What a finished evaluation says: comparison, correlation, one HTML page."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import jinja2
import numpy as np
import pyarrow.parquet as pq
from markupsafe import Markup

from longctx_jax import comparison, heatmap, metrics, svg, tables
from longctx_jax.comparison import Result, compare_table
from longctx_jax.correlations import Correlation, pearson_ci95, spearman_ci95

__all__ = [
  "Correlations",
  "compare_table",
  "correlate",
  "correlation_table",
  "load_results",
  "render_card",
  "render_report",
]


@dataclass(frozen=True)
class Correlations:
  """Scores against benchmarks over models.

  Attributes:
    rows: (benchmark, score name, Pearson, Spearman).
    left_out: model -> why it takes no part.
  """

  rows: tuple[tuple[str, str, Correlation, Correlation], ...]
  left_out: dict[str, str]


def load_results(workdir: str | Path) -> list[dict[str, Any]]:
  """Reads `results/*.json` and, beside each, `documents/*.parquet`.

  Returns:
    One dict for each model, in the order of the file names: the fields of the
    JSON and `documents`, a dict of columns (empty where there is no file).

  Raises:
    ValueError: there are no results, or a file is no JSON object with a name.
  """
  files, root = fsspec.core.url_to_fs(str(workdir))
  paths = sorted(files.glob(f"{root}/results/*.json"))
  if not paths:
    raise ValueError(
      f"no results in {workdir}/results: run scripts/eval.py with this workdir "
      "first."
    )
  return [_load_result(files, root, path) for path in paths]


def correlate(
  results: Sequence[Result], benchmark_csv: str | Path, *, seed: int = 0
) -> Correlations:
  """Correlates LongPPL and PPL with benchmark scores over models.

  Self-evaluated models take no part: their LongPPL is bounded by construction.

  Args:
    results: as `load_results` returns them.
    benchmark_csv: a column `model` with the results' names, then a column of
      numbers for each benchmark; an empty cell is a missing score.
    seed: of the bootstrap intervals.

  Raises:
    ValueError: the CSV has no such columns, a cell is no number, or a model
      stands there twice.
  """
  scores = _read_benchmarks(benchmark_csv)
  benchmarks = list(next(iter(scores.values()), {}))
  left_out = {
    result["name"]: reason
    for result in results
    if (reason := _why_left_out(result, scores))
  }
  names = {result["name"] for result in results}
  left_out |= {m: "no result" for m in scores if m not in names}
  rows = []
  for benchmark in benchmarks:
    for field, title in (("longppl", "LongPPL"), ("ppl", "PPL")):
      pairs = [
        (result[field], scores[result["name"]][benchmark])
        for result in results
        if result["name"] not in left_out
        and result.get(field) is not None
        and scores[result["name"]][benchmark] is not None
      ]
      x, y = np.array(pairs, np.float64).reshape(-1, 2).T
      pearson = pearson_ci95(x, y, seed=seed)
      rows.append((benchmark, title, pearson, spearman_ci95(x, y, seed=seed)))
  return Correlations(tuple(rows), left_out)


def correlation_table(correlations: Correlations, *, fmt: str) -> str:
  """The correlations as text, markdown, csv or latex, then who is left out."""
  header = ["Benchmark", "Score", "n", "Pearson", "95 %", "Spearman", "95 % "]
  cells = [
    [benchmark, score, str(r.n), *_coefficient(r), *_coefficient(rho)]
    for benchmark, score, r, rho in correlations.rows
  ]
  table = tables.format_table(header, [("", cells)], fmt=fmt)
  if fmt == "csv" or not correlations.left_out:
    return table
  comment = "% " if fmt == "latex" else ""
  lines = [
    f"{comment}left out: {name} ({reason})"
    for name, reason in sorted(correlations.left_out.items())
  ]
  return table + "\n" + "\n".join(lines) + "\n"
