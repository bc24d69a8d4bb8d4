"""What models are called among results: stated, or made from their paths."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Sequence

# What training leaves in the folder of a run: says nothing of the model.
_OF_RUN = re.compile(r"export|final|hf|model")
_STEP = re.compile(r"(checkpoint|step)?[-_]?\d+")
_STATED = re.compile(r"([\w.+-]+)=(.+)")


def read(words: Sequence[str], *, form: str = "") -> dict[str, str]:
  """Name -> path of each model, from words that are PATH or NAME=PATH.

  Without a name, a hub id is called by itself with "--" for "/", a run's
  export by the run ("a" of runs/a/export), a step by run and step
  ("lr1--checkpoint-500"), and anything else by the last part of its path.

  Args:
    words: what the user says.
    form: of the weights, where it is not the stored one ("int8"): the end of
      a name that is made here, so that both forms have a row.

  Raises:
    ValueError: two models of one name, or a path that has none.
  """
  named: dict[str, str] = {}
  for word in words:
    name, path = _split(word)
    if name and form and path == word:
      name = f"{name}-{form}"
    if not name:
      raise ValueError(
        f"--model {path} has no name: write --model NAME={path}, or name a "
        "folder of its own"
      )
    if name in named:
      raise ValueError(
        f"two models are called {name!r}, {named[name]} and {path}: write "
        f"--model NAME={path}"
      )
    named[name] = path
  return named


def _split(word: str) -> tuple[str, str]:
  match = _STATED.fullmatch(word)
  if match and not pathlib.Path(word).exists():
    return match[1], match[2]
  return _default(word), word


def _default(path: str) -> str:
  is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+(@[\w.-]+)?", path)
  if is_hub_id and not pathlib.Path(path).exists():
    return path.replace("/", "--")
  # The absolute path: "." has no name of its own.
  full = pathlib.Path(os.path.abspath(pathlib.Path(path).expanduser()))
  if _OF_RUN.fullmatch(full.name) and full.parent.name:
    return full.parent.name
  if _STEP.fullmatch(full.name) and full.parent.name:
    run = full.parent
    if run.name == "checkpoints" and run.parent.name:
      run = run.parent
    return f"{run.name}--{full.name}"
  return full.name
