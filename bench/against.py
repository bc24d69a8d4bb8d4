"""Compares two versions of the project: processes that take turns.

Each version has a process of its own, which loads and compiles first; then
they measure a round each, in turn, while the other sleeps. So both meet the
same hours of the machine, and neither the other's memory traffic.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import statistics
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Rounds = dict[str, list[dict[str, Any]]]


def extract(
  repository: pathlib.Path, revision: str, folder: pathlib.Path
) -> str:
  """Writes the tree of a revision into a folder; its commit.

  Raises:
    ValueError: there is no such revision.
  """

  def git(*arguments: str) -> bytes:
    command = ["git", "-C", str(repository), *arguments]
    done = subprocess.run(command, capture_output=True)
    if done.returncode:
      raise ValueError(
        f"{revision!r} is no revision of {repository}: "
        f"{done.stderr.decode().strip()}; name a commit or a tag"
      )
    return done.stdout

  commit = git("rev-parse", "--verify", f"{revision}^{{commit}}").decode()
  with tarfile.open(fileobj=io.BytesIO(git("archive", revision))) as tree:
    tree.extractall(folder, filter="data")
  return commit.strip()


@contextlib.contextmanager
def worker(
  command: Sequence[str], env: Mapping[str, str]
) -> Iterator[subprocess.Popen]:
  """A process that answers a line with a line; it ends with the block.

  Args:
    command: reads lines; prints one when it is ready, then one for each.
    env: its environment.
  """
  process = subprocess.Popen(
    command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  try:
    yield process
  finally:
    process.stdin.close()
    process.wait()
    process.stdout.close()


def answer(process: subprocess.Popen) -> dict[str, Any]:
  """The next line of a worker.

  Raises:
    RuntimeError: it ended.
  """
  line = process.stdout.readline()
  if not line:
    raise RuntimeError(
      f"{' '.join(process.args)} ended with {process.wait()}: see its stderr"
    )
  return json.loads(line)


def alternate(
  workers: Mapping[str, subprocess.Popen], rounds: int
) -> tuple[dict[str, dict[str, Any]], Rounds]:
  """(what each said when it was ready, its rounds), one worker at a time.

  Who goes first changes from round to round.

  Args:
    workers: name -> a process of `worker`.
    rounds: how many each measures.
  """
  ready = {name: answer(process) for name, process in workers.items()}
  results: Rounds = {name: [] for name in workers}
  for number in range(rounds):
    names = list(workers)
    for name in names if number % 2 == 0 else reversed(names):
      workers[name].stdin.write("\n")
      workers[name].stdin.flush()
      results[name].append(answer(workers[name]))
  return ready, results


def ratios(results: Rounds, value: str) -> tuple[float, list[float]]:
  """(median, all) of second / first, round by round.

  Args:
    results: of two workers.
    value: a name in their lines.
  """
  first, second = results.values()
  every = [b[value] / a[value] for a, b in zip(first, second, strict=True)]
  return statistics.median(every), every
