import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import manifests
from support.command_line import ROOT

from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import record as record_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.text import corpus as corpus_lib

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
  arrays = ("offsets", "long_log_probs", "short_log_probs")
  return record(
    index, n=0, reason=reason, text_sha256="", **dict.fromkeys(arrays)
  )


def write(folder, *batches, **kwargs):
  writer = store_lib.open_writer(folder, MANIFEST, **kwargs)
  for batch in batches:
    writer.write(batch)
  return writer


def assert_same(a, b):
  for field in dataclasses.fields(a):
    if field.name != "manifest":
      x, y = getattr(a, field.name), getattr(b, field.name)
      if isinstance(x, np.ndarray):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
      else:
        assert x == y


def assert_same_store(folder, records):
  store = store_lib.read_store(folder)
  assert len(store) == len(records)
  for stored, expected in zip(store, records, strict=True):
    assert_same(stored, expected)


def document(index, text=None):
  text = f"text {index}" if text is None else text
  return corpus_lib.Document(f"d{index}", index, text, None, {})


def test_store_gives_back_what_was_written(tmp_path):
  records = [record(i) for i in range(5)] + [unscored(5), record(10, n=0)]
  write(tmp_path, records[3:], records[:3])
  assert_same_store(tmp_path, records)
  store = store_lib.read_store(tmp_path)
  assert store.manifest.to_json() == MANIFEST.to_json()
  assert list(store.hashes) == [row.doc_id for row in records]
  assert_same(store.get("d4"), records[4])
  parts = [pq.read_table(path) for path in sorted(tmp_path.glob("*.parquet"))]
  assert [part["doc_index"].to_pylist() for part in parts] == [
    [3, 4, 5, 10],
    [0, 1, 2],
  ]
  with pytest.raises(ValueError, match="no document 'd9'"):
    store.get("d9")


def test_no_text_is_stored_and_names_are_fixed(tmp_path):
  write(tmp_path, [record(0)], [record(1)])
  write(tmp_path, [record(2)], process_index=3)
  assert sorted(path.name for path in tmp_path.iterdir()) == [
    "manifest.json",
    "part-00000-00000.parquet",
    "part-00000-00001.parquet",
    "part-00003-00000.parquet",
  ]
  names = pq.read_schema(tmp_path / "part-00000-00000.parquet").names
  assert names == [
    "doc_id",
    "doc_index",
    "text_sha256",
    "n_chars",
    "n_tokens",
    "n_tokens_full",
    "n_eligible",
    "reason",
    "truncated",
    "token_start",
    "token_end",
    "long_log_probs",
    "short_log_probs",
    "mean_context_benefit",
    "n_mirror",
    "p75_x",
    "lang",
    "tags",
  ]


def test_arrays_are_read_only_when_asked_for(tmp_path, monkeypatch):
  """A store of any size opens: each group is read once, and late."""
  write(tmp_path, [record(i) for i in range(6)], [record(6)])
  reads, original = [], parts_lib.read_group

  def read_group(path, group):
    reads.append((path.name, group))
    return original(path, group)

  monkeypatch.setattr(parts_lib, "read_group", read_group)
  store = store_lib.read_store(tmp_path)
  assert not reads
  store.get("d6")
  store.get("d6")
  assert reads == [("part-00000-00001.parquet", 0)]


def test_other_thresholds_need_no_model(tmp_path):
  """Design 6: alpha and beta are never identity where log-probs are stored."""
  records = [record(i) for i in range(4)]
  write(tmp_path, records)
  store = store_lib.read_store(tmp_path).with_thresholds(1.0, -3.0)
  assert store.manifest.thresholds == Thresholds(1.0, -3.0)
  for stored, expected in zip(store, records, strict=True):
    assert_same(stored, expected.with_thresholds(1.0, -3.0))
    assert stored.manifest.thresholds.alpha == 1.0


def test_keys_hold_only_key_tokens(tmp_path):
  manifest = manifests.make(detail="keys")
  records = [record(i, manifest=manifest) for i in range(4)] + [unscored(4)]
  store_lib.open_writer(tmp_path, manifest).write(records)
  store = store_lib.read_store(tmp_path)
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


