"""The command `longctx`: `longctx score` is `python scripts/score.py`."""

from __future__ import annotations

import ast
import difflib
import pathlib
import runpy
import sys

from longctx_jax import commands


def scripts() -> dict[str, pathlib.Path]:
  """Verb -> script."""
  return {
    path.stem: path for path in sorted(commands.folder("scripts").glob("*.py"))
  }


def overview() -> str:
  """The verbs, each with the first line of its script."""
  lines = ["usage: longctx VERB FLAGS; longctx VERB --help", ""]
  for verb, path in scripts().items():
    text = ast.get_docstring(ast.parse(path.read_text()))
    lines.append(f"  {verb:<10} {text.splitlines()[0]}")
  return "\n".join(lines)


def main() -> None:
  """Runs the script that the first word names, as if by `python`."""
  verb, known = (sys.argv[1:2] or ["--help"])[0], scripts()
  if verb in ("-h", "--help", "help"):
    print(overview())
    return
  if verb == "--version":
    print("longctx_jax", sys.modules["longctx_jax"].__version__)
    return
  if verb not in known:
    near = difflib.get_close_matches(verb, known, 1)
    hint = f" Did you mean: {near[0]}?" if near else ""
    print(
      f"error: longctx has no verb {verb!r}.{hint} Verbs: {', '.join(known)}",
      file=sys.stderr,
    )
    sys.exit(2)
  sys.argv = [str(known[verb]), *sys.argv[2:]]
  runpy.run_path(sys.argv[0], run_name="__main__")
