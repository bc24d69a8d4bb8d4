"""Key-token stores of random numbers, and what must be in them."""

import dataclasses

import numpy as np
import pyarrow.parquet as pq

from longctx_jax.key_tokens import record as record_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.text import corpus as corpus_lib
from support import manifests

MANIFEST = manifests.make()


def record(index, *, n=40, manifest=MANIFEST, **fields):
  """Random log-probs, unscored in front, with a few key tokens."""
  rng = np.random.default_rng(index)
  ends = np.cumsum(rng.integers(1, 8, n))
  offsets = np.stack([ends - 1, ends], axis=1)
  long = -rng.exponential(1.0, n)
  short = long - rng.exponential(1.0, n)
  short[:4] = np.nan
  fields = {
    "doc_id": f"d{index}",
    "doc_index": index,
    "text_sha256": corpus_lib.text_sha256(f"text {index}"),
    "n_chars": 9,
    "n_tokens": n,
    "n_tokens_full": n + 1,
    "n_eligible": max(0, n - 5),
    "offsets": offsets,
    "long_log_probs": long,
    "short_log_probs": short,
    "truncated": True,
    "scores": {"mean_context_benefit": 0.5, "n_mirror": 2, "p75_x": None},
    "columns": {"lang": "en", "tags": ["a", "b"]},
    **fields,
  }
  return record_lib.make_key_tokens(**fields, manifest=manifest)


def unscored(index, reason="failed"):
  """The record of a document without scores."""
  arrays = ("offsets", "long_log_probs", "short_log_probs")
  return record(
    index, n=0, reason=reason, text_sha256="", **dict.fromkeys(arrays)
  )


def write(folder, *batches, **kwargs):
  """Writes each batch as a part; returns the writer."""
  writer = writer_lib.open_writer(folder, MANIFEST, **kwargs)
  for batch in batches:
    writer.write(batch)
  return writer


def assert_same(a, b):
  """Equal in all but the manifest."""
  for field in dataclasses.fields(a):
    if field.name != "manifest":
      x, y = getattr(a, field.name), getattr(b, field.name)
      if isinstance(x, np.ndarray):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
      else:
        assert x == y


def assert_same_store(folder, records):
  """The store holds these records, in order."""
  store = store_lib.read_store(folder)
  assert len(store) == len(records)
  for stored, expected in zip(store, records, strict=True):
    assert_same(stored, expected)


def document(index, text=None):
  """The document whose record `record` makes."""
  text = f"text {index}" if text is None else text
  return corpus_lib.Document(f"d{index}", index, text, None, {})


def without_metadata(path):
  """As parts were before each repeated the manifest."""
  table = pq.read_table(path)
  scores = {b"longctx_jax.scores": table.schema.metadata[b"longctx_jax.scores"]}
  pq.write_table(table.replace_schema_metadata(scores), path)
