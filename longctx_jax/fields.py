"""Flags that set fields of a config: one place for what scripts share."""

from __future__ import annotations

import itertools
import pathlib
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from longctx_jax.checkpoints import convert
from longctx_jax.runtime import failures
from longctx_jax.scoring import protocol

# What the help of score and eval shows of their config.
METRIC = (
  "longppl.short_len",
  "longppl.stride",
  "longppl.alpha",
  "longppl.beta",
  "scoring.window_batch",
)


# The same for train.
TRAINING = (
  "data.seq_len",
  "data.batch_size",
  "loss.weights",
  "loss.short_len",
  "loss.stride",
  "optimizer.steps",
  "optimizer.learning_rate",
  "model.rope.rope_type",
  "mesh.fsdp",
  "checkpoint.every",
)


# Flags that say which documents are read, and how.
OF_DOCUMENTS = (
  "data",
  "text_column",
  "ids_column",
  "ids_tokenizer",
  "id_column",
  "row_range",
  "limit",
)


# Of a store of key tokens.
_NAMED_FIELDS = (
  "evaluator",
  "longppl.short_len",
  "longppl.stride",
  "longppl.alpha",
  "longppl.beta",
  "longppl.protocol",
)


def define_data() -> Callable[[], dict[str, Any]]:
  """Defines what score and eval read; returns the flags as fields."""
  data = flags.DEFINE_multi_string("data", None, "file, folder, glob or URL")
  text = flags.DEFINE_string("text_column", None, "column of the text")
  ids = flags.DEFINE_string("ids_column", None, "column of token ids")
  owner = flags.DEFINE_string("ids_tokenizer", None, "whose ids they are")
  doc_id = flags.DEFINE_string("id_column", None, "column of document ids")
  rows = flags.DEFINE_string("row_range", None, "rows a:b, half-open")
  limit = flags.DEFINE_integer("limit", None, "the first N documents alone")
  length = flags.DEFINE_integer("max_length", None, "ids read of a document")
  over = flags.DEFINE_enum(
    "over_length", None, protocol.OVER_LENGTH, "what becomes of longer ones"
  )
  kind = flags.DEFINE_enum("protocol", None, protocol.PROTOCOLS, "BOS rules")
  dtype = flags.DEFINE_enum("dtype", None, convert.DTYPES, "of the weights")
  weights = flags.DEFINE_string("weights", None, "int8: half the memory")
  return lambda: {
    "data.sources": data.value,
    "data.text_column": text.value,
    "data.ids_column": ids.value,
    "data.ids_tokenizer": owner.value,
    "data.id_column": doc_id.value,
    "data.row_range": row_range(rows.value, limit.value),
    "data.max_length": length.value,
    "data.over_length": over.value,
    "longppl.protocol": kind.value,
    "scoring.dtype": dtype.value,
    "scoring.weights": weights.value,
  }


def define_training() -> Callable[[], dict[str, Any]]:
  """Defines the flags of a training; returns how to read them as fields."""
  model = flags.DEFINE_string("model", None, "folder, hub id or .gguf file")
  data = flags.DEFINE_multi_string("data", None, "file, folder, glob or URL")
  text = flags.DEFINE_string("text_column", None, "column of the text")
  limit = flags.DEFINE_integer("limit", None, "the first N documents alone")
  keys = flags.DEFINE_string("keys", None, "scored workdir: weights")
  dtype = flags.DEFINE_enum("dtype", None, convert.DTYPES, "of activations")
  batch = flags.DEFINE_integer("batch_size", None, "rows of a step, in all")
  return lambda: {
    "model.path": model.value,
    "model.dtype": dtype.value,
    "data.sources": data.value,
    "data.text_column": text.value,
    "data.row_range": row_range(None, limit.value),
    "data.batch_size": batch.value,
    "data.key_tokens": keys.value,
    "loss.weights": "stored" if keys.value else None,
  }


def define_reports(
  min_ids: int, documents: int, max_ids: int
) -> Callable[[], dict[str, int]]:
  """Defines what is taken of reports, with these defaults."""
  flags.DEFINE_integer("min_ids", min_ids, "ids of a report")
  flags.DEFINE_integer("documents", documents, "reports")
  flags.DEFINE_integer("max_ids", max_ids, "ids kept of each")
  return _reader("min_ids", "documents", "max_ids")


def define_selection() -> Callable[[], dict[str, Any]]:
  """Defines which documents a selection keeps."""
  flags.DEFINE_string("top", "20%", "of a selection: a share, or a number")
  flags.DEFINE_string("by", "key_token_ratio", "column of numbers of a store")
  flags.DEFINE_bool(
    "within_length_buckets", False, "the share of each bucket of lengths"
  )
  return _reader("top", "by", "within_length_buckets")


def define_columns() -> Callable[[], dict[str, str]]:
  """Defines where texts and ids stand in a corpus."""
  flags.DEFINE_string("text_column", "text", "column of the text")
  flags.DEFINE_string("id_column", "", "column of document ids")
  return _reader("text_column", "id_column")


def define_thresholds() -> Callable[[], dict[str, str]]:
  """Defines the thresholds of a sweep, several of each."""
  flags.DEFINE_string("alpha", "1,2,4", "of a sweep, nats")
  flags.DEFINE_string("beta", "-1,-2,-4", "the same")
  return _reader("alpha", "beta")


def _reader(*names: str) -> Callable[[], dict[str, Any]]:
  return lambda: {name: flags.FLAGS[name].value for name in names}


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


def row_range(
  text: str | None, limit: int | None = None
) -> tuple[int, int] | None:
  """Reads "a:b" as (a, b), and a limit N as (0, N); None where neither is.

  Raises:
    ValueError: anything else, or both.
  """
  if limit is not None:
    if text is not None or limit < 1:
      raise ValueError(
        f"limit={limit} is a number of documents from 1 on, and stands in the "
        "place of --row_range"
      )
    return 0, limit
  if text is None:
    return None
  match = re.fullmatch(r"(\d+):(\d+)", text)
  if not match:
    raise ValueError(f"row_range={text!r} must be a:b, e.g. 0:1000")
  return int(match[1]), int(match[2])
