"""Failures outside of the program are sentences; its own faults are not."""

import errno
import json
import os
import re

import pyarrow as pa
import pytest
import safetensors
from support.checks import refuses

from longctx_jax.runtime import failures, files

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raised(error, cause=None):
  try:
    raise error from cause
  except type(error) as caught:
    return caught


@pytest.mark.parametrize(
  ("error", "sentence"),
  [
    (OSError(errno.ENOSPC, "", "w/x"), "w/x: no space left on the disk"),
    (OSError(errno.EDQUOT, "", "w/x"), "w/x: no space left on the disk"),
    (raised(RuntimeError("writer"), FULL), "the disk: no space left"),
    (
      safetensors.SafetensorError("I/O error: ... (os error 28)"),
      "the disk: no space left",
    ),
    (ValueError("tensorstore: No space left on device [a]\n b"), "the disk: "),
    (OSError(errno.ENOENT, "No such file", "w/x"), "w/x: No such file: check"),
    (OSError(errno.EACCES, "Denied", "w/x"), "w/x: Denied: this user may not"),
    (OSError(errno.EIO, "I/O error", "w/x"), "w/x: I/O error: take another"),
    (raised(re.error("unterminated", "[")), "the pattern '[' is no regular"),
    (ValueError("one\n  two"), "one two"),
    (ModuleNotFoundError("No module named 'tiktoken'", name="tiktoken"),
     "a package is missing or does not load: No module named 'tiktoken'"),
    (MemoryError(), "the memory of this machine does not suffice"),
    (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
     "the memory of the device does not suffice: read less"),
    (pa.ArrowNotImplementedError("no such type"), "no such type"),
    (safetensors.SafetensorError("header"), "SafetensorError: header"),
  ],
)  # fmt: skip
def test_what_came_from_outside_is_a_sentence(error, sentence):
  found = failures.explain(error)
  assert sentence in found and "\n" not in found
  if "the disk:" in found:
    assert failures.explain(error, place="w").startswith("w: no space left")


@pytest.mark.parametrize(
  "error",
  [TypeError("x"), KeyError("x"), AssertionError(), RuntimeError("x"),
   ImportError("x", name="longctx_jax.x")],
)  # fmt: skip
def test_a_fault_of_the_program_keeps_its_traceback(error):
  assert failures.explain(error) == ""


def test_a_sentence_has_an_end():
  assert len(failures.explain(ValueError("long " * 999))) < 700


@pytest.mark.parametrize(
  "read",
  [
    lambda: json.loads("version https://git-lfs"),
    lambda: b"\xff".decode(),
    lambda: pa.ipc.open_file(pa.BufferReader(b"junk")),
  ],
)
def test_what_a_parser_says_gets_the_files_name(read):
  with refuses("w/config is damaged, or of another kind: "):
    with failures.reading("w/config"):
      read()


def test_other_errors_pass_the_name_by():
  mine = ValueError("a sentence of its own")
  with pytest.raises(ValueError) as caught, failures.reading("w/x"):
    raise mine
  assert caught.value is mine


def test_a_full_disk_is_named_by_the_file_that_was_to_appear(
  tmp_path, monkeypatch
):
  def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, "fsync", full)
  path = tmp_path / "result.json"
  with pytest.raises(OSError) as caught:
    files.write_text(path, "text")
  assert failures.explain(caught.value).startswith(f"{path}: no space left")
  assert os.listdir(tmp_path) == []


def test_faults_that_are_found_together_stay_apart():
  found = failures.Several(["one is missing", "two is too small"])
  assert found.sentences == ("one is missing", "two is too small")
  assert failures.explain(found) == "one is missing; two is too small"
