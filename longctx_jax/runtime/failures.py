"""What went wrong outside of the program, as a sentence for its user."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_TEXT = re.compile(
  r"No space left on device|[Dd]isk quota exceeded|os error 28\b"
)
# Packages whose errors speak of what they were given, and share no class.
_READERS = ("fsspec", "huggingface_hub", "httpx", "requests", "aiohttp")
_PARSERS = (
  "pyarrow",
  "json",
  "zipfile",
  "zlib",
  "_csv",
  "csv",
  "safetensors_rust",
  "safetensors",
)
# What helps, by what the system says of a path.
_REMEDIES = (
  (FileNotFoundError, "check how it is spelled, and where it is relative to"),
  (IsADirectoryError, "it is a folder, name a file"),
  (NotADirectoryError, "a file stands where a folder is wanted, name another"),
  (FileExistsError, "it stands in the way, name another or move it"),
  (PermissionError, "this user may not, change its mode or take another"),
)
_LENGTH = 600  # characters of a sentence
_REASON = 200  # characters of what a library says


class Several(ValueError):
  """Faults that were found together, a sentence each."""

  def __init__(self, sentences: Sequence[str]):
    """Keeps the sentences, in order."""
    super().__init__("; ".join(sentences))
    self.sentences = tuple(sentences)


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
    # Arrow's errors of a damaged file are OSErrors that the system knows not.
    known = isinstance(error, UnicodeDecodeError | EOFError) or (
      type(error) is OSError and not error.errno
    )
    if str(path) in str(error) or not (known or _package(error) in _PARSERS):
      raise
    raise ValueError(
      f"{path} is damaged, or of another kind: {_line(error)}"
    ) from error


@contextlib.contextmanager
def restoring(folder: str | os.PathLike[str], *, remedy: str) -> Iterator[None]:
  """Names the folder in what a library says of arrays that it can't read.

  Damage comes up as errors of any class, some pages long.

  Args:
    folder: where the arrays are.
    remedy: what to do, a sentence.

  Raises:
    ValueError: in place of it.
  """
  try:
    yield
  except MemoryError:
    raise
  except Exception as error:
    if "RESOURCE_EXHAUSTED" in str(error):
      raise
    reason = f"{type(error).__name__}: {error}".replace("\n", " ")
    raise ValueError(
      f"{folder} is damaged, or not whole: {remedy}. {reason[:_REASON]}"
    ) from error


def is_full_disk(error: BaseException) -> bool:
  """Whether a disk without space is behind an error, of whichever class."""
  return any(map(_is_full_disk, _chain(error)))


def explain(error: BaseException, *, place: str = "the disk") -> str:
  """One line on what a file, a disk, a package or the network did.

  Args:
    error: whatever was raised.
    place: where was written, if the error of a full disk does not say.

  Returns:
    "" for anything else: a fault of the program, whose traceback is wanted.
  """
  if is_full_disk(error):
    names = (getattr(other, "filename", None) for other in _chain(error))
    return (
      f"{next(filter(None, names), place)}: no space left on the disk. Free "
      "some, and the same command goes on"
    )
  text, name = _line(error), type(error).__name__
  if isinstance(error, ImportError):
    own = (error.name or "").startswith("longctx_jax")
    return "" if own else f"a package is missing or does not load: {text}"
  if isinstance(error, re.error):
    return f"the pattern {error.pattern!r} is no regular expression: {text}"
  if isinstance(error, OSError) and error.filename and error.strerror:
    remedies = (what for kind, what in _REMEDIES if isinstance(error, kind))
    remedy = next(remedies, "take another path")
    return f"{error.filename}: {error.strerror}: {remedy}"
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
  return f"{name}: {text}" if _package(error) in [*_PARSERS, *_READERS] else ""


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
