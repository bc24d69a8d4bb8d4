"""What the scripts share: flags, the device line, errors in one line."""

from __future__ import annotations

import collections
import itertools
import logging as py_logging
import os
import pathlib
import re
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from typing import Any, NoReturn

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from longctx_jax import usage
from longctx_jax.runtime import (
  channel,
  device,
  failures,
  machine,
  processes,
  programs,
  shards,
  urls,
  watch,
)
from longctx_jax.scoring import setup

_PACKAGE = f"{os.sep}longctx_jax{os.sep}"


_default_config = ""


# Of the default config, in the help.
_shown_fields: tuple[str, ...] = ()


PLATFORM = flags.DEFINE_string(
  "platform", "", "cpu, gpu or tpu; default: what JAX finds"
)


CACHE = flags.DEFINE_string(
  "compilation_cache",
  programs.default_folder(),
  "where programs are kept, 2 GiB at most; '' is none",
)


VERBOSE = flags.DEFINE_bool(
  "verbose", False, "log all, and say where an error comes from"
)


# Where the flags are defined that set fields of a config.
_FIELDS_MODULE = "longctx_jax.fields"


_GOES_ON = "what is finished is kept, and the same command goes on"


# Flags that name what is written.
_OUTPUTS = ("workdir", "output")


def folder(name: str) -> pathlib.Path:
  """configs/ or scripts/: beside the package, or in it once installed."""
  package = pathlib.Path(__file__).resolve().parent
  inside = package / name
  return inside if inside.is_dir() else package.parent / name


def define_config(
  default: str, shown: tuple[str, ...] = ()
) -> flags.FlagHolder:
  """Defines --config with a default in configs/; "file.py:variant" works.

  Args:
    default: a file of configs/; "" is none: a config of any script, which
      must be named.
    shown: fields that the help names.
  """
  global _default_config, _shown_fields
  # A default of the flag itself would be read before `run` can catch errors.
  _default_config = str(folder("configs") / default) if default else ""
  _shown_fields = shown
  meaning = f"experiment file (default: {default})"
  try:
    holder = config_flags.DEFINE_config_file(
      "config",
      None,
      meaning if default else "experiment file of any script",
      lock_config=True,
    )
    if not default:
      flags.mark_flag_as_required(holder)
    return holder
  except flags.Error as error:  # It looks into a --flagfile at once.
    _fail(error)


def define_distributed() -> flags.FlagHolder[str]:
  """Defines --distributed: the processes that `run` joins first."""
  return flags.DEFINE_string(
    "distributed", "", "'auto' on a pod, or HOST:PORT,COUNT,INDEX"
  )


def run(
  main: Callable[..., Any],
  *,
  verbs: Collection[str] = (),
  words: Collection[str] = (),
  many: Collection[str] = (),
  needs: Collection[str] = (),
  platform: str = "",
  before: Callable[[], None] = lambda: None,
  spread: bool = False,
) -> None:
  """Runs a script: a user's error is one line and exit status 2.

  With -h or --help it prints one screen, and runs nothing.

  Args:
    main: takes the verb, where there are any, and the words after it.
    verbs: what the first word of the command line may be.
    words: what the others are, for the message.
    many: verbs that any number of words may follow.
    needs: flags without which nothing runs, for the help.
    platform: where --platform names none; "cpu" for what runs no model, and
      should take no accelerator from what does.
    before: runs before any device is used, and other processes are joined.
    spread: whether the cores of a CPU are devices, where the config names no
      mesh; see `device.start`.
  """
  app.run(
    lambda argv: _run(lambda: main(*argv[1:]), platform, before, spread),
    flags_parser=lambda argv: _parse(argv, verbs, words, many, needs),
  )


