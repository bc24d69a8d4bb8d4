"""Places with a scheme, as gs://bucket/file: read through fsspec's packages."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import fsspec

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
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
