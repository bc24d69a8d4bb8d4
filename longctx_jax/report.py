"""What a finished evaluation says: comparison, correlation, one HTML page."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import jinja2
import numpy as np
import pyarrow.parquet as pq
from markupsafe import Markup

from longctx_jax import comparison, heatmap, svg, tables
from longctx_jax.comparison import Result, compare_table
from longctx_jax.correlations import Correlation, pearson_ci95, spearman_ci95
from longctx_jax.heatmap import heatmap_documents

__all__ = [
  "Correlations",
  "compare_table",
  "correlate",
  "correlation_table",
  "heatmap_documents",
  "load_results",
  "render_card",
  "render_report",
  "thresholds",
]

_EXCERPT_CHARS = 1200
_CARD_PLOT = 440
_PROTOCOLS = {
  "paper": (
    "Protocol paper, as the reference code: the evaluator reads the special "
    "tokens its tokenizer adds, the models read none, later windows begin "
    "without BOS, and PPL weights a document by its ids."
  ),
  "strict": (
    "Protocol strict: the BOS that a tokenizer adds by default stands before "
    "every pass and window and is never scored; PPL weights a document by its "
    "scored targets."
  ),
}


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


def thresholds(results: Sequence[Result]) -> tuple[float, float]:
  """Alpha and beta of the first result that states them, else the paper's."""
  stated = ((r["alpha"], r["beta"]) for r in results if "alpha" in r)
  return next(stated, (2.0, -2.0))


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
  header = ["Benchmark", "Score", "n", "Pearson", "95%", "Spearman", "95% "]
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


def render_report(
  results: Sequence[Result],
  documents: Sequence[Mapping[str, Any]],
  output: str | Path,
  *,
  alpha: float = 2.0,
  beta: float = -2.0,
  title: str = "Long-context perplexity",
  baseline: str = "",
  force: bool = False,
  seed: int = 0,
) -> None:
  """Writes one HTML file that needs nothing else, in light and dark.

  The models' LongPPL and PPL as figure and table, each document as a heat map
  of LSD, the distribution of LSD, and what is true by construction.

  Args:
    results: as `load_results` returns them; may be empty.
    documents: as `heatmap.build_heatmap` takes them; may be empty.
    output: path of the file.
    alpha: threshold of LSD behind the key masks, nats.
    beta: threshold of the long log-prob, nats.
    title: heading of the page.
    baseline, force, seed: as `comparison.comparison_rows`.

  Raises:
    NotComparable: the results were not made alike.
    ValueError: a document's arrays differ in length.
  """
  rows = comparison.comparison_rows(
    results, baseline=baseline, force=force, seed=seed
  )
  manifest = _manifest(results)
  heatmaps = [
    heatmap.build_heatmap(document, stride=manifest.get("stride") or 0)
    for document in documents
  ]
  _write(
    "report.html.j2",
    output,
    title=title,
    rows=rows,
    header=comparison.table_header(baseline),
    groups=comparison.table_groups(rows, baseline),
    plot=_plot(rows),
    settings=_settings(results, manifest, alpha, beta),
    short_len=f"{manifest['short_len']:,}" if "short_len" in manifest else "K",
    documents=heatmaps,
    shown=None,
    histogram=_histogram(heatmaps, alpha),
    notes=_notes(results, rows, alpha, beta),
    alpha=alpha,
    beta=beta,
  )


def render_card(
  results: Sequence[Result],
  document: Mapping[str, Any],
  output: str | Path,
  *,
  alpha: float = 2.0,
  excerpt: tuple[int, int] | None = None,
  title: str = "Where the long context helps",
  subtitle: str = "",
  caption: str = "",
) -> None:
  """Writes a page of exactly 1200 x 700 pixels, light, to be photographed.

  Left a passage of the document as a heat map, right the models.

  Args:
    results: as `load_results` returns them; at most 8 look well.
    document: as `heatmap.build_heatmap` takes it.
    output: path of the HTML file.
    alpha: threshold of LSD behind the key mask, nats.
    excerpt: targets [a, b) to show; None for the passage of 1,200 characters
      that holds most key tokens.
    title: heading.
    subtitle: line below it.
    caption: line below the table, for example the document's source.

  Raises:
    ValueError: the document has no targets, or its arrays differ in length.
  """
  offsets = np.asarray(document["offsets"]).reshape(-1, 2)
  if not len(offsets):
    raise ValueError(
      f"document {document['doc_id']!r} has no targets to show: pass another."
    )
  if excerpt is None:
    excerpt = heatmap.densest_excerpt(
      offsets, document["key_mask"], n_chars=_EXCERPT_CHARS
    )
  rows = comparison.comparison_rows(results)
  _write(
    "card.html.j2",
    output,
    card=True,
    title=title,
    subtitle=subtitle,
    caption=caption,
    excerpt=heatmap.excerpt_markup(document, *excerpt),
    shown=[100 * edge / len(offsets) for edge in excerpt],
    doc=heatmap.build_heatmap(document),
    rows=rows,
    plot=_plot(rows, width=_CARD_PLOT, values=False),
    alpha=alpha,
  )


