"""Files that appear whole, and locks: what a killed run may leave behind.

After a crash at any moment a reader sees the file of before or the new one,
never a part of it. The folder is local, or mounted: object stores know neither
rename nor locks.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import uuid
from collections.abc import Iterator
from typing import BinaryIO

import filelock

from longctx_jax.runtime import failures, machine

_TEMPORARY = ".tmp"


class InUse(ValueError):
  """Another process works where this one would."""


@contextlib.contextmanager
def appearing(
  path: str | os.PathLike[str], *, scratch: str | os.PathLike[str] = ""
) -> Iterator[BinaryIO]:
  """A file that has its name only when all of it is on the disk.

  Written beside it under a name that no other process has, flushed to the
  disk, renamed. An exception removes what was written.

  Args:
    path: the folder exists; what is there is replaced.
    scratch: folder of the same disk to write in, in place of the file's own.
  """
  path = pathlib.Path(path)
  name = f"{path.name}.{uuid.uuid4().hex[:8]}{_TEMPORARY}"
  temporary = pathlib.Path(scratch or path.parent) / name
  try:
    with failures.naming(path), open(temporary, "wb") as file:
      yield file
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise
  machine.sync_folder(path.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
  """Writes UTF-8 text as a file that appears whole; see `appearing`."""
  with appearing(path) as file:
    file.write(text.encode())


def disk_of(path: str | os.PathLike[str]) -> tuple[pathlib.Path, int]:
  """The folder at or above a path that is there, and bytes free on its disk."""
  path = pathlib.Path(path).expanduser().absolute()
  there = next(place for place in (path, *path.parents) if place.exists())
  return there, shutil.disk_usage(there).free


def remove_leftovers(folder: str | os.PathLike[str], pattern: str) -> None:
  """Removes what killed writers left of files that match a glob pattern.

  Only under the lock of the folder: a writer may be at work on such a file.
  """
  for path in pathlib.Path(folder).glob(f"{pattern}.*{_TEMPORARY}"):
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(
  path: str | os.PathLike[str], *, doing: str, wait: bool = False
) -> Iterator[None]:
  """Holds a lock, which the system frees when the process ends or is killed.

  Args:
    path: the lock's file; its folder is made. The file stays.
    doing: what must not be done by two at once, for the message.
    wait: until the other process ends, rather than raise.

  Raises:
    InUse: another process holds it.
  """
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  lock = filelock.FileLock(path, timeout=-1 if wait else 0)
  try:
    lock.acquire()
  except filelock.Timeout as error:
    raise InUse(
      f"another process is {doing} {path.parent}: wait until it ends, or take "
      "another --workdir"
    ) from error
  try:
    yield
  finally:
    lock.release()
