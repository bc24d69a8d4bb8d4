"""What the scripts share: flags, the device line, errors in one line."""

from __future__ import annotations

import itertools
import logging as py_logging
import os
import pathlib
import re
import runpy
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from longctx_jax.runtime import (
  device,
  failures,
  machine,
  programs,
  shards,
  urls,
)
from longctx_jax.scoring import protocol, setup

# Of a store of key tokens.
_NAMED_FIELDS = (
  "evaluator",
  "longppl.short_len",
  "longppl.stride",
  "longppl.alpha",
  "longppl.beta",
  "longppl.protocol",
)


_PACKAGE = f"{os.sep}longctx_jax{os.sep}"


_CONFIGS = pathlib.Path(__file__).resolve().parent.parent / "configs"


_default_config = ""


PLATFORM = flags.DEFINE_string(
  "platform", "", "cpu, gpu or tpu; default: what JAX finds"
)


CACHE = flags.DEFINE_string(
  "compilation_cache",
  programs.default_folder(),
  "folder of compiled programs, so that a second run compiles nothing; up to "
  "2 GiB; '' is none",
)


VERBOSE = flags.DEFINE_bool(
  "verbose", False, "show where an error comes from, and all that is logged"
)


_GOES_ON = "what is finished is kept, and the same command goes on"


# Flags that name what is written.
_OUTPUTS = ("workdir", "output", "target")


def define_config(default: str) -> flags.FlagHolder:
  """Defines --config with a default in configs/; "file.py:variant" works."""
  global _default_config
  # A default of the flag itself would be read before `run` can catch errors.
  _default_config = str(_CONFIGS / default)
  try:
    return config_flags.DEFINE_config_file(
      "config", None, f"experiment file (default: {default})", lock_config=True
    )
  except flags.Error as error:  # It looks into a --flagfile at once.
    _fail(error)


def define_data_flags() -> Callable[[], dict[str, Any]]:
  """Defines the flags of the documents; returns how to read them as fields."""
  data = flags.DEFINE_multi_string("data", None, "file, folder, glob or URL")
  text = flags.DEFINE_string("text_column", None, "column of the text")
  ids = flags.DEFINE_string("ids_column", None, "column of token ids")
  owner = flags.DEFINE_string("ids_tokenizer", None, "whose ids they are")
  doc_id = flags.DEFINE_string("id_column", None, "column of document ids")
  rows = flags.DEFINE_string("row_range", None, "rows a:b, half-open")
  length = flags.DEFINE_integer("max_length", None, "ids read of a document")
  over = flags.DEFINE_enum(
    "over_length", None, protocol.OVER_LENGTH, "what becomes of longer ones"
  )
  kind = flags.DEFINE_enum("protocol", None, protocol.PROTOCOLS, "BOS rules")
  return lambda: {
    "data.sources": data.value,
    "data.text_column": text.value,
    "data.ids_column": ids.value,
    "data.ids_tokenizer": owner.value,
    "data.id_column": doc_id.value,
    "data.row_range": row_range(rows.value),
    "data.max_length": length.value,
    "data.over_length": over.value,
    "longppl.protocol": kind.value,
  }


