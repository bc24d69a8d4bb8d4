"""What a command line may say: one screen of help, and other tools' names."""

from __future__ import annotations

import ast
import inspect
import pathlib
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence

from absl import flags

_WIDTH = 80
# Columns of the names, before what they mean.
_NAMES = 25
# What was written for another tool, or for an older version of this one.
_ALIASES = {
  "device": "platform",
  "key_tokens": "keys",
  "model": "evaluator",
  "output": "workdir",
  "output_dir": "workdir",
  "output_path": "workdir",
  "pretrained": "model",
  "source": "model",
  "target": "output",
}
# How a value is written, by its kind; others by the flag's last word.
_VALUES = {"int": " N", "float": " X", "bool": ""}
# What other tools have, and how the same is done here.
_HINTS = {
  "batch_size": "--config.scoring.window_batch N sets the windows per device; "
  "documents are batched by themselves",
  "model_args": "--model PATH names the model, --dtype its type",
  "num_fewshot": "there are no tasks with examples here",
  "tasks": "LongPPL needs texts alone: --data FILE",
}


def wants_help(words: Collection[str]) -> bool:
  """Whether the command line asks for help, and for no longer one."""
  return any(re.fullmatch(r"-h|--?help(=true)?", word) for word in words)


def translate(
  words: Sequence[str], known: Collection[str]
) -> tuple[list[str], list[str]]:
  """(the words with today's names of flags, what to say of the others).

  A name that the script has itself is never touched.

  Args:
    words: of the command line, behind the script.
    known: flags of the script.

  Raises:
    ValueError: a flag of another tool, which has no flag here but another way.
  """
  found, said = [], []
  for word in words:
    match = re.fullmatch(r"--?(\w+)(=.*)?", word, re.DOTALL)
    name = match[1] if match else ""
    if name and name not in known:
      if (today := _ALIASES.get(name)) in known:
        word = f"--{today}{match[2] or ''}"
        said.append(f"--{name} is called --{today} here")
      elif name in _HINTS:
        raise ValueError(f"there is no --{name}: {_HINTS[name]}")
    found.append(word)
  return found, said


def page(
  text: str,
  *,
  groups: Mapping[str, Sequence[flags.Flag]],
  needs: Collection[str] = (),
  fields: Mapping[str, tuple[str, str]] | None = None,
  config: str = "",
) -> str:
  """One screen: purpose, what must be given, the rest, fields, examples.

  Args:
    text: docstring of the script; commands in it are indented.
    groups: title -> flags, in their order.
    needs: names of flags that a run does not go without.
    fields: of the config, name -> (default, meaning).
    config: file of the default config.
  """
  purpose, rest, examples = _split(text)
  lines = [purpose, *rest, ""]
  known = {flag.name: flag for group in groups.values() for flag in group}
  sections = {"needed": [known[name] for name in needs]} | {
    title: [flag for flag in group if flag.name not in needs]
    for title, group in groups.items()
  }
  for title, group in sections.items():
    if group:
      lines += [title, *(_row(*_describe(flag)) for flag in group), ""]
  if fields:
    lines.append(f"--config.NAME=VALUE, among others in {config}")
    for name, (default, meaning) in fields.items():
      lines.append(_row(f"{name}={default}", meaning))
    lines.append("")
  lines += ["examples", *(f"  {line}" for line in examples), ""]
  return "\n".join([*lines, "All flags, with those of the log: --helpfull"])


def _split(text: str) -> tuple[str, list[str], list[str]]:
  """(first line, prose, commands) of a script's docstring."""
  purpose, *lines = inspect.cleandoc(text).splitlines()
  prose, examples, goes_on = [], [], False
  for line in lines:
    if goes_on or re.match(r"\s*(python|longctx) ", line):
      # A command that goes on in the next line is shown in one piece.
      examples.append(("  " if goes_on else "") + line.strip())
      goes_on = line.endswith("\\")
    else:
      goes_on = False
      prose.append(line)
  body = re.sub(r"\n{2,}", "\n", "\n".join(prose).strip())
  return purpose, body.splitlines(), examples


def _describe(flag: flags.Flag) -> tuple[str, str]:
  """(how a flag is written, what it means)."""
  meaning = " ".join((flag.help or "").split())
  # absl says of some kinds how they are written.
  meaning = re.sub(r"^<[^>]*>: |;\s*repeat this option .*$", "", meaning)
  choices = getattr(flag.parser, "enum_values", None)
  kind = flag.parser.flag_type()
  value = f" {flag.name.rpartition('_')[2].upper()}"
  if kind in _VALUES:
    value = _VALUES[kind]
  if choices:
    meaning += f": {', '.join(choice for choice in choices if choice)}"
  if flag.flag_type().startswith("multi"):
    meaning += "; may be given again"
  if flag.default not in (None, "", [], 0, False):
    meaning += f" [{flag.default}]"
  return f"--{flag.name}{value}", meaning


def _row(name: str, meaning: str) -> str:
  """Two columns; a long name has a line to itself."""
  room = _WIDTH - _NAMES - 2
  told = textwrap.wrap(meaning, room) or [""]
  if len(name) >= _NAMES:
    head = [f"  {name}", *(f"  {'':{_NAMES}}{line}" for line in told)]
    return "\n".join(head if meaning else head[:1])
  head = f"  {name:<{_NAMES}}{told[0]}".rstrip()
  return "\n".join([head, *(f"  {'':{_NAMES}}{line}" for line in told[1:])])


def comments(path: str | pathlib.Path) -> dict[str, tuple[str, str]]:
  """Field -> (its default, what stands behind it), as a config file has them.

  Args:
    path: a config of configs/, whose blocks are `config.NAME = ConfigDict(
      dict(...))` and whose fields have their unit or choices behind them.
  """
  source = pathlib.Path(path).read_text()
  lines = source.splitlines()

  def walk(prefix: str, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    while isinstance(node, ast.Call) and not node.keywords and node.args:
      node = node.args[0]  # ConfigDict(dict(...))
    if isinstance(node, ast.Call) and node.keywords:
      for keyword in node.keywords:
        yield from walk(f"{prefix}.{keyword.arg}", keyword.value)
    else:
      yield prefix, node

  found = {}
  for node in ast.walk(ast.parse(source)):
    if not isinstance(node, ast.Assign):
      continue
    for target in node.targets:
      if not ast.unparse(target).startswith("config."):
        continue
      name = ast.unparse(target).removeprefix("config.")
      for field, value in walk(name, node.value):
        comment = lines[value.end_lineno - 1].partition("  # ")[2]
        found.setdefault(field, (ast.unparse(value), comment))
  return found
