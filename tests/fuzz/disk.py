"""Writes below one folder, each of which can be the last of its process."""

import builtins
import contextlib
import io
import os

# Functions of os that change a folder, and which argument names the place.
_CHANGES = {
  "replace": 1, "rename": 1, "unlink": 0, "remove": 0, "mkdir": 0, "rmdir": 0,
}  # fmt: skip


class Killed(BaseException):
  """The process is gone; what it had not given to the system is lost."""


class Disk:
  """Counts the writes of a process, and stops it before one of them.

  A write is what reaches the system: a file that is opened for writing, bytes
  that leave a buffer, a flush to the disk, a name that appears or goes. A
  process that is stopped in one that writes bytes leaves half of them.

  Attributes:
    writes: of the process so far.
  """

  def __init__(self, root):
    self._root = os.path.realpath(root)
    self._is_running = self._is_dead = False
    self._at, self._then = 0, None
    self.writes = 0

  @contextlib.contextmanager
  def process(self, *, at=0, then=None):
    """What runs inside is one process; processes may nest.

    Args:
      at: number of the write, from 1, before which `then` is called.
      then: None kills the process.
    """
    before = dict(vars(self))
    self._is_running, self._is_dead = True, False
    self._at, self._then, self.writes = at, then, 0
    try:
      yield
    finally:
      vars(self).update(before)

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
      self._is_running
      and isinstance(path, str | os.PathLike)
      and os.path.realpath(path).startswith(self._root)
    )

  def _write(self, partly=lambda: None):
    """Called before a write; `partly` does half of it."""
    if not self._is_running:
      return
    if self._is_dead:
      raise Killed
    self.writes += 1
    if self.writes != self._at:
      return
    if self._then is None:
      partly()
      self._is_dead = True
      raise Killed
    self._then()

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
      raw = io.BufferedWriter(_File(self, file, plain))
      return (
        raw if "b" in mode else io.TextIOWrapper(raw, *arguments, **options)
      )

    return opened


class _File(io.FileIO):
  """A file whose bytes stay away once its process is dead."""

  def __init__(self, disk, path, mode):
    self._disk = disk
    super().__init__(path, mode)

  def write(self, data):
    disk, data = self._disk, bytes(data)
    if disk._is_dead:
      return len(data)
    disk._write(lambda: super(_File, self).write(data[: len(data) // 2]))
    return super().write(data)
