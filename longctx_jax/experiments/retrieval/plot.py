"""Curves of the retrieval experiment as SVG."""

from collections.abc import Mapping
from html import escape

import numpy as np
from jaxtyping import Float

from longctx_jax.report.figures import linear_ticks

# A curve is a picture of its own: it brings its colours along.
_CURVE_STYLE = (
  "<style>.curves text{font:12px system-ui,sans-serif;fill:#5b6577}"
  ".curves .grid{stroke:#5b6577;stroke-opacity:.25}"
  ".curves path{fill:none;stroke-linejoin:round}"
  ".curves .seed{stroke-width:1;stroke-opacity:.3}"
  ".curves .mean{stroke-width:2.5}</style>"
)


_CURVE_COLOURS = (
  "#6b7280", "#d1495b", "#2a9d8f", "#edae49", "#8d6cab", "#2f6db3",
)  # fmt: skip


def curve_plot(
  series: Mapping[str, tuple[Float[np.ndarray, "P"], Float[np.ndarray, "R P"]]],
  *,
  x_label: str,
  y_label: str,
) -> str:
  """Shares between 0 and 1 along an axis: thin runs, and their thick mean.

  Args:
    series: name -> (x of the points, y of each run).
    x_label: below the axis, which begins at 0.
    y_label: above the other one.
  """
  width, height, left, right, top, bottom = 760, 400, 44, 16, 58, 44
  end = max((x.max() for x, _ in series.values()), default=1.0) or 1.0

  def at(x: float, y: float) -> str:
    return (
      f"{left + x / end * (width - left - right):.1f} "
      f"{height - bottom - y * (height - bottom - top):.1f}"
    )

  def line(
    x: Float[np.ndarray, "P"], y: Float[np.ndarray, "P"], kind: str, colour: str
  ) -> str:
    points = "L".join(at(*point) for point in zip(x, y, strict=True))
    return f'<path class="{kind}" stroke="{colour}" d="M{points}"/>'

  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" class="curves" role="img" '
    f'viewBox="0 0 {width} {height}" aria-label="{escape(y_label)} by '
    f'{escape(x_label)}">{_CURVE_STYLE}'
  ]
  for level in np.linspace(0, 1, 6):
    _, y = at(0, level).split()
    parts.append(
      f'<path class="grid" d="M{left} {y}H{width - right}"/><text x="'
      f'{left - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{level:.1f}</text>'
    )
  for tick in linear_ticks(0, end, 8):
    x, _ = at(tick, 0).split()
    parts.append(
      f'<text x="{x}" y="{height - bottom + 18}" text-anchor="middle">'
      f"{tick:g}</text>"
    )
  parts.append(
    f'<text x="{(left + width) / 2}" y="{height - 8}" text-anchor="middle">'
    f'{escape(x_label)}</text><text x="4" y="{top - 14}">{escape(y_label)}'
    "</text>"
  )
  for i, (name, (x, y)) in enumerate(series.items()):
    colour = _CURVE_COLOURS[i % len(_CURVE_COLOURS)]
    parts += [line(x, run, "seed", colour) for run in y]
    parts.append(line(x, y.mean(0), "mean", colour))
    # Three names to a line.
    place = left + 60 + i % 3 * 220, 16 + i // 3 * 18
    parts.append(
      f'<path class="mean" stroke="{colour}" d="M{place[0]} {place[1]}h22"/>'
      f'<text x="{place[0] + 28}" y="{place[1] + 4}">{escape(name)}</text>'
    )
  return "".join([*parts, "</svg>"])
