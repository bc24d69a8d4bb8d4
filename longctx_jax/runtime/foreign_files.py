"""Files that others wrote: what is wrong with one, in a sentence."""

from __future__ import annotations

import json
import pathlib
from typing import Any

_POINTER = b"version https://git-lfs"


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """The object in a JSON file.

  Raises:
    ValueError: for a pointer in place of the file, text that is no JSON or no
      object, or a field that stands twice: it could be read in two ways.
  """
  require_content(path)

  def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
      raise ValueError(f"states {', '.join(twice)} twice")
    return dict(pairs)

  try:
    found = json.loads(path.read_text("utf-8"), object_pairs_hook=once)
  except ValueError as error:
    raise ValueError(
      f"{path} cannot be read: {error or 'it is no JSON'}. Copy it once more"
    ) from error
  if not isinstance(found, dict):
    raise ValueError(f"{path} holds a {type(found).__name__}, not an object")
  return found


def require_content(path: pathlib.Path) -> None:
  """Raises ValueError for an empty file, or git's pointer in place of one."""
  with path.open("rb") as file:
    head = file.read(len(_POINTER))
  if not head:
    raise ValueError(f"{path} is empty: copy it once more")
  refuse_pointer_in(head, path)


def refuse_pointer_in(head: bytes, path: object) -> None:
  """Raises ValueError where a file's first bytes are those of a pointer.

  Args:
    head: at least 23 bytes of it.
    path: of the file, for the message.
  """
  if head.startswith(_POINTER):
    raise ValueError(
      f"{path} is a git-lfs pointer, not the file itself: run `git lfs pull` "
      "in its folder, or download the file"
    )
