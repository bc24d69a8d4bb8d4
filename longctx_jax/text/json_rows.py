"""Rows of a JSON file: an object a line, or one array of objects."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, TextIO

import fsspec

from longctx_jax.text import streams

# A row as read: its values by column, or why it can't be read.
Row = dict[str, Any] | str
_ARRAY = re.compile(rb"(\xef\xbb\xbf)?\s*\[\s*[{\]]")
_HEAD_BYTES = 4096
_CHARS = 1 << 20  # read at a time


def read_rows(fs: fsspec.AbstractFileSystem, path: str) -> Iterator[Row]:
  """The rows in order, never all in memory; blank lines don't count.

  Raises:
    ValueError: an array that is damaged; where the damage is reached.
  """
  with streams.open_bytes(fs, path) as file:
    is_array = _ARRAY.match(file.read(_HEAD_BYTES))
  with streams.open_bytes(fs, path) as file:
    if is_array:
      yield from _elements(file, path)
    else:
      yield from (_parse(line) for line in file if line.strip())


def _parse(line: bytes) -> Row:
  try:
    row = json.loads(line)
  except (ValueError, RecursionError) as error:
    return f"not JSON: {error}"
  return _row(row, "line")


def _row(value: Any, what: str) -> Row:
  if isinstance(value, dict):
    return value
  return f"the {what} holds a {type(value).__name__}, not an object"


def _elements(file: BinaryIO, path: str) -> Iterator[Row]:
  number = 0
  try:
    with io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
      for value in _Array(text):
        yield _row(value, "element")
        number += 1
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"{path} is one JSON array, and damaged at element {number}: {error}"
    ) from error


class _Array:
  """The JSON array that a text is, read an element at a time."""

  def __init__(self, text: TextIO):
    self._text = text
    self._held = ""
    self._decode = json.JSONDecoder().raw_decode

  def __iter__(self) -> Iterator[Any]:
    self._take()  # The bracket that told that it is one.
    sign = self._take() if self._next() == "]" else ","
    while sign == ",":
      yield self._value()
      sign = self._take()
    if sign != "]" or self._next():
      raise ValueError("a comma was expected, or the end of array and file")

  def _more(self) -> bool:
    """Reads as much again as is held, so that the work stays linear."""
    read = self._text.read(max(_CHARS, len(self._held)))
    self._held += read
    return bool(read)

  def _next(self) -> str:
    """The next sign; "" at the end of the file."""
    self._held = self._held.lstrip()
    while not self._held and self._more():
      self._held = self._held.lstrip()
    return self._held[:1]

  def _take(self) -> str:
    sign, self._held = self._next(), self._held[1:]
    return sign

  def _value(self) -> Any:
    self._next()
    while True:
      try:
        value, end = self._decode(self._held)
      except ValueError:
        if not self._more():
          raise
      else:
        # A number may go on in what is not read yet.
        if end < len(self._held) or not self._more():
          self._held = self._held[end:]
          return value