def test_scores_hold_no_arrays(tmp_path):
  manifest = manifests.make(detail="scores")
  full = record(0, manifest=manifest)
  store_lib.open_writer(tmp_path, manifest).write([full])
  store = store_lib.read_store(tmp_path)
  stored = store.get("d0")
  assert stored.offsets is None and not len(stored.spans)
  assert (stored.reason, stored.scores) == (full.reason, full.scores)
  with pytest.raises(ValueError, match="detail=scores"):
    store.with_thresholds(1.0, -2.0)
  with pytest.raises(ValueError, match="detail=scores"):
    store_lib.match_documents(store, [document(0)])


def test_killed_run_ends_equal_to_an_uninterrupted_one(tmp_path):
  """Cases L3: whole parts survive, leftovers go, and nothing is redone."""
  records = [record(i) for i in range(5)]
  write(tmp_path / "a", records[:2], records[2:4], records[4:])
  write(tmp_path / "b", [records[3], records[0]])
  leftover = tmp_path / "b" / "part-00000-00001.parquet.00000.tmp"
  leftover.write_bytes(b"PAR1 half a part")
  other = tmp_path / "b" / "part-00001-00000.parquet.00001.tmp"
  other.write_bytes(b"another process is writing this")
  assert len(store_lib.read_store(tmp_path / "b")) == 2
  writer = store_lib.open_writer(tmp_path / "b", MANIFEST)
  assert not leftover.exists() and other.exists()
  assert writer.done == {
    r.doc_id: r.text_sha256 for r in (records[0], records[3])
  }
  missing = [r for r in records if not writer.is_done(r.doc_id, r.text_sha256)]
  assert [r.doc_id for r in missing] == ["d1", "d2", "d4"]
  writer.write(missing)
  assert_same_store(tmp_path / "a", records)
  assert_same_store(tmp_path / "b", records)


KILLED = """
import os, sys
sys.path.insert(0, sys.argv[2])
import store_test as t
from longctx_jax.key_tokens import parts as parts_lib
original = parts_lib.write_part
def write_part(rows, file, *, detail):
  original(rows, file, detail=detail)
  if rows[0].doc_id == "d2":
    file.flush()
    os.kill(os.getpid(), 9)
parts_lib.write_part = write_part
t.write(sys.argv[1], [t.record(0)], [t.record(1)], [t.record(2)])
"""


def test_kill_within_a_write_leaves_whole_parts(tmp_path):
  """Cases L3, with a real SIGKILL between writing and renaming."""
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      KILLED,
      str(tmp_path),
      str(pathlib.Path(__file__).parent),
    ],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    capture_output=True,
  )
  assert done.returncode == -9, done.stderr.decode()
  assert len(list(tmp_path.glob("*.tmp"))) == 1
  assert_same_store(tmp_path, [record(0), record(1)])
  write(tmp_path, [record(2)])
  assert not list(tmp_path.glob("*.tmp"))
  assert_same_store(tmp_path, [record(0), record(1), record(2)])


def test_part_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
  writer, calls = write(tmp_path), []

  def log_calls(name):
    original = getattr(os, name)

    def logged(*args):
      calls.append(name)
      original(*args)

    monkeypatch.setattr(os, name, logged)

  log_calls("fsync")
  log_calls("replace")
  writer.write([record(0)])
  assert calls == ["fsync", "replace", "fsync"]


def test_failed_write_leaves_the_store_as_it_was(tmp_path, monkeypatch):
  writer = write(tmp_path, [record(0)])

  def write_part(rows, file, *, detail):
    file.write(b"half")
    raise OSError("no space left on device")

  with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
    patch.setattr(parts_lib, "write_part", write_part)
    writer.write([record(1)])
  assert list(writer.done) == ["d0"]
  assert_same_store(tmp_path, [record(0)])
  writer.write([record(1)])
  assert_same_store(tmp_path, [record(0), record(1)])


