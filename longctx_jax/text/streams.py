"""Bytes of a file, decompressed where its name says so."""

from __future__ import annotations

import contextlib
import io
import lzma
import posixpath
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import fsspec
import pyarrow as pa

# One stream each: a .zip may hold several files.
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def extension(path: str) -> str:
  """What a file's name ends in, in lower case: ".jsonl" of "a.jsonl.gz"."""
  stem, last = posixpath.splitext(path.lower())
  return posixpath.splitext(stem)[1] if last in _COMPRESSED else last


def is_compressed(path: str) -> bool:
  """Whether `open_bytes` decompresses a file."""
  return path.lower().endswith(_COMPRESSED)


@contextlib.contextmanager
def open_bytes(fs: fsspec.AbstractFileSystem, path: str) -> Iterator[BinaryIO]:
  """The decompressed bytes of a file, as a stream.

  Raises:
    ValueError: a damaged file, where bytes that are not there are read.
  """
  try:
    with _open(fs, path) as file:
      yield file
  except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
    if not is_compressed(path) or getattr(error, "filename", None):
      raise
    raise ValueError(f"{path} is damaged: {error}") from error


def _open(fs: fsspec.AbstractFileSystem, path: str) -> BinaryIO:
  if path.lower().endswith(".zst"):
    # fsspec knows it with a package that few have; Arrow is there.
    file = fs.open(path, "rb")
    return io.BufferedReader(pa.CompressedInputStream(file, "zstd"))
  return fs.open(path, "rb", compression="infer")
