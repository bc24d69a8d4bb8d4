"""The report's figures as inline SVG: strings that style themselves by CSS.

Colours come from classes and custom properties of the page around them, so
that one figure serves light and dark mode.
"""

from collections.abc import Callable, Sequence
from html import escape

import numpy as np
from jaxtyping import Bool, Float, Int

from longctx_jax.report.comparison import Row, ppl_text
from longctx_jax.report.positions import Curve

WIDTH = 920
_ROW = 28
_HEAD = 52
_TRACK_COLUMNS = 800
# Classes c0, c1, ... of the style.
CURVE_COLOURS = 6
_HISTOGRAM_STEP = 0.25


def model_plot(
  rows: Sequence[Row],
  *,
  width: int = WIDTH,
  values: bool = True,
  stacked: bool = False,
) -> str:
  """LongPPL and PPL of each model, side by side on log scales, or `stacked`.

  A dot and its 95% interval in each panel, the value at its right where
  `values`; models in the order of `rows`, self-evaluated ones hollow and below
  a gap.
  """
  limit = 18 if stacked else 42
  labels = [_shortened(row.result.name, limit) for row in rows]
  left = min(310, 24 + max(7 * len(label) for label in labels))
  ys = _row_positions(rows)
  panel = int(ys[-1]) + _ROW
  height = panel * (2 if stacked else 1)
  margin = 72 if values else 18
  inner = width - left - margin if stacked else (width - left) / 2 - margin
  parts = [
    f'<svg class="figure" viewBox="0 0 {width} {height}" role="img" '
    f'aria-label="LongPPL and PPL of {len(rows)} models">'
  ]
  guides = []
  for row, label, y in zip(rows, labels, ys, strict=True):
    guides.append(
      f'<path class="guide" d="M{left} {y}H{width}"/>'
      f'<text x="{left - 14}" y="{y + 4}" class="end">{escape(label)}'
      f"<title>{escape(row.result.name)}</title></text>"
    )
  scores = [(row.result.longppl, row.result.longppl_ci95) for row in rows]
  parts += guides + _panel("LongPPL", scores, rows, ys, (left, inner), values)
  scores = [(row.result.ppl, row.ppl_ci95) for row in rows]
  if stacked:
    second = _panel("PPL", scores, rows, ys, (left, inner), values)
    below = f'<g transform="translate(0 {panel})">'
    parts += [below, *guides, *second, "</g>"]
  else:
    right = left + inner + margin
    parts += _panel("PPL", scores, rows, ys, (right, inner), values)
  return "".join([*parts, "</svg>"])


def lsd_histogram(
  lsd: Float[np.ndarray, "T"],
  key_mask: Bool[np.ndarray, "T"],
  *,
  alpha: float,
  width: int = WIDTH,
) -> str:
  """Distribution of LSD over eligible tokens, counts on a log scale.

  Bars are 0.25 nats wide; the key tokens among them are drawn in front. What
  lies outside -8 to 16 nats is counted in the outermost bars.
  """
  low = max(-8.0, np.floor(min(lsd.min(), -1.0)))
  high = min(16.0, np.ceil(max(lsd.max(), alpha + 1.0)))
  edges = np.arange(low, high + _HISTOGRAM_STEP / 2, _HISTOGRAM_STEP)
  inside = np.clip(lsd, low, np.nextafter(high, low))
  counts = np.histogram(inside, edges)[0]
  key_counts = np.histogram(inside[key_mask], edges)[0]
  top, bottom, left, right = 24, 210, 64, width - 16
  decades = int(np.ceil(np.log10(1 + counts.max())))

  def x(value: float) -> float:
    return left + (value - low) / (high - low) * (right - left)

  def y(count: int) -> float:
    return bottom - np.log10(1 + count) / decades * (bottom - top)

  def bars(heights: Int[np.ndarray, "B"], name: str) -> str:
    path = "".join(
      f"M{x(a) + 0.5:.1f} {bottom}V{y(n):.1f}H{x(b) - 0.5:.1f}V{bottom}Z"
      for a, b, n in zip(edges, edges[1:], heights, strict=False)
      if n
    )
    return f'<path class="{name}" d="{path}"/>'

  parts = [
    f'<svg class="figure" viewBox="0 0 {width} 256" role="img" '
    'aria-label="Distribution of LSD over eligible tokens">'
  ]
  for exponent in range(decades + 1):
    level = y(10**exponent if exponent else 1)
    parts.append(
      f'<path class="guide" d="M{left} {level:.1f}H{right}"/>'
      f'<text class="tick end" x="{left - 8}" y="{level + 4:.1f}">'
      f"{10**exponent:,}</text>"
    )
  parts += [bars(counts, "bar"), bars(key_counts, "bar-key")]
  for value in linear_ticks(low, high, width / 110):
    parts.append(
      f'<text class="tick mid" x="{x(value):.1f}" y="{bottom + 18}">'
      f"{_signed(value)}</text>"
    )
  parts.append(
    f'<path class="threshold" d="M{x(alpha):.1f} {top - 6}V{bottom}"/>'
    f'<text class="mark" x="{x(alpha) + 6:.1f}" y="{top + 4}">α = {alpha:g}'
    f'</text><path class="axis" d="M{left} {bottom}H{right}"/>'
    f'<text class="tick mid" x="{(left + right) / 2}" y="{bottom + 40}">'
    "LSD, nats (0.25 per bar)</text></svg>"
  )
  return "".join(parts)


