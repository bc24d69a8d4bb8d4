import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import manifests
from support.stores import (
  MANIFEST,
  assert_same,
  assert_same_store,
  document,
  record,
  unscored,
  write,
)

from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.text import corpus as corpus_lib


@pytest.fixture
def folder(tmp_path):
  """Of a store that is yet to be written."""
  return tmp_path / "key_tokens"


def test_store_gives_back_what_was_written(folder):
  records = [record(i) for i in range(5)] + [unscored(5), record(10, n=0)]
  write(folder, records[3:], records[:3])
  assert_same_store(folder, records)
  store = store_lib.read_store(folder)
  assert store.manifest.to_json() == MANIFEST.to_json()
  assert list(store.hashes) == [row.doc_id for row in records]
  assert_same(store.get("d4"), records[4])
  parts = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
  assert [part["doc_index"].to_pylist() for part in parts] == [
    [3, 4, 5, 10],
    [0, 1, 2],
  ]
  with pytest.raises(ValueError, match="no document 'd9'"):
    store.get("d9")


def test_arrays_are_read_only_when_asked_for(folder, monkeypatch):
  """A store of any size opens: each group is read once, and late."""
  write(folder, [record(i) for i in range(6)], [record(6)])
  reads, original = [], parts_lib.read_group

  def read_group(path, group):
    reads.append((path.name, group))
    return original(path, group)

  monkeypatch.setattr(parts_lib, "read_group", read_group)
  store = store_lib.read_store(folder)
  assert not reads
  store.get("d6")
  store.get("d6")
  assert len(reads) == 1 and reads[0][0].endswith("-00001.parquet")


def test_other_thresholds_need_no_model(folder):
  """Design 6: alpha and beta are never identity where log-probs are stored."""
  records = [record(i) for i in range(4)]
  write(folder, records)
  store = store_lib.read_store(folder).with_thresholds(1.0, -3.0)
  assert store.manifest.thresholds == Thresholds(1.0, -3.0)
  for stored, expected in zip(store, records, strict=True):
    assert_same(stored, expected.with_thresholds(1.0, -3.0))
    assert stored.manifest.thresholds.alpha == 1.0


def test_keys_hold_only_key_tokens(folder):
  manifest = manifests.make(detail="keys")
  records = [record(i, manifest=manifest) for i in range(4)] + [unscored(4)]
  writer_lib.open_writer(folder, manifest).write(records)
  store = store_lib.read_store(folder)
  for stored, full in zip(store, records, strict=True):
    np.testing.assert_array_equal(stored.spans, full.spans)
    assert (stored.n_tokens, stored.reason) == (full.n_tokens, full.reason)
    if full.offsets is not None:
      np.testing.assert_array_equal(stored.offsets, full.offsets[full.key_mask])
      np.testing.assert_array_equal(
        stored.long_log_probs, full.long_log_probs[full.key_mask]
      )
  risen = store.with_thresholds(2.5, -2.0).get("d1")
  np.testing.assert_array_equal(
    risen.spans, record(1).with_thresholds(2.5, -2.0).spans
  )
  with pytest.raises(ValueError, match="alpha=1.0, beta=-2.0.*not fall"):
    store.with_thresholds(1.0, -2.0)


def test_scores_hold_no_arrays(folder):
  manifest = manifests.make(detail="scores")
  full = record(0, manifest=manifest)
  writer_lib.open_writer(folder, manifest).write([full])
  store = store_lib.read_store(folder)
  stored = store.get("d0")
  assert stored.offsets is None and not len(stored.spans)
  assert (stored.reason, stored.scores) == (full.reason, full.scores)
  with pytest.raises(ValueError, match="detail=scores"):
    store.with_thresholds(1.0, -2.0)
  with pytest.raises(ValueError, match="detail=scores"):
    store_lib.match_documents(store, [document(0)])


def test_damaged_part_is_named_with_the_remedy(folder):
  write(folder, [record(0)], [record(1)])
  (part,) = folder.glob("*-00001.parquet")
  part.write_bytes(part.read_bytes()[:-30])
  for start in (store_lib.read_store, lambda f: write(f)):
    with pytest.raises(ValueError, match="00001.parquet is damaged.*Remove it"):
      start(folder)
  part.unlink()
  write(folder, [record(1)])
  assert_same_store(folder, [record(0), record(1)])


def test_flipped_bits_are_not_read(folder):
  """Pages have checksums; what is read is what was written, or named."""
  expected = [record(i, n=200) for i in range(3)]
  write(folder, expected)
  (part,) = folder.iterdir()
  data = part.read_bytes()
  footer = 8 + int.from_bytes(data[-8:-4], "little")
  rng, refused = np.random.default_rng(0), 0
  for place in rng.integers(4, len(data) - footer, 60):
    flipped = bytearray(data)
    flipped[place] ^= 1 << rng.integers(8)
    part.write_bytes(flipped)
    try:
      assert_same_store(folder, expected)
    except ValueError as error:
      assert str(part) in str(error) and "damaged" in str(error)
      refused += 1
  assert refused > 50