def _parse(
  argv: list[str],
  verbs: Collection[str],
  words: Collection[str],
  many: Collection[str],
  needs: Collection[str],
) -> list[str]:
  if usage.wants_help(argv[1:]):
    print(_help(argv[0], needs))
    sys.exit(0)
  try:
    # A --flagfile may name the config.
    given, said = usage.translate(
      flags.FLAGS.read_flags_from_files(argv[1:]), set(flags.FLAGS)
    )
  except (ValueError, flags.Error) as error:
    _fail(error)
  for line in said:
    print(f"note: {line}", file=sys.stderr)
  given = [_find_config(word) for word in given]
  file = _config_file(given)
  if _default_config and not file:
    file = _default_config
    given = [f"--config={file}", *given]
  try:
    rest = flags.FLAGS([argv[0], *given])
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


def _help(script: str, needs: Collection[str]) -> str:
  """One screen about the script that runs."""
  modules = collections.defaultdict(list, flags.FLAGS.flags_by_module_dict())
  known = usage.comments(_default_config) if _shown_fields else {}
  return usage.page(
    sys.modules["__main__"].__doc__,
    groups={
      "flags": modules[script],
      "data and model": modules[_FIELDS_MODULE],
      "of any command": modules[__name__],
    },
    needs=needs,
    fields={name: known[name] for name in _shown_fields},
    config=f"configs/{pathlib.Path(_default_config).name}",
  )


def _find_config(word: str) -> str:
  """The word; a shipped config that it names is found from any folder."""
  head, name, rest = re.fullmatch(
    r"((?:--?config=)?)(configs/\w+\.py)?(.*)", word, re.DOTALL
  ).groups()
  if not name or pathlib.Path(name).exists():
    return word
  shipped = folder("configs") / pathlib.Path(name).name
  return f"{head}{shipped}{rest}" if shipped.exists() else word


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
  if isinstance(error, failures.Several):
    _end("\n".join(f"error: {one}" for one in error.sentences), 2)
  # ml_collections wraps a KeyError, whose text would come out quoted.
  while isinstance(error, AttributeError | KeyError) and error.args:
    error = error.args[0]
  # A config that raises comes with its traceback; the last line says why.
  if isinstance(error, flags.Error) and "Traceback" in str(error):
    error = str(error).strip().splitlines()[-1]
  _end(f"error: {' '.join(str(error).split())}", 2)


def _end(line: str, status: int) -> NoReturn:
  print(line, file=sys.stderr)
  watch.leave(status)


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
  place = next(filter(None, _outputs().values()), "the disk")
  try:
    _hand_over()
    before()
    if "distributed" in flags.FLAGS:
      processes.join(flags.FLAGS["distributed"].value)
    device.start(
      PLATFORM.value or platform,
      cache=CACHE.value,
      spread=spread and _has_all_cores(),
    )
    if not platform:  # What runs no model leaves its tables alone on stdout.
      print(device.describe(), flush=True)
    device.require_seen(PLATFORM.value or platform)
    with watch.Watch(lambda error: failures.explain(error, place=place)):
      main()
    sys.stdout.flush()
  except channel.Ended as ended:
    plain = ended.status == 2
    _end(f"error: {ended}" if plain else f"{ended}: {_GOES_ON}", ended.status)
  except machine.Terminated:
    _end(f"told to end: {_GOES_ON}", 128 + signal.SIGTERM)
  except KeyboardInterrupt:
    _end(f"interrupted: {_GOES_ON}", 128 + signal.SIGINT)
  except BrokenPipeError:
    # Whoever read the table has seen enough, as `head` does.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    watch.leave(1)
  except Exception as error:
    sentence = failures.explain(error, place=place)
    if not sentence:
      if channel.count() == 1:
        raise
      traceback.print_exception(error)
      watch.leave(1)
    if VERBOSE.value:
      traceback.print_exception(error)
    _fail(error if isinstance(error, failures.Several) else sentence)


def _has_all_cores() -> bool:
  """Whether the cores are this run's, to use as it is best."""
  # Shards may work beside each other.
  shard = flags.FLAGS["shard"].value if "shard" in flags.FLAGS else "0/1"
  whole = shards.parse(shard, os.environ) == shards.WHOLE
  return (
    whole
    and channel.count() == 1
    and setup.leaves_mesh_open(flags.FLAGS.config)
  )


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
