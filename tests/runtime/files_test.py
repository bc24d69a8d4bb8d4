"""Files that appear whole, whatever moment a run is killed at."""

import os
import subprocess
import sys

import pytest
from support.checks import refuses
from support.command_line import ROOT

from longctx_jax.runtime import files

CALLS = ("fsync", "replace", "open")


@pytest.mark.parametrize("before", ["", "the old text"])
@pytest.mark.parametrize("nth", range(8))
def test_a_crash_at_any_call_leaves_the_old_file_or_the_new(
  tmp_path, monkeypatch, before, nth
):
  """The states of before and after; leftovers go under the lock."""
  path = tmp_path / "file"
  if before:
    path.write_text(before)
  calls = []

  def crashing(name, original):
    def call(*args, **kwargs):
      calls.append(name)
      if len(calls) == nth + 1:
        raise KeyboardInterrupt
      return original(*args, **kwargs)

    return call

  for name in CALLS:
    monkeypatch.setattr(os, name, crashing(name, getattr(os, name)))
  crashed = False
  try:
    files.write_text(path, "the new text")
  except KeyboardInterrupt:
    crashed = True
  monkeypatch.undo()
  assert crashed == (nth < len(calls))
  found = path.read_text() if path.exists() else ""
  # What raised after the rename left the new file.
  renamed = "replace" in calls[: nth if crashed else None]
  assert found == ("the new text" if renamed else before)
  assert os.listdir(tmp_path) == (["file"] if found else [])


def test_the_bytes_are_on_the_disk_before_the_name(tmp_path, monkeypatch):
  calls = []
  for name in ("fsync", "replace"):
    original = getattr(os, name)
    monkeypatch.setattr(
      os,
      name,
      lambda *a, name=name, original=original: (
        calls.append(name) or original(*a)
      ),
    )
  files.write_text(tmp_path / "file", "text")
  assert calls == ["fsync", "replace", "fsync"]


HOLD = """
import sys
from longctx_jax.runtime import files
with files.locked(sys.argv[1], doing="scoring into"):
  print("held", flush=True)
  sys.stdin.read()
"""


def test_a_lock_refuses_the_second_and_dies_with_its_process(tmp_path):
  path = tmp_path / "W" / "lock"
  message = f"another process is scoring into {path.parent}: .*--workdir"
  with subprocess.Popen(
    [sys.executable, "-c", HOLD, str(path)],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as holder:
    assert holder.stdout.readline() == b"held\n"
    with (
      refuses(message, files.InUse),
      files.locked(path, doing="scoring into"),
    ):
      pass
    holder.kill()
  with files.locked(path, doing="scoring into"):
    assert path.exists()


def test_leftovers_of_others_are_removed_by_name(tmp_path):
  for name in ("a.parquet.0123abcd.tmp", "b.json.0123abcd.tmp", "a.parquet"):
    (tmp_path / name).touch()
  files.remove_leftovers(tmp_path, "*.parquet")
  assert sorted(os.listdir(tmp_path)) == ["a.parquet", "b.json.0123abcd.tmp"]


def test_the_disk_of_a_path_is_that_of_the_folder_above(tmp_path):
  there, free = files.disk_of(tmp_path / "not" / "yet")
  assert there == tmp_path and free > 0