def test_a_row_has_no_scores_where_nothing_was_scored(folder):
  """Whatever rows it shares a part with."""
  bare = [dataclasses.replace(unscored(i), scores={}) for i in (1, 2)]
  write(folder, [record(0), bare[0]], bare[1:])
  store = store_lib.read_store(folder)
  assert store.get("d1").scores == store.get("d2").scores == {}
  assert store.get("d0").scores == record(0).scores


def test_a_store_that_changes_under_a_reader_is_called_out(folder):
  write(folder, [record(0), record(1)])
  store = store_lib.read_store(folder)
  writer = writer_lib.open_writer(folder, MANIFEST)
  writer.write([record(0, text_sha256="other")])
  writer.tidy()
  with pytest.raises(ValueError, match="while it was read|is damaged"):
    store.get("d1")


def test_documents_match_by_id_not_by_order(folder):
  """Cases J6."""
  write(folder, [record(i) for i in range(3)])
  store = store_lib.read_store(folder)
  documents = [document(i) for i in (2, 0, 1)]
  pairs = list(store_lib.match_documents(store, documents))
  assert [d for _, d in pairs] == documents
  for keys, paired in pairs:
    assert keys.doc_id == paired.doc_id


def test_mismatch_names_ids_before_the_first_pair(folder):
  """Cases J6: at most five ids of each kind, and their number."""
  write(folder, [record(i) for i in range(10)])
  store = store_lib.read_store(folder)
  documents = [document(0, text="changed"), document(1), document(99)]
  with pytest.raises(ValueError) as mismatch:
    store_lib.match_documents(store, documents)
  message = str(mismatch.value)
  missing = "8 documents ('d2', 'd3', 'd4', 'd5', 'd6', ...) in the store but"
  assert missing in message and "'d7'" not in message
  assert "1 documents ('d99') in the corpus but not in the store" in message
  assert "1 documents ('d0') with another text than the one scored" in message


def test_unreadable_document_matches_its_failed_row(folder):
  write(folder, [unscored(0), record(1)])
  store = store_lib.read_store(folder)
  broken = dataclasses.replace(document(0), text=None, error="not JSON")
  pairs = list(store_lib.match_documents(store, [broken, document(1)]))
  assert [keys.reason for keys, _ in pairs] == ["failed", record(1).reason]
  with pytest.raises(ValueError, match=r"\('d0'\) with another text"):
    store_lib.match_documents(store, [document(0), document(1)])


def test_token_ids_and_iterators_cannot_be_matched(folder):
  write(folder, [record(0)])
  store = store_lib.read_store(folder)
  ids = corpus_lib.Document("d0", 0, None, np.zeros(3, np.int32), {})
  with pytest.raises(ValueError, match="'d0' holds token ids.*decode"):
    store_lib.match_documents(store, [ids])
  with pytest.raises(ValueError, match="not an iterator"):
    store_lib.match_documents(store, iter([document(0)]))


def test_row_ranges_fill_one_store(tmp_path):
  """Cases L7: parts made range by range equal one run."""
  for i in range(6):
    (tmp_path / f"{i}.txt").write_text(f"text {i}")
  ranges = [(3, 6), (0, 3)]
  for row_range in ranges:
    rows = [
      record(
        d.doc_index, doc_id=d.doc_id, text_sha256=corpus_lib.text_sha256(d.text)
      )
      for d in corpus_lib.open_corpus(
        str(tmp_path / "*.txt"), row_range=row_range
      )
    ]
    write(tmp_path / "keys", rows)
  corpus = corpus_lib.open_corpus(str(tmp_path / "*.txt"))
  assert_same_store(
    tmp_path / "keys", [record(i, doc_id=f"{i}.txt") for i in range(6)]
  )
  store = store_lib.read_store(tmp_path / "keys")
  assert len(list(store_lib.match_documents(store, corpus))) == 6


@pytest.mark.parametrize("detail", ["tokens", "keys", "scores"])
@pytest.mark.parametrize(("n", "n_documents"), [(300, 64), (8_000, 3)])
def test_projected_size_bounds_the_real_one(folder, detail, n, n_documents):
  manifest = manifests.make(detail=detail, alpha=3.0)
  rows = [record(i, n=n, manifest=manifest) for i in range(n_documents)]
  if detail == "keys":
    assert 0.02 < np.mean([row.key_mask.mean() for row in rows]) <= 0.05
  writer_lib.open_writer(folder, manifest).write(rows)
  size = sum(path.stat().st_size for path in folder.glob("*.parquet"))
  projected = store_lib.projected_bytes(n_documents, n, detail)
  assert size <= projected
  if (detail, n) == ("tokens", 8_000):
    assert projected < 1.25 * size