def curve_plot(
  losses: Sequence[Curve], lsd: Sequence[Curve], *, width: int = WIDTH
) -> str:
  """PPL of each model along the documents, and the evaluator's LSD below.

  A line per model, on a log scale; a place with few targets is left out.
  """
  left, right, height = 56, width - 12, 190
  edges = lsd[0].edges
  parts = [
    f'<svg class="figure" viewBox="0 0 {width} {2 * height + 40}" role="img" '
    f'aria-label="PPL of {len(losses)} models, and LSD, along the documents">'
  ]

  def x(chars: float) -> float:
    return left + chars / edges[-1] * (right - left)

  for title, curves, top, is_log in (
    ("PPL", losses, 0, True),
    ("LSD, nats", lsd, height, False),
  ):
    values = np.concatenate([curve.means for curve in curves])
    values = values[np.isfinite(values)]
    low, high = (values.min(), values.max()) if values.size else (0.0, 1.0)
    pad = 0.08 * (high - low) + 0.02
    low, high, bottom = low - pad, high + pad, top + height - 8
    if not is_log:
      low = min(low, 0.0)

    def y(value: float, low=low, high=high, top=top, bottom=bottom) -> float:
      return bottom - (value - low) / (high - low) * (bottom - top - 30)

    parts.append(f'<text class="head" x="{left}" y="{top + 16}">{title}</text>')
    ticks = (
      np.log(_log_ticks(np.exp(low), np.exp(high), 4))
      if is_log
      else linear_ticks(low, high, 4)
    )
    for tick in ticks:
      label = f"{np.exp(tick):g}" if is_log else _signed(tick)
      parts.append(
        f'<path class="grid" d="M{left} {y(tick):.1f}H{right}"/>'
        f'<text class="tick end" x="{left - 8}" y="{y(tick) + 4:.1f}">'
        f"{label}</text>"
      )
    for number, curve in enumerate(curves):
      name = f"curve c{number % CURVE_COLOURS}" if is_log else "curve lsd"
      parts.append(
        f'<path class="{name}" d="{_broken_line(curve, x, y)}">'
        f"<title>{escape(curve.name)}</title></path>"
      )
  for tick in linear_ticks(0, edges[-1], width / 130):
    parts.append(
      f'<text class="tick mid" x="{x(tick):.1f}" y="{2 * height + 12}">'
      f"{tick:,.0f}</text>"
    )
  middle = (left + right) / 2
  parts.append(
    f'<text class="tick mid" x="{middle}" y="{2 * height + 32}">'
    "characters from the start of the document</text></svg>"
  )
  return "".join(parts)


def _broken_line(
  curve: Curve, x: Callable[[float], float], y: Callable[[float], float]
) -> str:
  """The path through the middles of the bins; it breaks where there is none."""
  middles = (curve.edges[1:] + curve.edges[:-1]) / 2
  path, pen = [], "M"
  for middle, value in zip(middles, curve.means, strict=True):
    if np.isnan(value):
      pen = "M"
      continue
    path.append(f"{pen}{x(middle):.1f} {y(value):.1f}")
    pen = "L"
  return "".join(path)


def lsd_track(
  lsd: Float[np.ndarray, "T"], key_mask: Bool[np.ndarray, "T"]
) -> tuple[str, float, float]:
  """LSD along a document: for each column the largest and the smallest value.

  Stretches to any width; its labels belong into the page around it. NaN where
  unscored. Key tokens are ticks along the upper edge.

  Returns:
    The SVG and the values, in nats, at its lower and its upper edge.
  """
  n = len(lsd)
  columns = min(_TRACK_COLUMNS, n)
  finite = np.where(np.isnan(lsd), 0.0, lsd)
  starts = np.arange(columns) * n // columns
  highs = np.maximum(np.maximum.reduceat(finite, starts), 0)
  lows = np.minimum(np.minimum.reduceat(finite, starts), 0)
  low = min(-1.0, lows.min() * 1.05)
  high = max(3.0, highs.max() * 1.15)

  def y(value: float) -> float:
    return (high - value) / (high - low) * 100

  def stems(values: Float[np.ndarray, "C"], name: str) -> str:
    path = "".join(
      f"M{i + 0.5:g} {y(0):.1f}V{y(value):.1f}"
      for i, value in enumerate(values)
      if abs(value) > 0.02
    )
    return f'<path class="{name}" d="{path}"/>'

  ticks = "".join(
    f"M{t * columns / n:.1f} 0v6" for t in np.flatnonzero(key_mask)
  )
  svg = (
    f'<svg viewBox="0 0 {columns} 100" preserveAspectRatio="none" '
    f'aria-hidden="true"><path class="axis" d="M0 {y(0):.1f}H{columns}"/>'
    f"{stems(highs, 'gain')}{stems(lows, 'loss')}"
    f'<path class="rug" d="{ticks}"/></svg>'
  )
  return svg, float(low), float(high)


