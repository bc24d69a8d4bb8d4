import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import manifests
from support.command_line import ROOT
from support.stores import (
  MANIFEST,
  assert_same_store,
  record,
  unscored,
  write,
)

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.runtime.shards import Shard


@pytest.fixture
def folder(tmp_path):
  """Of a store that is yet to be written."""
  return tmp_path / "key_tokens"


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
from support import stores
from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
original = parts_lib.write_part
def write_part(rows, file, manifest):
  original(rows, file, manifest)
  if rows[0].doc_id == "d2":
    file.flush()
    os.kill(os.getpid(), 9)
parts_lib.write_part = write_part
folder = pathlib.Path(sys.argv[1])
stores.write(folder, *([stores.record(i)] for i in range(3)))
"""


def test_kill_within_a_write_leaves_whole_parts(folder):
  """Cases L3, with a real SIGKILL between writing and renaming."""
  done = subprocess.run(
    [
      sys.executable,
      "-c",
      KILLED,
      str(folder),
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


def test_documents_are_pruned_also_where_they_were_replaced(folder):
  write(folder, [record(0), record(1)])
  writer = write(folder, [record(0, text_sha256="other")])
  assert writer.prune(["d1", "d7"]) == ["d0"]
  assert_same_store(folder, [record(1)])
  assert not writer.is_done("d0", "other")
