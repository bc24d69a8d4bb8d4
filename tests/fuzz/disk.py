"""Writes below one folder, each of which can be the last of its process."""

import builtins
import contextlib
import dataclasses
import io
import os
from collections.abc import Callable

# Functions of os that change a folder, and which argument names the place.
_CHANGES = {
  "replace": 1, "rename": 1, "unlink": 0, "remove": 0, "mkdir": 0, "rmdir": 0,
}  # fmt: skip


class Killed(BaseException):
  """The process is gone; what it had not given to the system is lost."""


@dataclasses.dataclass
class _Process:
  at: int
  then: Callable[[], None] | None
  writes: int = 0
  is_dead: bool = False


class Disk:
  """Counts the writes of a process, and stops it before one of them.

  A write is what reaches the system: a file that is opened for writing, bytes
  that leave a buffer, a flush to the disk, a name that appears or goes. A
  process that is stopped in one that writes bytes leaves half of them.
  """

  def __init__(self, root, *, kill=None):
    """Takes the folder, and how a process ends where it is not pretended."""
    self._root = os.path.realpath(root)
    self._kill = kill
    self._process = None

  @contextlib.contextmanager
  def process(self, *, at=0, then=None):
    """What runs inside is one process; processes may nest.

    Args:
      at: number of the write, from 1, before which `then` is called.
      then: None kills the process.
    """
    before, self._process = self._process, _Process(at, then)
    try:
      yield self._process
    finally:
      self._process = before

  def watch(self, monkeypatch):
    """Sees the writes of this interpreter from now on."""
    for name, place in _CHANGES.items():
      monkeypatch.setattr(os, name, self._watched(getattr(os, name), place))
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: self._write() or fsync(file))
    opened = self._opened(io.open)
    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(builtins, "open", opened)

  def is_watched(self, path):
    """Whether a file is written by a process that runs, below the folder."""
    return (
      self._process is not None
      and isinstance(path, str | os.PathLike)
      and os.path.realpath(path).startswith(self._root)
    )

  def end_process(self):
    """Kills the process that runs."""
    if self._kill:
      self._kill()
    self._process.is_dead = True
    raise Killed

  def _write(self, partly=lambda: None):
    """Called before a write; `partly` does half of it."""
    process = self._process
    if process is None:
      return
    if process.is_dead:
      raise Killed
    process.writes += 1
    if process.writes != process.at:
      return
    if process.then is None:
      partly()
      self.end_process()
    process.then()

  def _watched(self, function, place):
    def watched(*arguments, **options):
      if self.is_watched(arguments[place]):
        self._write()
      return function(*arguments, **options)

    return watched

  def _opened(self, function):
    def opened(file, mode="r", buffering=-1, *arguments, **options):
      if not set(mode) & set("wax+") or not self.is_watched(file):
        return function(file, mode, buffering, *arguments, **options)
      self._write()
      plain = "".join(c for c in mode if c not in "bt")
      raw = _File(self._process, self._write, file, plain)
      if "b" in mode:
        return io.BufferedWriter(raw)
      return io.TextIOWrapper(io.BufferedWriter(raw), *arguments, **options)

    return opened


class _File(io.FileIO):
  """A file whose bytes stay away once its process is dead."""

  def __init__(self, process, before_write, path, mode):
    self._process, self._before_write = process, before_write
    super().__init__(path, mode)

  def write(self, data):
    data = bytes(data)
    if self._process.is_dead:
      return len(data)  # What a buffer held when the process died.
    half = data[: len(data) // 2]
    self._before_write(lambda: super(_File, self).write(half))
    return super().write(data)
