"""What a finished evaluation says: comparison, correlation, one HTML page."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from longctx_jax.evaluation.results import ModelResult
from longctx_jax.report import comparison, figures, heatmap
from longctx_jax.report.comparison import Row
from longctx_jax.report.heatmap import Heatmap
from longctx_jax.report.positions import Curve
from longctx_jax.runtime import urls

_EXCERPT_CHARS = 1200
_CARD_PLOT = 440
# Pixels of a figure on a telephone.
_NARROW = 360
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


def thresholds(results: Sequence[ModelResult]) -> tuple[float, float]:
  """Alpha and beta of the first result that states them, else the paper's."""
  stated = ((r.alpha, r.beta) for r in results if r.alpha is not None)
  return next(stated, (2.0, -2.0))


def render_report(
  results: Sequence[ModelResult],
  documents: Sequence[Mapping[str, Any]],
  output: str | Path,
  *,
  alpha: float = 2.0,
  beta: float = -2.0,
  title: str = "Long-context perplexity",
  baseline: str = "",
  force: bool = False,
  curves: Mapping[str, Sequence[Curve]] | None = None,
  grid: Mapping[str, Any] | None = None,
  difference: Mapping[str, Any] | None = None,
) -> None:
  """Writes one HTML file that needs nothing else, in light and dark.

  The models' LongPPL and PPL as figure and table, each document as a heat map
  of LSD, the distribution of LSD, and what is true by construction. Where they
  are given: sliders for the thresholds, PPL and LSD along the documents, and
  the difference of two models on the key spans.

  Args:
    results: as `load_results` returns them; may be empty.
    documents: as `heatmap.build_heatmap` takes them; may be empty.
    output: path of the file.
    alpha: threshold of LSD behind the key masks, nats.
    beta: threshold of the long log-prob, nats.
    title: heading of the page.
    baseline, force: as `comparison.comparison_rows`.
    curves: "nll" and "lsd" along the documents; see `positions`.
    grid: LongPPL at each pair of thresholds; see `run_page`.
    difference: of two models on the documents; see `difference`.

  Raises:
    NotComparable: the results were not made alike; see `alike`.
    ValueError: a document's arrays differ in length.
  """
  rows = comparison.comparison_rows(results, baseline=baseline, force=force)
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
    columns=comparison.COLUMNS,
    plot=_plot(rows),
    narrow_plot=_plot(rows, width=_NARROW, stacked=True),
    settings=_settings(results, manifest, alpha, beta),
    short_len=f"{manifest['short_len']:,}" if "short_len" in manifest else "K",
    documents=heatmaps,
    shown=None,
    histogram=_histogram(heatmaps, alpha),
    narrow_histogram=_histogram(heatmaps, alpha, width=_NARROW),
    curves=_curve_plots(curves or {}),
    curve_names=[curve.name for curve in (curves or {}).get("nll") or ()],
    grid=Markup(json.dumps(grid)) if grid else None,
    sliders=grid,
    difference=_difference_maps(difference or {}),
    notes=_notes(results, rows, alpha, beta),
    alpha=alpha,
    beta=beta,
  )


def render_card(
  results: Sequence[ModelResult],
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


def _plot(rows: Sequence[Row], **options: Any) -> str:
  return Markup(figures.model_plot(rows, **options)) if rows else ""


def _write(template: str, output: str | Path, **values: Any) -> None:
  urls.require_local(output, flag="output")
  page = render(template, **values)
  # A lone surrogate in a document's text has no UTF-8.
  Path(output).write_text(page, encoding="utf-8", errors="replace")


def render(template: str, **values: Any) -> str:
  """A template of this room, filled.

  Args:
    template: its file.
    values: what it names; a name without a value is an error.
  """
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=jinja2.StrictUndefined,
  )
  environment.filters["ppl"] = comparison.ppl_text
  environment.filters["interval"] = comparison.interval_text
  shared = {"card": False, "edges": heatmap.edge_labels()}
  return environment.get_template(template).render(shared | values)


