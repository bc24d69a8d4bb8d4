import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import manifests
from support.command_line import ROOT

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import record as record_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.runtime.shards import Shard
from longctx_jax.text import corpus as corpus_lib

MANIFEST = manifests.make()


@pytest.fixture
def folder(tmp_path):
  """Of a store that is yet to be written."""
  return tmp_path / "key_tokens"


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
  writer = writer_lib.open_writer(folder, MANIFEST, **kwargs)
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


def test_no_text_is_stored_and_names_are_fixed(folder):
  write(folder, [record(0)], [record(1)])
  write(folder, [record(2)], shard=Shard(3, 8))
  names = sorted(path.name for path in folder.iterdir())
  for name, expected in zip(
    names,
    ["00001-00000-{}-00000", "00001-00000-{}-00001", "00002-00003-{}-00000"],
    strict=True,
  ):
    pattern = expected.format("[0-9a-f]{8}")
    assert re.fullmatch(rf"part-{pattern}\.parquet", name)
  beside = {path.name for path in folder.parent.iterdir()}
  assert beside == {"key_tokens", "key_tokens.json", ".lock-key_tokens"}
  names = pq.read_schema(folder / names[0]).names
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


def test_killed_run_ends_equal_to_an_uninterrupted_one(folder):
  """Cases L3: whole parts survive, leftovers go, and nothing is redone."""
  records = [record(i) for i in range(5)]
  write(folder / "a", records[:2], records[2:4], records[4:])
  write(folder / "b", [records[3], records[0]])
  leftover = folder / "part-00001-00000-deadbeef-00001.parquet.12345678.tmp"
  leftover.write_bytes(b"PAR1 half a part")
  assert len(store_lib.read_store(folder / "b")) == 2
  writer = writer_lib.open_writer(folder / "b", MANIFEST)
  assert not leftover.exists()
  assert writer.done == {
    r.doc_id: r.text_sha256 for r in (records[0], records[3])
  }
  missing = [r for r in records if not writer.is_done(r.doc_id, r.text_sha256)]
  assert [r.doc_id for r in missing] == ["d1", "d2", "d4"]
  writer.write(missing)
  assert_same_store(folder / "a", records)
  assert_same_store(folder / "b", records)


KILLED = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[2])
import store_test as t
from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
original = parts_lib.write_part
def write_part(rows, file, manifest):
  original(rows, file, manifest)
  if rows[0].doc_id == "d2":
    file.flush()
    os.kill(os.getpid(), 9)
