"""Compiled programs, kept in a folder from one run to the next."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile

import jax
from absl import logging

_MOST_BYTES = 2**31
# How JAX names a program, and when it was last used (8 bytes, nanoseconds).
_PROGRAM, _LAST_USE = "-cache", "-atime"


def default_folder() -> str:
  """Where the user's caches are, by the XDG base directories."""
  caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  return os.path.join(caches, "longctx_jax", "xla")


def keep(folder: str) -> None:
  """Keeps all programs that are compiled from now on; takes those of before.

  Those that were used least recently leave where all would have more than
  2 GiB. A folder that can't be written is warned of, and does without.

  Args:
    folder: is made where there is none; "~" is the user's.
  """
  path = pathlib.Path(folder).expanduser()
  try:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
      pass
    _date(path)
  except OSError as error:
    logging.warning(
      "compiled programs are not kept: %s: %s", path, error.strerror
    )
    return
  jax.config.update("jax_compilation_cache_dir", str(path))
  jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _date(folder: pathlib.Path) -> None:
  """Says when programs were last used where that is lacking.

  They are of a cache without a bound, or of a run that was killed. JAX would
  keep nothing beside them.
  """
  for program in folder.glob(f"*{_PROGRAM}"):
    last_use = folder / f"{program.name.removesuffix(_PROGRAM)}{_LAST_USE}"
    # Another process may remove it at the same time.
    with contextlib.suppress(FileNotFoundError):
      if not last_use.exists() or last_use.stat().st_size != 8:
        time_ns = program.stat().st_mtime_ns
        last_use.write_bytes(time_ns.to_bytes(8, "little"))
