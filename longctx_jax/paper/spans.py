"""Character spans: merging, projection onto tokens, the slice files.

Spans and offsets are int64 [S, 2] arrays of half-open character (code point)
offsets into one text.
"""

import os
import pathlib
import re

import numpy as np
from numpy.typing import ArrayLike

# At most 18 digits: what fits into int64.
_SPAN = re.compile(r"\[([0-9]{1,18}), ([0-9]{1,18})\]")


_POLICIES = ("contained", "overlap")


def merge_adjacent(spans: ArrayLike) -> np.ndarray:
  """Merges spans that touch or overlap.

  The reference merges only where the next start equals the last end, and so
  keeps the repeated spans of byte-level tokens of one character apart (paper,
  code of section 1.6). Here they collapse. Tokens cut like the evaluator's
  count the same; a longer token of another tokenizer can be contained in the
  collapsed span, and in none of the repeated ones.

  Args:
    spans: int [S, 2], in any order. Spans without characters are dropped.

  Returns:
    int64 [S', 2], sorted; between two of them lies at least one character.

  Raises:
    ValueError: the shape is not [S, 2].

  >>> merge_adjacent([(4, 6), (0, 2), (2, 3)]).tolist()
  [[0, 3], [4, 6]]
  """
  spans = _sorted_spans(spans)
  if not len(spans):
    return spans
  starts, ends = spans[:, 0], np.maximum.accumulate(spans[:, 1])
  opens = np.append(True, starts[1:] > ends[:-1])
  return np.stack([starts[opens], ends[np.append(opens[1:], True)]], axis=1)


def project(spans: ArrayLike, offsets: ArrayLike, *, policy: str) -> np.ndarray:
  """Marks the tokens that lie in spans cut by another tokenizer.

  Args:
    spans: int [S, 2], in any order, overlapping or not.
    offsets: int [T, 2], the characters of each token.
    policy: "contained" (the paper's): the token [a, b), a < b, lies wholly
      inside one span; a token without characters never does. "overlap": the
      token shares a character with a span; one without characters counts as
      touching character a.

  Returns:
    bool [T].

  Raises:
    ValueError: another policy, or a shape that is not [_, 2].

  >>> tokens, spans = [(0, 4), (4, 8), (8, 10)], [(3, 5), (8, 10)]
  >>> project(spans, tokens, policy="contained").tolist()
  [False, False, True]
  >>> project(spans, tokens, policy="overlap").tolist()
  [True, True, True]
  """
  if policy not in _POLICIES:
    raise ValueError(f"policy is {policy!r}; known: {', '.join(_POLICIES)}.")
  spans, offsets = _sorted_spans(spans), _pairs(offsets)
  starts, ends = offsets[:, 0], offsets[:, 1]
  # Of all spans that begin early enough, the one that ends last decides.
  last_end = np.maximum.accumulate(np.append(-1, spans[:, 1]))
  if policy == "contained":
    reach = last_end[np.searchsorted(spans[:, 0], starts, side="right")]
    return (starts < ends) & (ends <= reach)
  ends = np.maximum(ends, starts + 1)
  reach = last_end[np.searchsorted(spans[:, 0], ends, side="left")]
  return starts < reach


def covered_share(
  spans: ArrayLike, offsets: ArrayLike, token_mask: ArrayLike
) -> float | None:
  """Share of the characters in spans that the masked tokens cover.

  Args:
    spans: int [S, 2], in any order, overlapping or not.
    offsets: int [T, 2], the characters of each token.
    token_mask: bool [T].

  Returns:
    A number from 0 to 1; None where the spans hold no character.

  Raises:
    ValueError: a shape that is not [_, 2].
  """
  spans = merge_adjacent(spans)
  tokens = merge_adjacent(_pairs(offsets)[np.asarray(token_mask, bool)])
  n_characters = int(np.sum(spans[:, 1] - spans[:, 0]))
  if not n_characters:
    return None
  if not len(tokens):
    return 0.0
  # Covered characters before x: slope 1 inside a token, 0 between tokens.
  lengths = tokens[:, 1] - tokens[:, 0]
  before = np.cumsum(lengths) - lengths
  covered = np.interp(
    spans, tokens.ravel(), np.stack([before, before + lengths], 1).ravel()
  )
  return float(np.sum(covered[:, 1] - covered[:, 0])) / n_characters


def read_slices(path: str | os.PathLike) -> np.ndarray:
  """Reads the reference's slice file, `[a, b];[c, d]`, evaluating nothing.

  Args:
    path: a local file. An empty file holds no spans.

  Returns:
    int64 [S, 2], in the order of the file.

  Raises:
    ValueError: anything but that grammar, or a span that does not end after
      its start; the file, the character position and the text are named.
  """
  text = pathlib.Path(path).read_bytes().decode("utf-8", errors="replace")
  spans, position = [], 0
  for piece in text.split(";") if text else ():
    match = _SPAN.fullmatch(piece)
    if not match or int(match[1]) >= int(match[2]):
      raise ValueError(
        f"{path}, character {position}: {piece[:60]!r} is no span. Expected "
        "'[start, end]' with 0 <= start < end, joined by ';', and nothing else."
      )
    spans.append((int(match[1]), int(match[2])))
    position += len(piece) + 1
  return _pairs(spans)


def write_slices(path: str | os.PathLike, spans: ArrayLike) -> None:
  """Writes spans as the reference's slice file, `[a, b];[c, d]`.

  Args:
    path: a local file, overwritten.
    spans: int [S, 2]. No spans give an empty file.

  Raises:
    ValueError: a negative start, or a span that does not end after its start.
  """
  spans = _pairs(spans)
  wrong = (spans[:, 0] < 0) | (spans[:, 1] <= spans[:, 0])
  if wrong.any():
    raise ValueError(
      f"span {spans[wrong][0].tolist()} can't be written to {path}: expected "
      "0 <= start < end."
    )
  pathlib.Path(path).write_text(
    ";".join(f"[{start}, {end}]" for start, end in spans.tolist())
  )


def _pairs(spans: ArrayLike) -> np.ndarray:
  spans = np.asarray(spans)
  if not spans.size:
    return np.zeros((0, 2), np.int64)
  if spans.ndim != 2 or spans.shape[1] != 2:
    raise ValueError(f"spans have shape {spans.shape}; expected [S, 2].")
  return spans.astype(np.int64)


def _sorted_spans(spans: ArrayLike) -> np.ndarray:
  spans = _pairs(spans)
  spans = spans[spans[:, 0] < spans[:, 1]]
  return spans[np.argsort(spans[:, 0], kind="stable")]
