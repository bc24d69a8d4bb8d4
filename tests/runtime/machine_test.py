"""Other machines than this one, by taking away what they lack."""

import os
import signal
import sys

import pytest
from support.checks import refuses
from support.command_line import ROOT, run
from support.tiny_runs import FLAGS, make_texts, save_models, write_jsonl

from longctx_jax.runtime import machine

WITHOUT = {
  "macOS": ["os.sched_getaffinity"],
  "Windows": ["os.sched_getaffinity", "os.sysconf", "fcntl"],
}
# Grain does without array_record on Windows, and only there.
TRAIN_ON_WINDOWS = """
import runpy, sys
import grain
sys.modules["array_record"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module", params=WITHOUT)
def finished(request, tmp_path_factory):
  """Score, eval, report and train, where `request.param` lacks something."""
  folder = tmp_path_factory.mktemp(request.param)
  save_models(folder, ["m0", "m1"])
  write_jsonl(folder / "docs.jsonl", make_texts())
  data = "--data=docs.jsonl"
  commands = {
    "score": ["--model=m0", data, "--workdir=w", *FLAGS],
    "eval": ["--model=m1", data, "--workdir=w", "--keys=w", *FLAGS[2:]],
    "report": ["html", "w", data],
    "train": [
      f"--config={ROOT}/configs/tiny.py",
      "--workdir=t",
      "--model=m9",
      data,
    ],
  }
  given = [[f"scripts/{name}.py", *words] for name, words in commands.items()]
  if request.param == "Windows":
    path = folder / "train_on_windows.py"
    path.write_text(TRAIN_ON_WINDOWS)
    given[-1] = [path, ROOT / given[-1][0], *given[-1][1:]]
  done = run(
    given,
    cwd=folder,
    home=folder / "home",
    without=WITHOUT[request.param],
  )
  return request.param, folder, dict(zip(commands, done, strict=True))


def test_score_eval_and_report_run_everywhere(finished):
  _, folder, done = finished
  for name in ("score", "eval", "report"):
    assert done[name].status == 0, done[name].err
    runs_a_model = name != "report"
    assert done[name].out.startswith("jax ") is runs_a_model
    assert "Traceback" not in done[name].err
  assert (folder / "w" / "report.html").exists()


def test_training_says_at_once_where_it_cannot_run(finished):
  system, folder, done = finished
  said = done["train"].err.splitlines()
  assert done["train"].status == 2
  first, last = said[0], said[-1]
  # What else is missing is said beside it: the model is not there.
  assert last.startswith("error: ") and "m9" in last
  if system == "Windows":
    assert first.startswith("error: ") and "Linux and macOS" in first
  else:
    assert "Linux and macOS" not in done["train"].err
  assert not (folder / "t").exists() or system != "Windows"


def test_cores_and_memory_are_counted_or_left_out(monkeypatch):
  assert 1 <= machine.cpu_count() <= os.cpu_count()
  assert machine.memory_bytes() > 2**28
  monkeypatch.delattr(os, "sched_getaffinity")
  assert machine.cpu_count() == os.cpu_count()
  monkeypatch.delattr(os, "sysconf")
  assert machine.memory_bytes() == 0


@pytest.mark.parametrize(
  ("text", "expected"), [("1048576\n", 2**20), ("max\n", None), (None, None)]
)
def test_a_containers_memory_is_what_it_is_given(
  tmp_path, monkeypatch, text, expected
):
  monkeypatch.setattr(machine, "_MEMORY_LIMITS", ())
  whole = machine.memory_bytes()
  path = tmp_path / "memory.max"
  if text:
    path.write_text(text)
  monkeypatch.setattr(machine, "_MEMORY_LIMITS", (path, tmp_path / "none"))
  assert machine.memory_bytes() == (expected or whole)


def test_a_folder_that_cannot_be_opened_is_no_error_on_windows(
  tmp_path, monkeypatch
):
  folder = str(tmp_path)

  def refuse(*args):
    raise PermissionError(folder)

  monkeypatch.setattr(os, "open", refuse)
  with refuses(folder, PermissionError):
    machine.sync_folder(folder)
  monkeypatch.setattr(os, "name", "nt")
  machine.sync_folder(folder)


def test_sigterm_unwinds_once(monkeypatch):
  """The second one does not cut off what saves after the first."""
  before = signal.getsignal(signal.SIGTERM)
  try:
    machine.raise_on_sigterm()
    saved = []
    with pytest.raises(machine.Terminated):
      try:
        os.kill(os.getpid(), signal.SIGTERM)
      finally:
        os.kill(os.getpid(), signal.SIGTERM)
        saved.append(True)
    assert saved
  finally:
    signal.signal(signal.SIGTERM, before)


def test_array_record_is_asked_for_by_name(monkeypatch):
  machine.require_array_record()
  monkeypatch.setitem(sys.modules, "array_record", None)
  with refuses("pip install array_record, .* Linux and macOS"):
    machine.require_array_record()