def _panel(
  title: str,
  scores: Sequence[tuple[float | None, tuple[float | None, ...] | None]],
  rows: Sequence[Row],
  ys: Float[np.ndarray, "M"],
  place: tuple[float, float],
  printed: bool,
) -> list[str]:
  """One score of every model on a log scale, from `place` = (left, width)."""
  left, width = place
  marks = [
    number
    for value, interval in scores
    for number in (value, *(interval or ()))
    if number is not None
  ]
  low, high = min(marks, default=1.0) / 1.06, max(marks, default=2.0) * 1.06

  def x(value: float) -> float:
    return left + np.log(value / low) / np.log(high / low) * width

  parts = [f'<text class="head" x="{left}" y="16">{title}</text>']
  bottom = ys[-1] + _ROW / 2
  for tick in _log_ticks(low, high, width / 48) if marks else ():
    parts.append(
      f'<path class="grid" d="M{x(tick):.1f} {_HEAD - 12}V{bottom}"/>'
      f'<text class="tick mid" x="{x(tick):.1f}" y="{_HEAD - 18}">'
      f"{tick:g}</text>"
    )
  for row, (value, interval), y in zip(rows, scores, ys, strict=True):
    if value is None:
      parts.append(_missing(row, title, y, left, width))
      continue
    name = title.lower() + " hollow" * row.result.self_evaluated
    parts.append(_mark(name, x, value, interval, y))
    if printed:
      parts.append(
        f'<text x="{left + width + 10:.1f}" y="{y + 4}">'
        f"{ppl_text(value)}</text>"
      )
  return parts


def _mark(
  name: str,
  x: Callable[[float], float],
  value: float,
  interval: tuple[float | None, ...] | None,
  y: float,
) -> str:
  """A dot, and its whisker where both ends are known."""
  whisker = ""
  if interval is not None and None not in interval:
    low, high = map(x, interval)
    kind = name.partition(" ")[0]
    whisker = f'<path class="whisker {kind}" d="M{low:.1f} {y}H{high:.1f}"/>'
  return (
    f'{whisker}<circle class="dot {name}" cx="{x(value):.1f}" cy="{y}" r="5"/>'
  )


def _missing(row: Row, title: str, y: float, left: float, width: float) -> str:
  """Why there is no number: at LongPPL, where the reader looks first."""
  why = row.notes[0] if row.notes and title == "LongPPL" else "–"
  return (
    f'<text class="tick" x="{left}" y="{y + 4}">'
    f"{escape(_shortened(why, int(width / 6.5)))}</text>"
  )


def _row_positions(rows: Sequence[Row]) -> Float[np.ndarray, "M"]:
  own = [row.result.self_evaluated for row in rows]
  gap = np.cumsum([False, *np.diff(own)])
  return _HEAD + _ROW * (np.arange(len(rows)) + 0.5 + 0.5 * gap)


def _shortened(name: str, limit: int = 42) -> str:
  half = (limit - 1) // 2
  return name if len(name) <= limit else f"{name[:half]}…{name[-half:]}"


def linear_ticks(
  low: float, high: float, count: float
) -> Float[np.ndarray, "N"]:
  """At most about `count` round values between two bounds, ascending."""
  rough = (high - low) / count
  power = 10 ** np.floor(np.log10(rough))
  step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
  return np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step


def _log_ticks(low: float, high: float, count: float) -> Float[np.ndarray, "N"]:
  if high / low < 8:
    return linear_ticks(low, high, count)
  powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.log10(high) + 1)
  # Three to the decade where they fit: log ticks stand unevenly.
  mantissas = (1, 2, 5) if 2 * np.log10(high / low) <= count else (1,)
  ticks = np.outer(powers, mantissas).ravel()
  return ticks[(ticks >= low) & (ticks <= high)]


def _signed(value: float) -> str:
  return f"{value + 0.0:g}".replace("-", "−")  # No minus before a zero.