def _plot(rows, **options):
  return Markup(svg.model_plot(rows, **options)) if rows else ""


def _write(template, output, **values):
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters["ppl"] = comparison.ppl_text
  environment.filters["interval"] = comparison.interval_text
  shared = {"card": False, "edges": heatmap.edge_labels()}
  page = environment.get_template(template).render(shared | values)
  # A lone surrogate in a document's text has no UTF-8.
  Path(output).write_text(page, encoding="utf-8", errors="replace")


def _load_result(files, root, path):
  try:
    result = json.loads(files.cat_file(path))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path} is no JSON: {error}. Evaluate again.") from error
  if not isinstance(result, dict) or "name" not in result:
    raise ValueError(f"{path} is no result: it has no field 'name'.")
  documents = f"{root}/documents/{Path(path).stem}.parquet"
  columns = {}
  if files.exists(documents):
    table = pq.read_table(documents, filesystem=files)
    columns = {
      name: table[name].to_numpy(zero_copy_only=False)
      for name in table.column_names
    }
  return result | {"documents": columns}


def _read_benchmarks(path):
  with fsspec.open(str(path), "rt", encoding="utf-8-sig", newline="") as file:
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


def _score(cell, where):
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


def _why_left_out(result, scores):
  if result.get("self_evaluated"):
    return "self-evaluated"
  if result["name"] not in scores:
    return "not in the benchmark table"
  if result.get("longppl") is None:
    return result.get("reason") or "no LongPPL"
  return ""


def _coefficient(correlation):
  if correlation.value is None:
    return ["-", "-"]
  low, high = correlation.ci95
  return [f"{correlation.value:.3f}", f"[{low:.2f}, {high:.2f}]"]


def _manifest(results):
  return next((r["keys"] for r in results if r.get("keys")), {})


def _histogram(heatmaps, alpha):
  lsd = np.concatenate([item.lsd for item in heatmaps] or [np.empty(0)])
  if not lsd.size:
    return ""
  keys = np.concatenate([item.key_mask for item in heatmaps])
  return Markup(svg.lsd_histogram(lsd, keys, alpha=alpha))


def _settings(results, manifest, alpha, beta):
  first = results[0] if results else {}
  settings = {
    "Evaluator": manifest.get("evaluator"),
    "Protocol": first.get("protocol"),
    "Short context K": comparison.count_text(manifest.get("short_len")),
    "Stride d": comparison.count_text(manifest.get("stride")),
    "α": f"{alpha:g}",
    "β": f"{beta:g}".replace("-", "−"),
    "Documents": comparison.count_text(first.get("n_documents")),
  }
  return [(k, v) for k, v in settings.items() if v not in (None, "-")]


def _notes(results, rows, alpha, beta):
  protocols = {result.get("protocol") for result in results}
  notes = [_PROTOCOLS[p] for p in ("paper", "strict") if p in protocols]
  notes += [
    "Tokens before the first K are never scored. The stride d after them has "
    "the whole text before it as its short context too: LSD is 0 by "
    "construction, and no token there can be key. Only later tokens are "
    "eligible.",
    "Intervals of LongPPL resample documents; with fewer than 8 that hold key "
    "tokens, key regions (runs of key tokens at most 16 targets apart); with "
    "fewer than 10 regions there is no interval. Intervals of PPL and of "
    "ratios resample documents, from 8 up.",
  ]
  if any(row.self_evaluated for row in rows):
    notes.append(
      "A self-evaluated model chose the key tokens itself: β keeps its "
      f"LongPPL below exp({-beta:g}) = {math.exp(-beta):.2f}, and α makes its "
      "short context look worse by a factor of at least "
      f"exp({alpha:g}) = {math.exp(alpha):.2f}. Neither is a finding."
    )
  return notes + [f"{row.name}: {note}" for row in rows for note in row.notes]
