"""What went wrong outside of the program, as a sentence for its user."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT = re.compile(
  r"No space left on device|[Dd]isk quota exceeded|os error 28\b"
)
# Packages whose errors speak of what they were given, and share no class.
_READERS = ("fsspec", "huggingface_hub", "httpx", "requests", "aiohttp")
_PARSERS = ("pyarrow", "json", "_csv", "csv", "safetensors_rust", "safetensors")
_LENGTH = 600  # characters of a sentence


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
  """Names the file in an OSError that names none, as that of a full disk."""
  try:
    yield
  except OSError as error:
    if error.errno and error.filename is None:
      error.filename = str(path)
    raise


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
  """Names the file in what parsers say of its contents; also as `naming`.

  Raises:
    ValueError: in place of a parser's error.
  """
  try:
    with naming(path):
      yield
  except Exception as error:
    parsers = isinstance(error, UnicodeDecodeError | EOFError)
    if not parsers and _package(error) not in _PARSERS:
      raise
    raise ValueError(
      f"{path} is damaged, or of another kind: {_line(error)}"
    ) from error


def explain(error: BaseException) -> str:
  """One line on what a file, a disk, a package or the network did.

  Args:
    error: whatever was raised.

  Returns:
    "" for anything else: a fault of the program, whose traceback is wanted.
  """
  chain = list(_chain(error))
  for one in chain:
    if _is_full_disk(one):
      names = (getattr(other, "filename", None) for other in chain)
      name = next(filter(None, names), "the disk")
      return (
        f"{name}: no space left on the disk. Free some, and the same command "
        "goes on"
      )
  text, name = _line(error), type(error).__name__
  if isinstance(error, ImportError):
    own = (error.name or "").startswith("longctx_jax")
    return "" if own else f"a package is missing or does not load: {text}"
  if isinstance(error, MemoryError):
    return f"the memory of this machine does not suffice: {text or name}"
  if "RESOURCE_EXHAUSTED" in text:
    return (
      "the memory of the device does not suffice: read less of a document "
      "(--max_length), fewer windows at a time (--config.scoring.window_batch "
      f"or --config.loss.window_batch), or take more devices. {text}"
    )
  if isinstance(error, ValueError | OSError):
    return text or name
  return f"{name}: {text}" if _package(error) in (*_PARSERS, *_READERS) else ""


def _package(error: BaseException) -> str:
  return type(error).__module__.partition(".")[0]


def _line(error: BaseException) -> str:
  text = " ".join(str(error).split())
  return text if len(text) <= _LENGTH else f"{text[:_LENGTH]} ..."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
  while error is not None:
    yield error
    error = error.__cause__ or error.__context__


def _is_full_disk(error: BaseException) -> bool:
  if isinstance(error, OSError) and error.errno in _FULL:
    return True
  return bool(_FULL_TEXT.search(str(error)))
