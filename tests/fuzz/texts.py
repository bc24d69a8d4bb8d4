"""The texts of the fuzzer: few, so that each is scored once."""

import json

import numpy as np
from support.tiny_runs import D, K

from fuzz import truth
from longctx_jax import testing

# Thresholds of a command; the first is the commonest.
THRESHOLDS = ((0.5, -20.0), (1.0, -20.0), (0.25, -8.0))
LIMIT = 70  # ids, where a command cuts documents


def _make():
  texts = {}
  for seed in range(6):
    # Capitals and digits: names that come back.
    text = testing.synthetic_document(seed, num_words=40)
    texts[f"t{seed}"] = text[: 90 + 5 * seed]
  for char, name in zip(
    "~^|", ("nan_long", "nan_model", "nan_short"), strict=True
  ):
    texts[name] = texts["t0"][:60] + char + texts["t1"][:30]
  return texts | {"short": texts["t2"][:40], "one": "x", "empty": ""}


TEXTS = _make()
GOOD = tuple(name for name in TEXTS if name[0] == "t")
UNREADABLE = "unreadable"


def text_of(name):
  """None for a row that can't be read."""
  return TEXTS.get(name)


def corpus_lines(documents):
  """(id, text) as JSON lines."""
  return "".join(
    json.dumps({"id": doc_id, "text": text}) + "\n"
    for doc_id, text in documents
  )


def slice_text(spans):
  """Spans as the text of a slice file."""
  return ";".join(f"[{start}, {end}]" for start, end in spans)


def margins():
  """Distance of each text's nearest key decision from its threshold, nats."""
  first = K + D - 1  # target that can be key
  for name in GOOD:
    for seed in (0, 1):
      keys = truth.keys(TEXTS[name], seed, *THRESHOLDS[0], None)
      long = keys.long[first:]
      lsd = long - keys.short[first:]
      for alpha, beta in THRESHOLDS:
        yield np.minimum(abs(lsd - alpha), abs(long - beta)).min()
