"""A document as a heat map of LSD: the markup, and what it counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from longctx_jax import metrics, svg

# Class `a` lies below the first edge, `k` from the last one up, nats.
EDGES = (-4.0, -2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0, 4.0)
_LEVELS = "abcdefghijk"
_NEUTRAL = _LEVELS.index("f")
# Control characters as their pictures: a browser would drop or fold them.
_PICTURES = {c: 0x2400 + c for c in range(32) if c not in (9, 10)}


@dataclass(frozen=True)
class Heatmap:
  """One document, ready for the template.

  Attributes:
    doc_id: its name.
    unscored: markup of the targets before the first scored one.
    first_window: markup of the targets whose LSD is 0 by construction.
    scored: markup of the rest.
    track: `svg.lsd_track`.
    track_range: LSD at the lower and the upper edge of the track, nats.
    data: JSON, [long, short] log-probs in thousandths of a nat, null where
      unscored.
    n_targets, n_unscored, n_first_window, n_key, n_regions: counts.
    lsd, key_mask: of the eligible targets, for the histogram.
  """

  doc_id: str
  unscored: str
  first_window: str
  scored: str
  track: str
  track_range: tuple[float, float]
  data: str
  n_targets: int
  n_unscored: int
  n_first_window: int
  n_key: int
  n_regions: int
  lsd: np.ndarray
  key_mask: np.ndarray


def build_heatmap(document: Mapping[str, Any], *, stride: int = 0) -> Heatmap:
  """Prepares one document.

  The first window is found as the leading run of scored targets whose long
  and short log-probs are equal bit for bit, since it reuses the values.

  Args:
    document: `doc_id`, `text`, `offsets` [T, 2], `long_log_probs`,
      `short_log_probs` (NaN where unscored) and `key_mask` [T], by the
      alignment law; `offsets[t]` are the characters of target t.
    stride: longest the first window can be, targets; 0 for no bound.

  Raises:
    ValueError: the arrays differ in length.
  """
  long = np.asarray(document["long_log_probs"], np.float64)
  short = np.asarray(document["short_log_probs"], np.float64)
  key = np.asarray(document["key_mask"], bool)
  offsets = np.asarray(document["offsets"], np.int64).reshape(-1, 2)
  lengths = {len(long), len(short), len(key), len(offsets)}
  if len(lengths) > 1:
    raise ValueError(
      f"document {document['doc_id']!r}: offsets, log-probs and key mask have "
      f"lengths {sorted(lengths)}; each speaks of the same targets."
    )
  lsd = long - short
  unscored = _leading(np.isnan(lsd))
  after = unscored + _leading(lsd[unscored:] == 0)
  after = min(after, unscored + stride) if stride else after
  spans = token_spans(document["text"], offsets, lsd, key)
  track, *edges = svg.lsd_track(lsd, key) if len(lsd) else ("", 0.0, 0.0)
  eligible = ~np.isnan(lsd)
  eligible[:after] = False
  return Heatmap(
    doc_id=str(document["doc_id"]),
    unscored="".join(spans[:unscored]),
    first_window="".join(spans[unscored:after]),
    scored="".join(spans[after:]),
    track=track,
    track_range=tuple(edges),
    data=json.dumps(
      [_thousandths(long), _thousandths(short)], separators=(",", ":")
    ),
    n_targets=len(lsd),
    n_unscored=unscored,
    n_first_window=after - unscored,
    n_key=int(key.sum()),
    n_regions=metrics.count_regions(key),
    lsd=lsd[eligible],
    key_mask=key[eligible],
  )


def token_spans(
  text: str,
  offsets: Int[np.ndarray, "T 2"],
  lsd: Float[np.ndarray, "T"],
  key_mask: Bool[np.ndarray, "T"],
) -> list[str]:
  """Markup of each target: `<b>` where key, else `<i>`, its level as class.

  Characters that no token covers stand as plain text before the next one. A
  token without characters of its own (a further byte of a character, a special
  token) is an empty element, so that the elements count the targets.
  """
  levels = np.where(np.isnan(lsd), _NEUTRAL, np.digitize(lsd, EDGES))
  spans, cursor = [], 0
  for (start, end), level, key, unscored in zip(
    offsets.tolist(), levels, key_mask, np.isnan(lsd), strict=True
  ):
    gap = _escaped(text[cursor:start])
    piece = _escaped(text[max(start, cursor) : end])
    cursor = max(cursor, end)
    tag = "b" if key else "i"
    marked = key or level != _NEUTRAL
    name = " class=u" if unscored else f" class={_LEVELS[level]}"
    if marked:
      # A mark of its own: the background of a line break has no width.
      piece = piece.replace("\n", "<u></u>\n")
    opening = f"<{tag}{name if marked or unscored else ''}>"
    spans.append(f"{gap}{opening}{piece}</{tag}>")
  if spans:
    spans[-1] += _escaped(text[cursor:])
  return spans


def densest_excerpt(
  offsets: Int[np.ndarray, "T 2"],
  key_mask: Bool[np.ndarray, "T"],
  *,
  n_chars: int,
) -> tuple[int, int]:
  """Targets [a, b) of the passage of `n_chars` characters with most key tokens.

  It begins a fifth of its length before the first of them, where it can.
  """
  starts = np.asarray(offsets)[:, 0]
  keys = np.flatnonzero(key_mask)
  begin = starts[keys] if keys.size else starts[:1]
  within = np.searchsorted(begin, begin + 4 * n_chars // 5) - np.arange(
    len(begin)
  )
  origin = max(0, begin[within.argmax()] - n_chars // 5)
  a, b = np.searchsorted(starts, [origin, origin + n_chars])
  return int(a), int(b)


def _leading(flags):
  """Length of the run of True at the start."""
  return int(np.argmin(np.append(flags, False)))


def _escaped(text):
  return escape(text.translate(_PICTURES), quote=False)


def _thousandths(values):
  return [
    None if np.isnan(value) else round(1000 * value)
    for value in values.tolist()
  ]
