"""What the numbers are: from the definitions, of texts and weights alone."""

import dataclasses
import functools
import math

import jax
import numpy as np
from support import definition
from support.tiny_runs import D, K

from longctx_jax import testing
from longctx_jax.model.sharding import make_mesh

# A model of these weights gives NaN for a text with the character, in the long
# pass or in the short windows.
DAMAGES = {"~": (0, "long"), "^": (1, "long"), "|": (0, "short")}
_MAX_GAP = 16  # targets, between key tokens of one region
_TOKENIZER = testing.byte_tokenizer()
_DAMAGED_IDS = {
  _TOKENIZER.encode(char).ids[0]: damage for char, damage in DAMAGES.items()
}


@functools.cache
def model(seed):
  """A tiny model of these weights."""
  mesh = make_mesh({"data": 1}, jax.devices()[:1])
  return testing.tiny_model(seed=seed, mesh=mesh)


@functools.cache
def checksums(seeds=4):
  """Checksum -> seed of the weights."""
  return {model(seed).checksum: seed for seed in range(seeds)}


def is_damaged(seed, ids, kind):
  """Whether a pass of these weights over ids gives NaN."""
  kind = "long" if kind == "long" else "short"
  return any(_DAMAGED_IDS.get(i) == (seed, kind) for i in ids)


@functools.cache
def log_probs(seed, text):
  """Nats [n - 1], float64."""
  return definition.log_probs(model(seed), _ids(text))


@functools.cache
def _short_log_probs(seed, text):
  return definition.short_log_probs(
    model(seed), _ids(text), short_len=K, stride=D
  )


def _ids(text):
  return np.array(_TOKENIZER.encode(text).ids, np.int32)


@dataclasses.dataclass(frozen=True)
class Keys:
  """What an evaluator finds in a document, one byte a token.

  Attributes:
    reason: why there are no key tokens, or "".
    n_chars: characters that were read.
    long, short: log-probs of the targets; None where nothing was scored.
    key: their key tokens.
  """

  reason: str
  n_chars: int = 0
  long: np.ndarray | None = None
  short: np.ndarray | None = None
  key: np.ndarray | None = None


def keys(text, seed, alpha, beta, limit):
  """Key tokens of a text (None: it can't be read) under an evaluator."""
  if reason := _unread(text):
    return Keys(reason)
  read = text[:limit]
  long, short = log_probs(seed, read), _short_log_probs(seed, read)
  if _is_nan(read, seed, "long") or (
    len(read) > K + D and _is_nan(read, seed, "short")
  ):
    return Keys("failed")
  with np.errstate(invalid="ignore"):
    key = (long - short > alpha) & (long > beta)
  key[: K + D - 1] = False
  reason = "" if key.any() else "no_key_tokens"
  if len(read) <= K + D:
    reason = "too_short"
  return Keys(reason, len(read), long, short, key)


def sliced_keys(text, spans):
  """Key tokens that a file of spans names."""
  if text is None:
    return Keys("failed")
  key = np.zeros(max(len(text) - 1, 0), bool)
  for start, end in spans:
    key[max(start - 1, 0) : end - 1] = True
  reason = _unread(text) or ("" if spans else "no_key_tokens")
  return Keys(reason, len(text), key=key)


def document(text, found, seed, limit):
  """Columns of a document of documents/<model>.parquet."""
  unread = ("empty", "nothing_to_score", "failed")
  reason = found.reason
  nothing = dict(
    reason=reason, n_tokens=0, nll_sum=0.0, n_key_tokens=0, key_nll_sum=0.0
  )
  if reason in unread:
    return nothing
  read = text[: found.n_chars][:limit]
  if _is_nan(read, seed, "long"):
    return nothing | {"reason": "failed"}
  nll = -log_probs(seed, read)
  key = found.key[: len(nll)]
  if not reason and not key.any():
    reason = "no_key_tokens"
  return dict(
    reason=reason,
    n_tokens=len(nll),
    nll_sum=nll.sum(),
    n_key_tokens=int(key.sum()),
    key_nll_sum=nll[key].sum(),
  )


@dataclasses.dataclass(frozen=True)
class Facts:
  """All that determines the numbers of one model.

  Attributes:
    documents: (id, text) in order; the text is None where it can't be read.
    evaluator: seed of its weights; None where spans come from files.
    model: seed of the weights of the model under test.
    alpha, beta: thresholds.
    evaluator_limit, limit: ids that the two read, None without a limit.
    spans: of each document, where they come from files.
  """

  documents: tuple
  evaluator: int | None
  model: int
  alpha: float
  beta: float
  evaluator_limit: int | None = None
  limit: int | None = None
  spans: tuple | None = None

  def key_tokens(self):
    """Keys by document id."""
    if self.spans is not None:
      return {
        doc_id: sliced_keys(text, spans)
        for (doc_id, text), spans in zip(
          self.documents, self.spans, strict=True
        )
      }
    rules = self.evaluator, self.alpha, self.beta, self.evaluator_limit
    return {doc_id: keys(text, *rules) for doc_id, text in self.documents}

  @functools.cached_property
  def rows(self):
    """Columns by document id."""
    found = self.key_tokens()
    return {
      doc_id: document(text, found[doc_id], self.model, self.limit)
      for doc_id, text in self.documents
    }

  @functools.cached_property
  def result(self):
    """Fields of results/<model>.json."""
    rows = self.rows.values()

    def total(name):
      return sum(row[name] for row in rows)

    ids = sum(row["n_tokens"] + 1 for row in rows if row["n_tokens"])
    weighted = sum(
      row["nll_sum"] / row["n_tokens"] * (row["n_tokens"] + 1)
      for row in rows
      if row["n_tokens"]
    )
    n_keys, key_nll = total("n_key_tokens"), total("key_nll_sum")
    reasons = [row["reason"] for row in rows if row["reason"]]
    return dict(
      alpha=self.alpha,
      beta=self.beta,
      n_documents=len(self.documents),
      n_tokens=total("n_tokens"),
      nll_sum_nats=total("nll_sum"),
      n_key_tokens=n_keys,
      key_nll_sum_nats=key_nll,
      longppl=math.exp(key_nll / n_keys) if n_keys else None,
      ppl=math.exp(weighted / ids) if ids else None,
      null_reasons={reason: reasons.count(reason) for reason in reasons},
    )

  def alike(self):
    """What two models must share to be compared; the order is none of it."""
    spans = self.spans or ((),) * len(self.documents)
    documents = sorted(
      zip(self.documents, spans, strict=True), key=lambda pair: pair[0][0]
    )
    rules = self.evaluator, self.alpha, self.beta, self.evaluator_limit
    return tuple(documents), rules


def is_scored(text, seed, limit):
  """Whether an evaluator can score a text."""
  return keys(text, seed, 0.0, 0.0, limit).long is not None


def _unread(text):
  if text is None:
    return "failed"
  return {0: "empty", 1: "nothing_to_score"}.get(len(text), "")


def _is_nan(text, seed, kind):
  return any(
    char in text and damage == (seed, kind) for char, damage in DAMAGES.items()
  )


def same(found, expected):
  """Whether a number, a text or several are those of the definition."""
  if isinstance(expected, dict):
    return found.keys() == expected.keys() and all(
      same(found[name], expected[name]) for name in expected
    )
  if isinstance(expected, tuple):
    return all(map(same, found, expected))
  if isinstance(found, float) and isinstance(expected, int | float):
    return math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-6)
  return found == expected
