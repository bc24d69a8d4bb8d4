"""A document as a heat map of LSD: the markup, and what it counts."""

import bisect
import heapq
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Bool, Float, Int
from markupsafe import Markup

from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.paper import intervals
from longctx_jax.report import alike, figures
from longctx_jax.text import corpus

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
    track: `figures.lsd_track`.
    track_range: LSD at the lower and the upper edge of the track, nats.
    data: JSON, [long, short] log-probs in thousandths of a nat, null where
      unscored.
    n_targets, n_unscored, n_first_window, n_key, n_regions: counts.
    lsd, key_mask: of the eligible targets, for the histogram.
  """

  doc_id: str
  unscored: Markup
  first_window: Markup
  scored: Markup
  track: Markup
  track_range: tuple[float, float]
  data: Markup
  n_targets: int
  n_unscored: int
  n_first_window: int
  n_key: int
  n_regions: int
  lsd: np.ndarray
  key_mask: np.ndarray


def heatmap_documents(
  keys: str | Path,
  sources: Sequence[str],
  text_column: str,
  limit: int,
  *,
  id_column: str = "",
  thresholds: tuple[float, float] | None = None,
  results: Sequence[ModelResult] = (),
) -> list[dict[str, Any]]:
  """Reads the documents with most key tokens, as `build_heatmap` takes them.

  Args:
    keys: a workdir that was scored, or its key_tokens folder.
    sources: the texts that were scored, as `corpus.open_corpus` takes them.
    text_column: column of the text.
    limit: documents at most.
    id_column: column of the document ids.
    thresholds: alpha and beta, nats; None for those of the store.
    results: what the maps stand beside; of these key tokens, or refused.

  Returns:
    Most key tokens first. None at all without texts or without log-probs; the
    log says what to give.

  Raises:
    ValueError: other texts than those that were scored, or other key tokens
      than those of the results (NotComparable).
  """
  if not sources:
    logging.info("no heat maps: name the texts that were scored with --data")
    return []
  try:
    store = store_lib.read_store(keys)
  except FileNotFoundError:
    logging.info(
      "no heat maps: %s holds no key-token store; name one with --keys", keys
    )
    return []
  if store.manifest.detail != "tokens":
    logging.info(
      "no heat maps: %s holds no log-probs of all tokens; score with "
      "--detail tokens",
      keys,
    )
    return []
  if thresholds:
    store = store.with_thresholds(*thresholds)
  alike.check_keys(results, store, where=keys)
  texts = corpus.open_corpus(
    sources, text_column=text_column, id_column=id_column
  )
  scored = (
    (row, document)
    for row, document in store_lib.match_documents(store, texts)
    if row.offsets is not None
  )
  chosen = heapq.nlargest(
    limit, scored, key=lambda pair: pair[0].key_mask.sum()
  )
  return [
    {
      "doc_id": row.doc_id,
      # What was cut off before scoring has no place on the map.
      "text": document.text[: row.n_chars],
      "offsets": row.offsets,
      "long_log_probs": row.long_log_probs,
      "short_log_probs": row.short_log_probs,
      "key_mask": row.key_mask,
    }
    for row, document in chosen
  ]


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
  long, short, key, offsets = _arrays(document)
  lsd = long - short
  unscored = _leading(np.isnan(lsd))
  after = unscored + _leading(lsd[unscored:] == 0)
  after = min(after, unscored + stride) if stride else after
  spans = token_spans(document["text"], offsets, lsd, key)
  track, *edges = figures.lsd_track(lsd, key) if len(lsd) else ("", 0.0, 0.0)
  eligible = ~np.isnan(lsd)
  eligible[:after] = False
  return Heatmap(
    doc_id=str(document["doc_id"]),
    unscored=Markup("".join(spans[:unscored])),
    first_window=Markup("".join(spans[unscored:after])),
    scored=Markup("".join(spans[after:])),
    track=Markup(track),
    track_range=tuple(edges),
    data=Markup(json.dumps([_thousandths(long), _thousandths(short)])),
    n_targets=len(lsd),
    n_unscored=unscored,
    n_first_window=after - unscored,
    n_key=int(key.sum()),
    n_regions=intervals.count_regions(key),
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

  Class `u` is unscored; the middle level, and so most of a text, has none.

  Characters that no token covers stand as plain text before the next one. A
  token without characters of its own (a further byte of a character, a special
  token) is an empty element, so that the elements count the targets.
  """
  spans, cursor = [], 0
  for (start, end), value, key in zip(
    offsets.tolist(), lsd.tolist(), key_mask, strict=True
  ):
    gap = _escaped(text[cursor:start])
    piece = _escaped(text[max(start, cursor) : end])
    cursor = max(cursor, end)
    level = _level(value)
    if key or level not in ("", "u"):
      # A mark of its own: the background of a line break has no width.
      piece = piece.replace("\n", "<u></u>\n")
    tag = "b" if key else "i"
    opening = f"<{tag} class={level}>" if level else f"<{tag}>"
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
  """Targets [a, b) of a passage of `n_chars` characters rich in key tokens.

  Of all passages half as long, it holds the one with most key tokens, after
  an eighth of its length.
  """
  starts = np.asarray(offsets)[:, 0]
  keys = np.flatnonzero(key_mask)
  begin = starts[keys] if keys.size else starts[:1]
  within = np.searchsorted(begin, begin + n_chars // 2) - np.arange(len(begin))
  origin = max(0, begin[within.argmax()] - n_chars // 8)
  a, b = np.searchsorted(starts, [origin, origin + n_chars])
  return int(a), int(b)


def excerpt_markup(document: Mapping[str, Any], begin: int, end: int) -> Markup:
  """The heat map of targets [begin, end) alone; "…" where text precedes."""
  long, short, key, offsets = _arrays(document)
  spans = token_spans(document["text"], offsets, long - short, key)
  return Markup(("… " if begin else "") + "".join(spans[begin:end]).strip())


def edge_labels() -> list[str]:
  """The edges of the colour scale as they are printed below it."""
  names = (f"{edge:+g}".replace("-", "−") for edge in EDGES)
  return [n.replace("0.25", "¼").replace("0.5", "½") for n in names]


def _arrays(
  document: Mapping[str, Any],
) -> tuple[
  Float[np.ndarray, "T"],
  Float[np.ndarray, "T"],
  Bool[np.ndarray, "T"],
  Int[np.ndarray, "T 2"],
]:
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
  return long, short, key, offsets


def _level(lsd: float) -> str:
  if math.isnan(lsd):
    return "u"
  index = bisect.bisect_right(EDGES, lsd)
  return "" if index == _NEUTRAL else _LEVELS[index]


def _leading(flags: Bool[np.ndarray, "T"]) -> int:
  """Length of the run of True at the start."""
  return int(np.argmin(np.append(flags, False)))


def _escaped(text: str) -> str:
  return escape(text.translate(_PICTURES), quote=False)


def _thousandths(values: Float[np.ndarray, "T"]) -> list[int | None]:
  return [
    None if np.isnan(value) else round(1000 * value)
    for value in values.tolist()
  ]
