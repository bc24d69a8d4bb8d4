"""Key tokens and stores in memory, from log-probs that no model gave."""

import dataclasses

import numpy as np

from longctx_jax.key_tokens import record, slices
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import make_key_tokens
from longctx_jax.text import corpus
from support import manifests

_MANIFEST = manifests.make()
_PUBLISHED = dataclasses.replace(slices.PUBLISHED, evaluator="E")


def make_row(text, long, short, *, doc_id="d0", manifest=_MANIFEST, **fields):
  """A record of a text whose target t is character t + 1.

  Args:
    text: of one character more than there are log-probs.
    long: nats.
    short: nats, NaN where unscored.
  """
  n = len(long)
  made = dict(
    doc_id=doc_id,
    doc_index=0,
    text_sha256=corpus.text_sha256(text),
    n_chars=len(text),
    n_tokens=n,
    n_tokens_full=n,
    n_eligible=int((~np.isnan(short)).sum()),
    offsets=[(t + 1, t + 2) for t in range(n)],
    long_log_probs=long,
    short_log_probs=short,
  )
  return make_key_tokens(**made | fields, manifest=manifest)


def make_unscored(doc_id, reason, **fields):
  """A record of a text that could not be scored."""
  arrays = ("offsets", "long_log_probs", "short_log_probs")
  fields = dict.fromkeys(arrays) | dict(n_eligible=0) | fields
  return make_row("", [], [], doc_id=doc_id, reason=reason, **fields)


def make_store(*rows):
  """A store of these records."""
  by_id = {row.doc_id: row for row in rows}
  hashes = {row.doc_id: row.text_sha256 for row in rows}
  return store_lib.KeyTokenStore(
    rows[0].manifest if rows else _MANIFEST, hashes, by_id.__getitem__
  )


def keys_of_spans(spans, text, **changes):
  """Key tokens of which only the spans are known, as from slice files."""
  fields = dict(
    doc_id="d",
    doc_index=3,
    text_sha256=corpus.text_sha256(text),
    n_chars=len(text),
    n_tokens=0,
    n_tokens_full=0,
    n_eligible=7,
    offsets=None,
    long_log_probs=None,
    short_log_probs=None,
    manifest=_PUBLISHED,
  )
  made = record.make_key_tokens(**fields | changes)
  spans = np.array(spans, np.int64).reshape(-1, 2)
  return dataclasses.replace(made, spans=spans)
