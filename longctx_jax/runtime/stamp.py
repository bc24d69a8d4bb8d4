"""What made a file: the command, when, and with which versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import pathlib
import shlex
import sys
from typing import Any

_PACKAGES = ("jax", "flax", "tokenizers")


def stamp() -> dict[str, Any]:
  """`command` as it was typed, `date` in UTC, `versions`; for readers."""
  script, *words = sys.argv
  path = pathlib.Path(script)
  # The same on every machine: not where the checkout lies.
  folder = "scripts/" if path.parent.name == "scripts" else ""
  now = datetime.datetime.now(datetime.UTC)
  versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
  own = sys.modules["longctx_jax"].__version__
  return {
    "command": shlex.join(["python", f"{folder}{path.name}", *words]),
    "date": now.isoformat(timespec="seconds"),
    "versions": {"longctx_jax": own, **versions},
  }