def override(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
  """Sets dotted fields of a config, except where the value is None."""
  config.update_from_flattened_dict(
    {
      name: tuple(value) if isinstance(value, list) else value
      for name, value in values.items()
      if value is not None
    }
  )
  return config


def named_fields(
  config: flags.FlagHolder, values: Mapping[str, Any]
) -> dict[str, Any]:
  """What the command line says of key tokens, as a manifest calls it.

  Args:
    config: what `define_config` returned.
    values: as `override` takes them.
  """
  named = config_flags.get_override_values(flags.FLAGS[config.name])
  named |= {name: value for name, value in values.items() if value is not None}
  return {
    name.removeprefix("longppl."): named[name]
    for name in _NAMED_FIELDS
    if name in named
  }


def given(*names: str) -> str:
  """The words of the command line that set these flags, quoted for a shell."""
  lines = (
    flags.FLAGS[name].serialize().splitlines()
    for name in names
    if flags.FLAGS[name].present
  )
  return shlex.join(itertools.chain.from_iterable(lines))


def read_models(names: list[str] | None, path: str) -> list[str] | None:
  """Models named by flags and by a file, one a line; None where none is.

  Empty lines and lines that start with "#" are left out.

  Raises:
    FileNotFoundError: no such file.
    ValueError: the file is no text.
  """
  found = list(names or [])
  if path:
    with failures.reading(path):
      lines = pathlib.Path(path).read_text().splitlines()
    found += [
      line.strip()
      for line in lines
      if line.strip() and not line.lstrip().startswith("#")
    ]
  return found or None


def row_range(text: str | None) -> tuple[int, int] | None:
  """Reads "a:b" as (a, b), None as None.

  Raises:
    ValueError: anything else.
  """
  if text is None:
    return None
  match = re.fullmatch(r"(\d+):(\d+)", text)
  if not match:
    raise ValueError(f"row_range={text!r} must be a:b, e.g. 0:1000")
  return int(match[1]), int(match[2])


def run(
  main: Callable[..., Any],
  *,
  verbs: Collection[str] = (),
  words: Collection[str] = (),
  many: Collection[str] = (),
  platform: str = "",
  before: Callable[[], None] = lambda: None,
  spread: bool = False,
) -> None:
  """Runs a script: a user's error is one line and exit status 2.

  Args:
    main: takes the verb, where there are any, and the words after it.
    verbs: what the first word of the command line may be.
    words: what the others are, for the message.
    many: verbs that any number of words may follow.
    platform: where --platform names none; "cpu" for what runs no model, and
      should take no accelerator from what does.
    before: runs before any device is used.
    spread: whether the cores of a CPU are devices, where the config names no
      mesh; see `device.start`.
  """
  app.run(
    lambda argv: _run(lambda: main(*argv[1:]), platform, before, spread),
    flags_parser=lambda argv: _parse(argv, verbs, words, many),
  )


def _parse(
  argv: list[str],
  verbs: Collection[str],
  words: Collection[str],
  many: Collection[str],
) -> list[str]:
  # A --flagfile may name the config.
  file = _config_file(flags.FLAGS.read_flags_from_files(argv[1:]))
  if _default_config and not file:
    file = _default_config
    argv = [argv[0], f"--config={file}", *argv[1:]]
  try:
    rest = flags.FLAGS(argv)
    _check_fields(file)
    _check_outputs()
  except (flags.Error, AttributeError, KeyError, ValueError, OSError) as error:
    if "'get_config'" in str(error):
      _fail(f"--config {file} is no config: it has no function get_config")
    # A misspelled field of the config, or a file that is not there.
    _fail(error)
  except Exception as error:  # noqa: BLE001  a config is a program
    _fail(f"--config {file} does not load: {type(error).__name__}: {error}")
  more = len(rest) - 2 - len(words)
  known = len(rest) > 1 and rest[1] in verbs
  if verbs and not (known and (not more or (more > 0 and rest[1] in many))):
    expected = [f"one of {', '.join(verbs)}", *words]
    _fail(f"expected {', then '.join(expected)}")
  if not verbs and len(rest) > 1:
    _fail(f"arguments without a flag: {' '.join(rest[1:])}")
  return rest


def _config_file(argv: list[str]) -> str:
  """What --config names on the command line; "" where it is not there."""
  for word, following in itertools.pairwise([*argv, ""]):
    if match := re.fullmatch(r"--?config(?:=(.*))?", word):
      return following if match[1] is None else match[1]
  return ""


def _check_fields(file: str) -> None:
  """Raises ValueError for a config that is made for another script."""
  if not _default_config:
    return
  config = flags.FLAGS["config"].value
  default = runpy.run_path(_default_config)["get_config"]()
  lacking = list(_lacking(config, default))
  # One that names its program is for `hand_over`.
  if lacking and "program" not in config:
    raise ValueError(
      f"--config {file} is made for another script: it has no field "
      f"{', '.join(lacking[:3])}{' ...' if len(lacking) > 3 else ''}. One that "
      f"has is configs/{pathlib.Path(_default_config).name}"
    )


def _lacking(
  config: ConfigDict, default: ConfigDict, prefix: str = ""
) -> Iterator[str]:
  for name, value in default.items():
    if name not in config:
      yield prefix + name
    elif isinstance(value, ConfigDict) and isinstance(config[name], ConfigDict):
      yield from _lacking(config[name], value, f"{prefix}{name}.")


def _check_outputs() -> None:
  """Raises ValueError where nothing can be written."""
  for name, place in _outputs().items():
    if name == "workdir" and not place:
      raise ValueError("--workdir is empty: name a folder, which is made")
    urls.require_local(place, flag=name)


def _outputs() -> dict[str, str]:
  """The flags that name what is written, and what they name."""
  values = {
    name: flags.FLAGS[name].value for name in _OUTPUTS if name in flags.FLAGS
  }
  return {name: value or "" for name, value in values.items()}


def _fail(error: BaseException | str) -> NoReturn:
  # ml_collections wraps a KeyError, whose text would come out quoted.
  while isinstance(error, AttributeError | KeyError) and error.args:
    error = error.args[0]
  # A config that raises comes with its traceback; the last line says why.
  if isinstance(error, flags.Error) and "Traceback" in str(error):
    error = str(error).strip().splitlines()[-1]
  _end(f"error: {' '.join(str(error).split())}", 2)


def _end(line: str, status: int) -> NoReturn:
  print(line, file=sys.stderr)
  sys.exit(status)


def _run(
  main: Callable[[], None],
  platform: str,
  before: Callable[[], None],
  spread: bool,
) -> None:
  logging.set_verbosity(logging.DEBUG if VERBOSE.value else logging.INFO)
  # JAX reports each backend that is not there.
  py_logging.getLogger("jax").setLevel(py_logging.WARNING)
  # The time and place of a line are noise to whoever waits for a result; so is
  # what libraries say of their work.
  logging.get_absl_handler().setFormatter(None)
  logging.get_absl_handler().addFilter(_is_ours_or_urgent)
  # First: where processes are joined, JAX listens in its stead.
  machine.raise_on_sigterm()
  try:
    _hand_over()
    before()
    device.start(
      PLATFORM.value or platform,
      cache=CACHE.value,
      spread=spread and _has_all_cores(),
    )
    print(device.describe(), flush=True)
    device.require_seen(PLATFORM.value or platform)
    main()
    sys.stdout.flush()
  except machine.Terminated:
    _end(f"told to end: {_GOES_ON}", 128 + signal.SIGTERM)
  except KeyboardInterrupt:
    _end(f"interrupted: {_GOES_ON}", 128 + signal.SIGINT)
  except BrokenPipeError:
    # Whoever read the table has seen enough, as `head` does.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except Exception as error:
    place = next(filter(None, _outputs().values()), "the disk")
    sentence = failures.explain(error, place=place)
    if not sentence:
      raise
    if VERBOSE.value:
      traceback.print_exception(error)
    _fail(sentence)


def _has_all_cores() -> bool:
  """Whether the cores are this run's, to use as it is best."""
  # Shards may work beside each other.
  shard = flags.FLAGS["shard"].value if "shard" in flags.FLAGS else "0/1"
  whole = shards.parse(shard, os.environ) == shards.WHOLE
  return whole and setup.leaves_mesh_open(flags.FLAGS.config)


def _hand_over() -> None:
  """Goes on as the script that the config names, if it is another one."""
  config = flags.FLAGS.config if "config" in flags.FLAGS else {}
  script = pathlib.Path(sys.argv[0])
  if "program" not in config or config.program == script.stem:
    return
  other = script.with_name(f"{config.program}.py")
  if not other.is_file():
    raise ValueError(f"config.program={config.program!r}: there is no {other}")
  os.execv(sys.executable, [sys.executable, str(other), *sys.argv[1:]])


def _is_ours_or_urgent(record: py_logging.LogRecord) -> bool:
  return record.levelno > py_logging.INFO or _PACKAGE in record.pathname
