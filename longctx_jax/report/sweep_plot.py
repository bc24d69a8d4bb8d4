"""A sweep, written: its table, and one SVG file that styles itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from html import escape

from longctx_jax.report import sweep as sweep_lib
from longctx_jax.report.sweep import Cell
from longctx_jax.runtime import files, urls

_PANEL, _HEIGHT, _LEFT, _TOP = 250, 210, 64, 46
_GAP, _LEGEND_ROW = 40, 20
# Distinguishable for most colour-blind people, on white and on near-black.
_COLOURS = (
  "#3274b5", "#d1772a", "#3a8f5b", "#b5476b", "#7a63b8", "#8a7a2c",
)  # fmt: skip
_DASHES = ("", "6 3", "2 3")
_STYLE = (
  "svg{background:#fff;color:#222;font:12px system-ui,sans-serif}"
  "text{fill:currentColor}.grid{stroke:currentColor;opacity:.15}"
  ".axis{stroke:currentColor;opacity:.5;fill:none}.mid{text-anchor:middle}"
  ".end{text-anchor:end}.line{fill:none;stroke-width:2}"
  "@media(prefers-color-scheme:dark){svg{background:#161616;color:#ddd}}"
)


def write(
  workdir: str,
  *,
  keys: Sequence[str] = (),
  alpha: str,
  beta: str,
  fmt: str,
  output: str = "",
  force: bool = False,
) -> str:
  """The table of a sweep, whose picture is written.

  Args:
    workdir, keys, force: see `sweep.sweep`.
    alpha, beta: values with commas between, nats.
    fmt: of the table; notes stand below those that people read.
    output: the picture; "" is sweep.svg in the workdir, or here for a URL.

  Raises:
    ValueError, FileNotFoundError: see `sweep.sweep` and `sweep_plot`.
  """
  cells = sweep_lib.sweep(
    workdir,
    keys=keys,
    alpha=sweep_lib.parse_values(alpha, flag="alpha"),
    beta=sweep_lib.parse_values(beta, flag="beta"),
    force=force,
  )
  path = output or (
    "sweep.svg" if urls.scheme(workdir) else f"{workdir}/sweep.svg"
  )
  files.write_text(path, sweep_plot(cells))
  table = sweep_lib.sweep_table(cells, fmt=fmt)
  if fmt in ("csv", "latex"):
    return table
  return "\n".join([table, *sweep_lib.notes(cells), f"picture: {path}"])


def sweep_plot(cells: Sequence[Cell]) -> str:
  """LongPPL over alpha on a log scale: a panel per beta, K and d.

  A line per model; a model without key tokens has a gap there.

  Raises:
    ValueError: no cell has a LongPPL.
  """
  values = [cell.longppl for cell in cells if cell.longppl is not None]
  if not values:
    raise ValueError("no setting of the sweep leaves a key token: lower alpha")
  low, high = math.log(min(values)), math.log(max(values))
  low, high = (
    low - 0.05 * (high - low) - 0.02,
    high + 0.05 * (high - low) + 0.02,
  )
  models = list(dict.fromkeys(sorted(cell.model for cell in cells)))
  panels = list(dict.fromkeys((c.short_len, c.stride, c.beta) for c in cells))
  alphas = sorted({cell.alpha for cell in cells})
  width = _LEFT + len(panels) * (_PANEL + _GAP)
  height = _TOP + _HEIGHT + 46 + _LEGEND_ROW * len(models)

  def y(value: float) -> float:
    return _TOP + (high - math.log(value)) / (high - low) * _HEIGHT

  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    f'width="{width}" role="img" aria-label="LongPPL of {len(models)} models '
    f'at {len(panels) * len(alphas)} settings"><style>{_STYLE}</style>'
  ]
  for number, (short_len, stride, beta) in enumerate(panels):
    left = _LEFT + number * (_PANEL + _GAP)
    own = [c for c in cells if (c.short_len, c.stride, c.beta)
           == (short_len, stride, beta)]  # fmt: skip

    def x(alpha: float, left: float = left) -> float:
      span = alphas[-1] - alphas[0] or 1.0
      return left + 12 + (alpha - alphas[0]) / span * (_PANEL - 24)

    parts.append(
      f'<text x="{left}" y="20">β = {beta:g}</text><text x="{left}" y="36" '
      f'opacity=".65">K = {short_len:,}, d = {stride:,}</text>'
    )
    for tick in _ticks(math.exp(low), math.exp(high)):
      parts.append(
        f'<path class="grid" d="M{left} {y(tick):.1f}h{_PANEL}"/>'
        + (
          f'<text class="end" x="{left - 8}" y="{y(tick) + 4:.1f}">{tick:g}'
          "</text>"
          if not number
          else ""
        )
      )
    bottom = _TOP + _HEIGHT
    parts += [
      f'<path class="axis" d="M{left} {bottom}h{_PANEL}"/>',
      *(
        f'<text class="mid" x="{x(a):.1f}" y="{bottom + 18}">{a:g}</text>'
        for a in alphas
      ),
      f'<text class="mid" x="{left + _PANEL / 2}" y="{bottom + 36}">α</text>',
    ]
    for i, model in enumerate(models):
      line = sorted(
        (c for c in own if c.model == model), key=lambda cell: cell.alpha
      )
      parts += _line(line, x, y, i)
  for i, model in enumerate(models):
    level = _TOP + _HEIGHT + 52 + i * _LEGEND_ROW
    parts.append(
      f'<path class="line" d="M{_LEFT} {level}h24" {_stroke(i)}/>'
      f'<text x="{_LEFT + 34}" y="{level + 4}">{escape(model)}</text>'
    )
  return "".join([*parts, "</svg>\n"])


def _line(cells, x, y, number):
  """Runs of points that follow each other, and a dot for each."""
  parts = []
  for is_there, run in itertools.groupby(
    cells, lambda c: c.longppl is not None
  ):
    if not is_there:
      continue
    points = [(x(cell.alpha), y(cell.longppl)) for cell in run]
    path = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
    parts.append(f'<path class="line" d="M{path}" {_stroke(number)}/>')
    parts += [
      f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" '
      f'fill="{_COLOURS[number % len(_COLOURS)]}"/>'
      for a, b in points
    ]
  return parts


def _stroke(number: int) -> str:
  colour = _COLOURS[number % len(_COLOURS)]
  dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
  return f'stroke="{colour}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _ticks(low: float, high: float) -> list[float]:
  """Round values of a log scale between two bounds."""
  powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
  steps = (1, 2, 5) if high / low < 1000 else (1,)
  if high / low < 3:
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
  found = [float(f"{s * 10.0**p:.6g}") for p in powers for s in steps]
  return [tick for tick in found if low <= tick <= high]
