"""What Linux, macOS and Windows do not share: each in one function."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import signal
import threading
from types import FrameType

# Of control groups, version 2 and 1.
_MEMORY_LIMITS = (
  "/sys/fs/cgroup/memory.max",
  "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def cpu_count() -> int:
  """Cores that this process may use; those of the machine where unknown."""
  if hasattr(os, "sched_getaffinity"):  # Linux
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def memory_bytes() -> int:
  """Main memory that a process may use; 0 where the system does not say."""
  try:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Windows has no sysconf.
    return 0
  return min([whole, *_memory_limits()])


def _memory_limits() -> list[int]:
  """What containers are given of the memory."""
  found = []
  for path in _MEMORY_LIMITS:
    try:
      text = pathlib.Path(path).read_text().strip()
    except OSError:
      continue
    if text.isdigit():  # "max" is none.
      found.append(int(text))
  return found


def sync_folder(folder: str | os.PathLike[str]) -> None:
  """Brings the names in a folder to the disk, where the system can."""
  try:
    descriptor = os.open(folder, os.O_RDONLY)
  except PermissionError:
    if os.name != "nt":  # A folder can't be opened there.
      raise
    return
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def require_array_record() -> None:
  """Raises ValueError where training can't keep its tokens."""
  if importlib.util.find_spec("array_record") is None:
    raise ValueError(
      "training keeps its tokens in ArrayRecord files, and array_record is not "
      "installed: pip install array_record, which there is for Linux and macOS "
      "alone. Scoring, evaluation and reports do without it"
    )


class Terminated(KeyboardInterrupt):
  """SIGTERM came: as Ctrl-C, from a scheduler."""


def raise_on_sigterm() -> None:
  """Makes SIGTERM raise `Terminated`, where Python lets it: in the main thread.

  What is unwinding can then save its work, as after Ctrl-C.
  """
  if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
  # The second one finds a process that is saving: it shall come to the end.
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  raise Terminated
