"""Controls of the metric: what must come out where there is nothing to find."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper import contrast, perplexity
from longctx_jax.scoring import run, setup
from longctx_jax.text import corpus

# About 1,500 tokens: several windows long, and most of a document after it.
_FOREIGN_CHARS = 6000


@dataclasses.dataclass(frozen=True)
class Shuffled:
  """LongPPL on random positions in place of the key tokens.

  Attributes:
    longppl: on the key tokens.
    shuffled: mean over the shuffles.
    interval: their 2.5th and 97.5th percentile.
    ppl: over all eligible targets, which the shuffles estimate.
    n_key_tokens: number of positions drawn.
  """

  longppl: float
  shuffled: float
  interval: tuple[float, float]
  ppl: float
  n_key_tokens: int


def shuffle_keys(store: KeyTokenStore, *, seed: int, shuffles: int) -> Shuffled:
  """Draws as many eligible targets per document as it has key tokens.

  No model is needed: the stored log-probs are the evaluator's own.
  """
  rng = np.random.default_rng(seed)
  rows = [row for row in store if row.n_eligible]
  eligible = [-row.long_log_probs[-row.n_eligible :] for row in rows]
  counts = [int(row.key_mask.sum()) for row in rows]
  total = sum(counts)
  draws = [
    sum(
      float(rng.choice(nll, count, replace=False).sum())
      for nll, count in zip(eligible, counts, strict=True)
    )
    for _ in range(shuffles)
  ]
  values = np.exp(np.array(draws) / total)
  key_sum = sum(float(-row.long_log_probs[row.key_mask].sum()) for row in rows)
  low, high = np.percentile(values, [2.5, 97.5])
  everything = np.concatenate(eligible)
  return Shuffled(
    longppl=perplexity.perplexity(key_sum, total),
    shuffled=float(values.mean()),
    interval=(float(low), float(high)),
    ppl=perplexity.perplexity(float(everything.sum()), everything.size),
    n_key_tokens=total,
  )


def write_foreign(source: corpus.Corpus, path: pathlib.Path) -> dict[str, int]:
  """Writes each document's second half behind the beginning of another.

  Returns:
    doc_id -> characters of the foreign beginning.
  """
  texts = {document.doc_id: document.text for document in source}
  names = list(texts)
  lines, cuts = [], {}
  for name, other in zip(names, names[1:] + names[:1], strict=True):
    prefix = texts[other][:_FOREIGN_CHARS]
    text = prefix + texts[name][len(texts[name]) // 2 :]
    lines.append(json.dumps({"id": name, "text": text}))
    cuts[name] = len(prefix)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text("\n".join(lines) + "\n")
  return cuts


def count_scored(row: KeyTokens, targets: slice) -> tuple[int, int, int]:
  """(key, mirror, scored) targets in a range.

  A mirror token would be key with long and short exchanged: the noise floor.
  """
  long, short = row.long_log_probs[targets], row.short_log_probs[targets]
  mirror = contrast.key_token_mask(short, long, row.manifest.thresholds)
  return (
    int(row.key_mask[targets].sum()),
    int(mirror.sum()),
    int((~np.isnan(short)).sum()),
  )


def behind_foreign(row: KeyTokens, cut: int) -> slice:
  """Targets whose long context adds foreign text to the short, and no more.

  They are the first K of the document's own part: all of it that stands
  before them lies in their short window.

  Args:
    row: scored.
    cut: first character of the document's own part.
  """
  first = int((row.offsets[:, 0] >= cut).argmax())
  return slice(first, first + row.manifest.windows.short_len)


def same_bits(first: KeyTokenStore, second: KeyTokenStore) -> bool:
  """Whether two stores hold the same log-probs, bit for bit."""
  return all(
    a.long_log_probs.tobytes() == b.long_log_probs.tobytes()
    and a.short_log_probs.tobytes() == b.short_log_probs.tobytes()
    for a, b in zip(first, second, strict=True)
  )


def run_controls(
  config: ConfigDict,
  store: KeyTokenStore,
  model: LoadedModel,
  *,
  workdir: str | pathlib.Path,
) -> dict[str, Any]:
  """Runs all three on a scored corpus.

  Args:
    config: that the corpus was scored with.
    store: of that run.
    model: the evaluator.
    workdir: gets the foreign documents and two more stores.

  Returns:
    JSON-ready numbers: shuffled positions, foreign prefixes, a repeated run.
  """
  workdir = pathlib.Path(workdir)
  again = run.score_corpus(config, workdir=workdir / "again", evaluator=model)
  path = workdir / "data" / "foreign.jsonl"
  cuts = write_foreign(setup.open_corpus(config), path)
  foreign = ConfigDict(config.to_dict())
  foreign.data.sources = (str(path),)
  scored = run.score_corpus(
    foreign, workdir=workdir / "foreign", evaluator=model
  )
  own = np.array([count_scored(row, slice(None)) for row in store]).sum(0)
  behind = np.array(
    [count_scored(r, behind_foreign(r, cuts[r.doc_id])) for r in scored]
  ).sum(0)
  names = ("n_key_tokens", "n_mirror", "n_scored")
  return {
    "shuffled": dataclasses.asdict(shuffle_keys(store, seed=0, shuffles=200)),
    "own_prefix": dict(zip(names, own.tolist(), strict=True)),
    "foreign_prefix": dict(zip(names, behind.tolist(), strict=True)),
    "repeated_run_is_bit_equal": same_bits(store, again),
  }