parts_lib.write_part = write_part
t.write(pathlib.Path(sys.argv[1]), [t.record(0)], [t.record(1)], [t.record(2)])
"""


def test_kill_within_a_write_leaves_whole_parts(folder):
  """Cases L3, with a real SIGKILL between writing and renaming."""
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      KILLED,
      str(folder),
      str(pathlib.Path(__file__).parent),
    ],
    cwd=ROOT,
    env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    capture_output=True,
  )
  assert done.returncode == -9, done.stderr.decode()
  assert len(list(folder.parent.glob("*.tmp"))) == 1
  assert all(path.suffix == ".parquet" for path in folder.iterdir())
  assert_same_store(folder, [record(0), record(1)])
  write(folder, [record(2)])
  assert not list(folder.parent.glob("*.tmp"))
  assert_same_store(folder, [record(0), record(1), record(2)])


def test_part_is_on_the_disk_before_it_has_its_name(folder, monkeypatch):
  writer, calls = write(folder), []

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


def test_failed_write_leaves_the_store_as_it_was(folder, monkeypatch):
  writer = write(folder, [record(0)])

  def write_part(rows, file, manifest):
    file.write(b"half")
    raise OSError("no space left on device")

  with monkeypatch.context() as patch, pytest.raises(OSError, match="space"):
    patch.setattr(parts_lib, "write_part", write_part)
    writer.write([record(1)])
  assert list(writer.done) == ["d0"]
  assert_same_store(folder, [record(0)])
  writer.write([record(1)])
  assert_same_store(folder, [record(0), record(1)])


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


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("short_len", 8),
    ("stride", 1),
    ("numerics", 2),
    ("checksum", "8"),
    ("protocol", "strict"),
    ("bos", 1),
    ("rope", "another"),
    ("detail", "keys"),
    ("max_length", 10),
  ],
)
def test_other_settings_are_refused_by_name(folder, name, value):
  """Design 6; cases J5, J6."""
  write(folder, [record(0)])
  there = MANIFEST.to_json()[name]
  with pytest.raises(ValueError) as refusal:
    writer_lib.open_writer(folder, manifests.make(**{name: value}))
  message = str(refusal.value)
  assert f"{name} was {there!r} and is {value!r}" in message
  assert "--overwrite" in message
  assert message.count(" and is ") == 1
  assert_same_store(folder, [record(0)])


def test_refusal_lists_every_field_that_differs(folder):
  write(folder)
  changed = manifests.make(short_len=8, stride=1, versions={})
  with pytest.raises(
    ValueError, match=r"short_len was 4 and is 8; stride was 2 and is 1"
  ):
    writer_lib.open_writer(folder, changed)


def test_versions_and_thresholds_may_change_on_resume(folder):
  """Rows are stored under the thresholds that the store began with."""
  write(folder, [record(0)])
  manifest = manifests.make(alpha=1.0, beta=-3.0, versions={"jax": "1"})
  writer = writer_lib.open_writer(folder, manifest)
  assert writer.manifest.thresholds.alpha == 2.0
  writer.write([record(1, manifest=manifest, scores={"key_token_ratio": 1.0})])
  store = store_lib.read_store(folder)
  expected = record(1)
  stored = store.get("d1")
  np.testing.assert_array_equal(stored.key_mask, expected.key_mask)
  ratio = expected.key_mask.sum() / expected.n_eligible
  assert stored.scores["key_token_ratio"] == ratio


@pytest.mark.parametrize("detail", ["keys", "scores"])
def test_thresholds_are_identity_where_not_all_log_probs_are_stored(
  folder, detail
):
  manifest = manifests.make(detail=detail)
  writer_lib.open_writer(folder, manifest)
  with pytest.raises(ValueError, match="alpha was 2.0 and is 1.0"):
    writer_lib.open_writer(folder, manifests.changed(manifest, alpha=1.0))


def test_overwrite_starts_anew(folder):
  write(folder, [record(0)])
  write(folder, [record(7)], shard=Shard(5, 8))
  manifest = manifests.make(short_len=8)
  writer = writer_lib.open_writer(folder, manifest, overwrite=True)
  assert writer.done == {}
  assert not list(folder.iterdir())
  fields = json.loads(folder_lib.manifest_path(folder).read_text())
  assert fields["short_len"] == 8


def without_metadata(path):
  """As parts were before each repeated the manifest."""
  table = pq.read_table(path)
  scores = {b"longctx_jax.scores": table.schema.metadata[b"longctx_jax.scores"]}
  pq.write_table(table.replace_schema_metadata(scores), path)


def test_parts_that_nobody_knows_how_they_were_made_are_refused(folder):
  write(folder, [record(0)])
  manifest = folder_lib.manifest_path(folder)
  manifest.write_text("{")
  with pytest.raises(ValueError, match="key_tokens.json is damaged"):
    write(folder)
  manifest.unlink()
  for path in folder.iterdir():
    without_metadata(path)
  with pytest.raises(FileNotFoundError, match="no key-token store"):
    store_lib.read_store(folder)
  with pytest.raises(ValueError, match="parts but no key_tokens.json"):
    write(folder)
  write(folder, overwrite=True)
  assert len(store_lib.read_store(folder)) == 0


def test_the_folder_alone_is_a_store(folder, tmp_path):
  """Each part repeats the manifest: what is copied elsewhere can be read."""
  write(folder, [record(0)], [record(1)])
  alone = tmp_path / "elsewhere"
  shutil.copytree(folder, alone)
  store = store_lib.read_store(alone)
  assert store.manifest == MANIFEST and len(store) == 2
  write(alone, [record(2)])
  assert_same_store(alone, [record(i) for i in range(3)])
  with pytest.raises(ValueError, match="checksum was '7' and is '8'"):
    writer_lib.open_writer(alone, manifests.make(checksum="8"))


def test_a_store_of_before_is_read_and_gone_on_with(folder):
  """Its manifest lay in the folder, and its parts were named otherwise."""
  write(folder, [record(0)], [record(1)])
  for number, path in enumerate(sorted(folder.iterdir())):
    without_metadata(path)
    path.rename(folder / f"part-00000-{number:05d}.parquet")
  fields = MANIFEST.to_json()
  del fields["numerics"]
  (folder / "manifest.json").write_text(json.dumps(fields))
  folder_lib.manifest_path(folder).unlink()
  assert_same_store(folder, [record(0), record(1)])
  assert store_lib.read_store(folder).manifest.numerics == 1
  write(folder, [record(2)])
  assert_same_store(folder, [record(i) for i in range(3)])
  assert all(path.suffix == ".parquet" for path in folder.iterdir())


def test_overwrite_that_is_killed_leaves_all_or_nothing(folder, monkeypatch):
  """The parts say themselves how they were made: half of them would pass."""
  write(folder, [record(0)], [record(1)])

  def killed(path):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(shutil, "rmtree", killed)
    write(folder, overwrite=True)
  with pytest.raises(FileNotFoundError, match="no key-token store"):
    store_lib.read_store(folder)
  write(folder, [record(2)], overwrite=True)
  assert_same_store(folder, [record(2)])
  beside = {path.name for path in folder.parent.iterdir()}
  assert beside == {"key_tokens", "key_tokens.json", ".lock-key_tokens"}


def test_a_row_has_no_scores_where_nothing_was_scored(folder):
  """Whatever rows it shares a part with."""
  bare = [dataclasses.replace(unscored(i), scores={}) for i in (1, 2)]
  write(folder, [record(0), bare[0]], bare[1:])
  store = store_lib.read_store(folder)
  assert store.get("d1").scores == store.get("d2").scores == {}
  assert store.get("d0").scores == record(0).scores


def test_an_unknown_format_is_refused(folder):
  write(folder)
  path = folder_lib.manifest_path(folder)
  path.write_text(path.read_text().replace('version": 1', 'version": 2'))
  with pytest.raises(ValueError, match="has format 2; this version reads 1"):
    store_lib.read_store(folder)


def test_spelling_and_revision_of_the_evaluator_are_free(folder):
  write(folder, [record(0)])
  moved = manifests.make(evaluator="/elsewhere/tiny", revision="abc")
  writer = writer_lib.open_writer(folder, moved)
  assert writer.manifest.evaluator == "tiny"
  assert writer.is_done("d0", record(0).text_sha256)


def test_changed_and_failed_documents_are_written_again(folder):
  """The new row takes the place of the old, also before the old is gone."""
  write(folder, [record(0), record(1)], [unscored(2)])
  writer = writer_lib.open_writer(folder, MANIFEST)
  assert not writer.is_done("d9", "any")
  assert writer.is_done("d0", record(0).text_sha256)
  assert writer.is_changed("d0", "other") and not writer.is_done("d0", "other")
  assert not writer.is_done("d2", "") and not writer.is_changed("d2", "")
  again = [record(0, text_sha256="other", n=30), record(2)]
  writer.write(again)
  expected = [again[0], record(1), again[1]]
  assert_same_store(folder, expected)
  size = sum(pq.read_metadata(p).num_rows for p in folder.iterdir())
  assert size == 5
  writer.tidy()
  assert_same_store(folder, expected)
  size = sum(pq.read_metadata(p).num_rows for p in folder.iterdir())
  assert size == 3
  with pytest.raises(ValueError, match="'d2' is in the store already"):
    writer.write([record(2)])


def test_a_store_that_changes_under_a_reader_is_called_out(folder):
  write(folder, [record(0), record(1)])
  store = store_lib.read_store(folder)
  writer = writer_lib.open_writer(folder, MANIFEST)
  writer.write([record(0, text_sha256="other")])
  writer.tidy()
  with pytest.raises(ValueError, match="while it was read|is damaged"):
    store.get("d1")


def test_documents_are_pruned_also_where_they_were_replaced(folder):
  write(folder, [record(0), record(1)])
  writer = write(folder, [record(0, text_sha256="other")])
  assert writer.prune(["d1", "d7"]) == ["d0"]
  assert_same_store(folder, [record(1)])
  assert not writer.is_done("d0", "other")


def test_one_document_in_two_rows_is_refused(folder):
  writer = write(folder, [record(0)])
  for rows in ([record(0)], [record(1), record(1)]):
    with pytest.raises(ValueError, match="is in the store already"):
      writer.write(rows)
  (first,) = folder.iterdir()
  copy = folder / "part-00001-00003-deadbeef-00000.parquet"
  copy.write_bytes(first.read_bytes())
  pattern = "'d0' is in the store twice: in .*parquet and .*parquet"
  with pytest.raises(ValueError, match=pattern):
    store_lib.read_store(folder)


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