def _manifest(results: Sequence[ModelResult]) -> Mapping[str, Any]:
  return next((result.keys for result in results if result.keys), {})


def _curve_plots(curves: Mapping[str, Sequence[Curve]]) -> list[Markup]:
  """PPL and LSD along the documents, wide and narrow."""
  if not curves:
    return []
  return [
    Markup(figures.curve_plot(curves["nll"], curves["lsd"], width=width))
    for width in (figures.WIDTH, _NARROW)
  ]


def _difference_maps(difference: Mapping[str, Any]) -> dict[str, Any] | None:
  if not difference or not difference["spans"]:
    return None
  maps = [heatmap.build_heatmap(one) for one in difference["documents"]]
  pieces = [
    (one.doc_id, Markup(one.unscored + one.first_window + one.scored))
    for one in maps
  ]
  return dict(difference) | {"maps": pieces}


def _histogram(
  heatmaps: Sequence[Heatmap], alpha: float, width: int = figures.WIDTH
) -> str:
  lsd = np.concatenate([item.lsd for item in heatmaps] or [np.empty(0)])
  if not lsd.size:
    return ""
  keys = np.concatenate([item.key_mask for item in heatmaps])
  return Markup(figures.lsd_histogram(lsd, keys, alpha=alpha, width=width))


def _settings(
  results: Sequence[ModelResult],
  manifest: Mapping[str, Any],
  alpha: float,
  beta: float,
) -> list[tuple[str, str]]:
  first = next((r for r in results if r.has_numbers), ModelResult())
  settings = {
    "Evaluator": short_name(manifest.get("evaluator") or "") or None,
    "Protocol": first.protocol or None,
    "Short context K": comparison.count_text(manifest.get("short_len")),
    "Stride d": comparison.count_text(manifest.get("stride")),
    "α": f"{alpha:g}",
    "β": f"{beta:g}".replace("-", "−"),
    "Documents": comparison.count_text(first.n_documents),
    "Evaluated": str(first.made.get("date") or "")[:10] or None,
  }
  return [(k, v) for k, v in settings.items() if v not in (None, "-")]


def short_name(path: str) -> str:
  """The last part of a model's path or id."""
  return path.rstrip("/").rpartition("/")[2]


def _made(results: Sequence[ModelResult]) -> list[str]:
  """The commands behind the results, each once, with its models."""
  models: dict[str, list[str]] = {}
  for result in results:
    if result.made:
      made = result.made
      versions = (f"{one} {number}" for one, number in made["versions"].items())
      line = f"{made['command']} ({made['date'][:10]}; {', '.join(versions)})"
      models.setdefault(line, []).append(result.name)
  return [f"{', '.join(names)}: {line}" for line, names in models.items()]


def _notes(
  results: Sequence[ModelResult], rows: Sequence[Row], alpha: float, beta: float
) -> list[str]:
  protocols = {result.protocol for result in results}
  notes = [_PROTOCOLS[p] for p in ("paper", "strict") if p in protocols]
  notes += [
    "Tokens before the first K are never scored. The stride d after them has "
    "the whole text before it as its short context too: LSD is 0 by "
    "construction, and no token there can be key. Only later tokens are "
    "eligible.",
    "Intervals are a jackknife over texts, from 4 that hold key tokens; copies "
    "of a text count once. With fewer, the interval of LongPPL leaves out key "
    "regions (runs of key tokens at most 16 targets apart) and speaks of these "
    "texts only; with fewer than 10 regions there is none. PPL and ratios have "
    "an interval from 4 texts up.",
  ]
  if any(row.result.self_evaluated for row in rows):
    notes.append(
      "A self-evaluated model, or one with nearly its losses, chose the key "
      "tokens itself: β keeps its "
      f"LongPPL below exp({-beta:g}) = {math.exp(-beta):.2f}, and α makes its "
      "short context look worse by a factor of at least "
      f"exp({alpha:g}) = {math.exp(alpha):.2f}. Neither is a finding."
    )
  return [*notes, *comparison.table_notes(rows), *_made(results)]
