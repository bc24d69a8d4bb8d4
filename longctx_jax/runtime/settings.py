"""What determines the numbers of a run, and whether two runs agree in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# Fields that a message names; a model has hundreds.
_NAMED = 12


class OtherSettings(ValueError):
  """What lies in a workdir was made with other settings."""


def flatten(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Dotted name -> value of nested fields, as JSON gives the values back."""
  return {
    name: json.loads(json.dumps(value)) for name, value in _walk(fields, prefix)
  }


def _walk(fields: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
  for name, value in fields.items():
    if isinstance(value, Mapping):
      yield from _walk(value, f"{prefix}{name}.")
    else:
      yield prefix + name, value


def differences(
  first: Mapping[str, Any], second: Mapping[str, Any]
) -> list[tuple[str, str, str]]:
  """Fields in which two runs differ: (name, value, other value), to print."""
  return [
    (name, _printed(first, name), _printed(second, name))
    for name in sorted({*first, *second})
    if name not in first or name not in second or first[name] != second[name]
  ]


def require_same(
  stored: Mapping[str, Any],
  current: Mapping[str, Any],
  *,
  where: object,
  problem: str = "holds a run with other settings",
  remedy: str = "Take another --workdir, or --overwrite",
) -> None:
  """Raises OtherSettings where two sets of facts differ; each is named.

  Args:
    stored: facts of what is there.
    current: facts of what is asked for.
    where: what holds the stored ones, for the message.
    problem: what that is, for the message.
    remedy: what to do, for the message.
  """
  different = [
    f"{name} was {was} and is {now}"
    for name, was, now in differences(stored, current)
  ]
  if different:
    more = len(different) - _NAMED
    raise OtherSettings(
      f"{where} {problem}: {'; '.join(different[:_NAMED])}"
      f"{f'; and {more} more' if more > 0 else ''}. {remedy}"
    )


def _printed(fields: Mapping[str, Any], name: str) -> str:
  return repr(fields[name]) if name in fields else "not there"
