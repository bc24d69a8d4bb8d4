"""A second process compiles nothing; the folder is bounded, and no need."""

import subprocess
import sys

from support.command_line import environment

from longctx_jax.runtime import programs

# Runs functions, by number, in a process for each list on stdin, and prints
# which were found in the folder.
RUNS = """
import os, sys
import jax
from longctx_jax.runtime import programs
folder, programs._MOST_BYTES = sys.argv[1], int(sys.argv[2])
hits = []
note = lambda name, **_: hits.append(name.endswith("/cache_hits"))
jax.monitoring.register_event_listener(note)
for numbers in eval(sys.stdin.read()):
  if not os.fork():
    programs.keep(folder)
    found = []
    for number in numbers:
      hits.clear()
      times = lambda x: x * number + number
      times.__name__ = f"times_{number}"
      x = jax.ShapeDtypeStruct((number + 2,), "float32")
      jax.jit(times).lower(x).compile()
      if any(hits):
        found.append(number)
    print(found)
    os._exit(sys.stdout.flush() or 0)
  os.wait()
"""


def run(tmp_path, folder, lists, *, most=2**31):
  """What each process found in the folder, and what all wrote to stderr."""
  done = subprocess.run(
    [sys.executable, "-c", RUNS, str(folder), str(most)],
    input=repr(lists),
    env=environment(tmp_path),
    capture_output=True,
    text=True,
    check=True,
  )
  return [eval(line) for line in done.stdout.splitlines()], done.stderr


def test_a_second_process_compiles_nothing_however_small(tmp_path):
  folder = tmp_path / "made" / "xla"
  found, said = run(tmp_path, folder, [[1, 2], [1, 2, 3], [1, 2, 3]])
  assert found == [[], [1, 2], [1, 2, 3]]
  assert not said


def test_what_was_used_least_recently_leaves_where_all_are_too_large(tmp_path):
  folder = tmp_path / "xla"
  run(tmp_path, folder, [[1]])
  (program,) = folder.glob("*-cache")
  size = program.stat().st_size
  # As a cache without a bound leaves it.
  (last_use,) = folder.glob("*-atime")
  last_use.unlink()
  most = int(2.5 * size)
  found, said = run(tmp_path, folder, [[2], [1], [3], [2], [1, 2]], most=most)
  # 3 takes the place of 2, and then 2 that of 1, which 3 was used after.
  assert found == [[], [1], [], [], [2]]
  kept = sum(one.stat().st_size for one in folder.glob("*-cache"))
  assert size < kept <= most
  assert not said


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path):
  (tmp_path / "file").write_text("")
  found, said = run(tmp_path, tmp_path / "file" / "xla", [[1], [1]])
  assert found == [[], []]
  assert said.count("compiled programs are not kept: ") == 2
  assert "file/xla: Not a directory" in said and "Traceback" not in said


def test_the_folder_is_in_the_users_cache(monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
  assert programs.default_folder() == "/caches/longctx_jax/xla"
  monkeypatch.setenv("XDG_CACHE_HOME", "")
  assert programs.default_folder() == "~/.cache/longctx_jax/xla"
