"""Places with a scheme, as gs://bucket/file: read through fsspec's packages."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import posixpath
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import fsspec

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# What file systems call the facts that change with a file's contents.
_VERSIONS = "size mtime LastModified updated etag ETag blob_id".split()
_COPIES = "~/.cache/longctx_jax/copies"
_DIGEST_CHARS = 16
_PACKAGES = {
  "gs": "gcsfs",
  "gcs": "gcsfs",
  "s3": "s3fs",
  "s3a": "s3fs",
  "http": "aiohttp requests",
  "https": "aiohttp requests",
  "hf": "huggingface_hub",
  "abfs": "adlfs",
  "az": "adlfs",
}


def scheme(place: str | os.PathLike[str]) -> str:
  """The scheme of a URL; "" of a path."""
  match = _URL.match(str(place))
  return match[1] if match else ""


def require_local(place: str | os.PathLike[str], *, flag: str) -> None:
  """Raises ValueError for a URL where something is to be written.

  Args:
    place: what the user named.
    flag: by which, for the message.
  """
  if scheme(place):
    raise ValueError(
      f"--{flag} {place} is a URL: object stores know neither rename nor "
      "locks, which a run needs. Name a folder that is local or mounted, and "
      "copy it when the run has ended"
    )


def open_file_system(
  place: str | os.PathLike[str],
) -> tuple[fsspec.AbstractFileSystem, str]:
  """The file system of a path or URL, and the path in it.

  Raises:
    ValueError: a scheme that is not known, or whose package is not installed.
  """
  try:
    with reaching(place):
      return fsspec.core.url_to_fs(str(place))
  except ImportError as error:
    name = scheme(place)
    remedy = f"pip install {_PACKAGES[name]}" if name in _PACKAGES else error
    raise ValueError(
      f"{place} needs a package that is not installed: {remedy}. Or copy the "
      "files here, and name their folder"
    ) from error
  except ValueError as error:
    raise ValueError(f"{place}: {error}") from error


def version(facts: Mapping[str, Any]) -> str:
  """What changes with the contents of a file, as its file system says it."""
  return " ".join(str(facts[name]) for name in _VERSIONS if name in facts)


def fetched(
  place: str | os.PathLike[str], *, files: Sequence[str] = ()
) -> pathlib.Path:
  """The path of a place; of a URL, that of a copy on this machine.

  A copy is kept below ~/.cache/longctx_jax, and made anew where a file of the
  place has changed.

  Args:
    place: a path, which is returned as it is, or the URL of a file or folder.
    files: patterns of what is wanted of a folder, below it; () is all.

  Raises:
    FileNotFoundError: no such file, or none that is wanted.
    OSError, ValueError: see `reaching` and `open_file_system`.
  """
  if not scheme(place):
    return pathlib.Path(place)
  system, root = open_file_system(place)
  with reaching(place):
    is_file = system.isfile(root)
    found = {root: system.info(root)} if is_file else {}
    if not is_file and system.isdir(root):
      found = system.find(root, detail=True)
    start = root if is_file else f"{root.rstrip('/')}/"
    names = {
      path: path.removeprefix(start).lstrip("/")
      or posixpath.basename(path)
      for path in found
    }  # fmt: skip
    names = {
      path: name
      for path, name in names.items()
      if is_file or not files or any(fnmatch.fnmatch(name, p) for p in files)
    }
    if not names:
      wanted = f"holds no {' or '.join(files)}" if found else "does not exist"
      raise FileNotFoundError(f"{place} {wanted}: check the name")
    stated = [
      [scheme(place), root.rstrip("/")],
      [[name, version(found[path])] for path, name in sorted(names.items())],
    ]
    digest = hashlib.sha256(json.dumps(stated).encode()).hexdigest()
    copy = pathlib.Path(_COPIES).expanduser() / digest[:_DIGEST_CHARS]
    # By its own name: slice files are named by their folder.
    target = copy / (posixpath.basename(root.rstrip("/")) or "root")
    if not copy.exists():
      _copy(system, names, copy, target.name, is_file=is_file)
  return target


def _copy(
  system: fsspec.AbstractFileSystem,
  names: Mapping[str, str],
  copy: pathlib.Path,
  top: str,
  *,
  is_file: bool,
) -> None:
  """Copies files, which appear together when all are there."""
  copy.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=copy.parent) as scratch:
    for path, name in names.items():
      target = pathlib.Path(scratch, "copy", top, "" if is_file else name)
      target.parent.mkdir(parents=True, exist_ok=True)
      system.get_file(path, str(target))
    try:
      os.rename(pathlib.Path(scratch, "copy"), copy)
    except OSError:
      if not copy.exists():  # Else another process was first.
        raise


@contextlib.contextmanager
def reaching(place: str | os.PathLike[str]) -> Iterator[None]:
  """Names the URL where the network, or who is behind it, fails.

  Each package has errors of its own, of no common class.

  Raises:
    OSError: in place of them.
  """
  try:
    yield
  except (ValueError, ImportError):
    raise
  except Exception as error:
    if not scheme(place) or str(place) in str(error):
      raise
    reason = next(iter(str(error).strip().splitlines()), "").rstrip(".")
    if isinstance(error, FileNotFoundError):
      raise FileNotFoundError(
        f"{place} does not exist ({reason}): check the name, and the access to "
        "it"
      ) from error
    raise OSError(
      f"{place} can't be read: {type(error).__name__}: {reason}. Check the "
      "name, the connection and the access to it, or copy the files here and "
      "name their folder"
    ) from error