def test_damaged_part_is_named_with_the_remedy(tmp_path):
  write(tmp_path, [record(0)], [record(1)])
  part = tmp_path / "part-00000-00001.parquet"
  part.write_bytes(part.read_bytes()[:-30])
  for start in (store_lib.read_store, lambda f: write(f)):
    with pytest.raises(ValueError, match="00001.parquet is damaged.*Remove it"):
      start(tmp_path)
  part.unlink()
  write(tmp_path, [record(1)])
  assert_same_store(tmp_path, [record(0), record(1)])


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("short_len", 8),
    ("stride", 1),
    ("evaluator", "other"),
    ("checksum", "8"),
    ("protocol", "strict"),
    ("bos", 1),
    ("rope", "another"),
    ("detail", "keys"),
    ("max_length", 10),
  ],
)
def test_other_settings_are_refused_by_name(tmp_path, name, value):
  """Design 6; cases J5, J6."""
  write(tmp_path, [record(0)])
  there = MANIFEST.to_json()[name]
  with pytest.raises(ValueError) as refusal:
    store_lib.open_writer(tmp_path, manifests.make(**{name: value}))
  message = str(refusal.value)
  assert f"{name} is {there!r} there and {value!r} here" in message
  assert "--overwrite" in message
  assert message.count(" there and ") == 1
  assert_same_store(tmp_path, [record(0)])


def test_refusal_lists_every_field_that_differs(tmp_path):
  write(tmp_path)
  changed = manifests.make(short_len=8, stride=1, versions={})
  with pytest.raises(
    ValueError, match=r"short_len is 4 .* 8 here; stride is 2"
  ):
    store_lib.open_writer(tmp_path, changed)


def test_versions_and_thresholds_may_change_on_resume(tmp_path):
  """Rows are stored under the thresholds that the store began with."""
  write(tmp_path, [record(0)])
  manifest = manifests.make(alpha=1.0, beta=-3.0, versions={"jax": "1"})
  writer = store_lib.open_writer(tmp_path, manifest)
  assert writer.manifest.thresholds.alpha == 2.0
  writer.write([record(1, manifest=manifest, scores={"key_token_ratio": 1.0})])
  store = store_lib.read_store(tmp_path)
  expected = record(1)
  stored = store.get("d1")
  np.testing.assert_array_equal(stored.key_mask, expected.key_mask)
  ratio = expected.key_mask.sum() / expected.n_eligible
  assert stored.scores["key_token_ratio"] == ratio


@pytest.mark.parametrize("detail", ["keys", "scores"])
def test_thresholds_are_identity_where_not_all_log_probs_are_stored(
  tmp_path, detail
):
  manifest = manifests.make(detail=detail)
  store_lib.open_writer(tmp_path, manifest)
  with pytest.raises(ValueError, match="alpha is 2.0 there and 1.0 here"):
    store_lib.open_writer(tmp_path, manifests.changed(manifest, alpha=1.0))


def test_overwrite_starts_anew(tmp_path):
  write(tmp_path, [record(0)])
  write(tmp_path, [record(7)], process_index=5)
  (tmp_path / "notes.txt").write_text("not ours")
  manifest = manifests.make(short_len=8)
  writer = store_lib.open_writer(tmp_path, manifest, overwrite=True)
  assert writer.done == {}
  names = sorted(path.name for path in tmp_path.iterdir())
  assert names == ["manifest.json", "notes.txt"]
  assert json.loads((tmp_path / "manifest.json").read_text())["short_len"] == 8


def test_only_the_first_process_overwrites(tmp_path):
  write(tmp_path, [record(0)])
  writer = write(tmp_path, [record(1)], process_index=1, overwrite=True)
  assert list(writer.done) == ["d0", "d1"]


def test_parts_without_a_manifest_are_refused(tmp_path):
  write(tmp_path, [record(0)])
  (tmp_path / "manifest.json").unlink()
  with pytest.raises(FileNotFoundError, match="no key-token store"):
    store_lib.read_store(tmp_path)
  with pytest.raises(ValueError, match="parts but no manifest.json"):
    write(tmp_path)
  (tmp_path / "manifest.json").write_text("{")
  with pytest.raises(ValueError, match="manifest.json is damaged"):
    write(tmp_path)
  write(tmp_path, overwrite=True)
  assert len(store_lib.read_store(tmp_path)) == 0


def test_an_unknown_format_is_refused(tmp_path):
  write(tmp_path)
  path = tmp_path / "manifest.json"
  path.write_text(path.read_text().replace('version": 1', 'version": 2'))
  with pytest.raises(ValueError, match="has format 2; this version reads 1"):
    store_lib.read_store(tmp_path)


def test_changed_document_is_named_on_resume(tmp_path):
  write(tmp_path, [record(0)])
  writer = store_lib.open_writer(tmp_path, MANIFEST)
  assert not writer.is_done("d1", "any")
  assert writer.is_done("d0", record(0).text_sha256)
  with pytest.raises(ValueError, match="'d0' changed.*--overwrite"):
    writer.is_done("d0", "other")
  with pytest.raises(ValueError, match="'d0' changed"):
    writer.write([record(0, text_sha256="other")])


def test_one_document_in_two_rows_is_refused(tmp_path):
  writer = write(tmp_path, [record(0)])
  for rows in ([record(0)], [record(1), record(1)]):
    with pytest.raises(ValueError, match="is in the store already"):
      writer.write(rows)
  first = tmp_path / "part-00000-00000.parquet"
  (tmp_path / "part-00001-00000.parquet").write_bytes(first.read_bytes())
  pattern = "'d0' is in the store twice: in .*00000-00000.*00001-00000"
  with pytest.raises(ValueError, match=pattern):
    store_lib.read_store(tmp_path)


def test_documents_match_by_id_not_by_order(tmp_path):
  """Cases J6."""
  write(tmp_path, [record(i) for i in range(3)])
  store = store_lib.read_store(tmp_path)
  documents = [document(i) for i in (2, 0, 1)]
  pairs = list(store_lib.match_documents(store, documents))
  assert [d for _, d in pairs] == documents
  for keys, paired in pairs:
    assert keys.doc_id == paired.doc_id


def test_mismatch_names_ids_before_the_first_pair(tmp_path):
  """Cases J6: at most five ids of each kind, and their number."""
  write(tmp_path, [record(i) for i in range(10)])
  store = store_lib.read_store(tmp_path)
  documents = [document(0, text="changed"), document(1), document(99)]
  with pytest.raises(ValueError) as mismatch:
    store_lib.match_documents(store, documents)
  message = str(mismatch.value)
  missing = "8 documents ('d2', 'd3', 'd4', 'd5', 'd6', ...) in the store but"
  assert missing in message and "'d7'" not in message
  assert "1 documents ('d99') in the corpus but not in the store" in message
  assert "1 documents ('d0') with another text than the one scored" in message


def test_unreadable_document_matches_its_failed_row(tmp_path):
  write(tmp_path, [unscored(0), record(1)])
  store = store_lib.read_store(tmp_path)
  broken = dataclasses.replace(document(0), text=None, error="not JSON")
  pairs = list(store_lib.match_documents(store, [broken, document(1)]))
  assert [keys.reason for keys, _ in pairs] == ["failed", record(1).reason]
  with pytest.raises(ValueError, match=r"\('d0'\) with another text"):
    store_lib.match_documents(store, [document(0), document(1)])


def test_token_ids_and_iterators_cannot_be_matched(tmp_path):
  write(tmp_path, [record(0)])
  store = store_lib.read_store(tmp_path)
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
      for d in corpus_lib.open_corpus(tmp_path, row_range=row_range)
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
def test_projected_size_bounds_the_real_one(tmp_path, detail, n, n_documents):
  manifest = manifests.make(detail=detail, alpha=3.0)
  rows = [record(i, n=n, manifest=manifest) for i in range(n_documents)]
  if detail == "keys":
    assert 0.02 < np.mean([row.key_mask.mean() for row in rows]) <= 0.05
  store_lib.open_writer(tmp_path, manifest).write(rows)
  size = sum(path.stat().st_size for path in tmp_path.glob("*.parquet"))
  projected = store_lib.projected_bytes(n_documents, n, detail)
  assert size <= projected
  if (detail, n) == ("tokens", 8_000):
    assert projected < 1.25 * size
