"""The manifest: how key tokens were made, checked and as JSON."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows

FORMAT_VERSION = 1
# Raised whenever a number may change by more than rounding.
NUMERICS = 1
# What is stored of a document; "spans" are the reference's slice files.
DETAILS = ("tokens", "keys", "scores")
PROTOCOLS = ("paper", "strict")
OVER_LENGTH = ("truncate_end", "skip", "error")
_SPANS = "spans"
# Fields of some manifests only; those of slice files are the required ones.
_OPTIONAL = {
  "rope_by_length",
  "chunk_len",
  "chunk_tokenizer",
  "numerics",
  "source",
}
# What no log-prob depends on: how the weights are spelled, and by which
# software and revision they came. For slice files the name is all there is.
_RECORDED = {"evaluator", "revision", "versions", "format_version", "source"}
_THRESHOLDS = {"alpha", "beta"}
_REMEDY = "Restore it, or start anew with --overwrite."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """How key tokens were made. None is what the maker does not say.

  Slice files say nothing but the paper's settings.

  Attributes:
    evaluator: name of the model that found them.
    revision: of the checkpoint.
    weight_format: as the checkpoint stores its weights.
    checksum: of the weights.
    tokenizer_fingerprint: of the evaluator's tokenizer.
    rope: the RoPE table.
    attention: full, or its window and sink.
    dtype: of the weights when they scored.
    protocol: "paper" or "strict".
    bos: id that the evaluator's tokenizer puts first; None is none.
    windows: of the short contexts.
    thresholds: of the key tokens.
    max_length: ids that were read of a document.
    over_length: what became of longer ones.
    detail: one of DETAILS, or "spans".
    versions: of the software; two manifests that differ in nothing else are
      equal.
    rope_by_length: of a RoPE table that depends on the length.
    chunk_len: targets of a chunk, where documents were cut for training.
    chunk_tokenizer: fingerprint of the tokenizer that they were cut by.
    numerics: NUMERICS of the version that scored; files of before have none.
    source: slice files, or log-probs of another engine, that were read.
  """

  evaluator: str
  revision: str | None = None
  weight_format: str | None = None
  checksum: str | None = None
  tokenizer_fingerprint: str | None = None
  rope: str | None = None
  attention: str | None = None
  dtype: str | None = None
  protocol: str
  bos: int | None = None
  windows: Windows
  thresholds: Thresholds
  max_length: int | None = None
  over_length: str | None = None
  detail: str
  versions: Mapping | None = dataclasses.field(default=None, compare=False)
  rope_by_length: Mapping | None = dataclasses.field(default=None, hash=False)
  chunk_len: int | None = None
  chunk_tokenizer: str | None = None
  numerics: int = NUMERICS
  source: str | None = None

  def __post_init__(self):
    for name, known in (
      ("protocol", PROTOCOLS),
      ("over_length", (*OVER_LENGTH, None)),
      ("detail", (*DETAILS, _SPANS)),
    ):
      value = getattr(self, name)
      if value not in known:
        raise ValueError(
          f"{name} is {value!r}; known: {', '.join(filter(None, known))}"
        )
    for name, type_ in typing.get_type_hints(Manifest).items():
      value = getattr(self, name)
      if not isinstance(value, type_):
        raise ValueError(f"{name} is {value!r}; expected {type_}")

  def to_json(self) -> dict[str, Any]:
    """The fields of a manifest file, flat."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if dataclasses.is_dataclass(value):
        found |= dataclasses.asdict(value)
      elif self._is_published and field.name == "numerics":
        continue  # Spans are what they are.
      elif value is not None or not (self._is_published or _is_optional(field)):
        found[field.name] = value
    # Slice files have no manifest, and so no format.
    version = {} if self._is_published else {"format_version": FORMAT_VERSION}
    return found | version

  def identity(self) -> dict[str, Any]:
    """What determines the log-probs, as JSON: two stores agree in it.

    alpha and beta do not: they are of results that are derived from these.
    """
    free = {"source"} if self._is_published else _RECORDED
    fields = self.to_json()
    return {n: fields[n] for n in fields if n not in free | _THRESHOLDS}

  @property
  def prefix_len(self) -> int:
    """Leading ids that every pass and window repeats: the BOS of "strict"."""
    return int(self.protocol == "strict" and self.bos is not None)

  @property
  def _is_published(self) -> bool:
    return self.detail == _SPANS

  @classmethod
  def from_json(cls, fields: Mapping[str, Any], *, where: object) -> Manifest:
    """Reads the fields of a manifest file.

    Args:
      fields: as `to_json` gives them.
      where: the file, for the message.

    Raises:
      ValueError: another format, a field that is missing, unknown, or has a
        value that it can't have; the field is named.
    """
    if not isinstance(fields, Mapping):
      raise ValueError(f"{where} is no manifest: it has no fields. {_REMEDY}")
    fields = dict(fields)
    version = fields.pop("format_version", None)
    published = "detail" in fields and fields["detail"] == _SPANS
    if version is None and not published:
      raise ValueError(
        f"{where} is no manifest: it has no field 'format_version'. {_REMEDY}"
      )
    if version not in (FORMAT_VERSION, None):
      raise ValueError(
        f"{where} has format {version!r}; this version reads {FORMAT_VERSION}. "
        "Score again, or use the version that wrote it."
      )
    known, required = set(), []
    for field in dataclasses.fields(cls):
      names = (field.name,)
      if field.name in _PARTS:
        names = _names(_PARTS[field.name])
      known |= set(names)
      has_default = field.default is not dataclasses.MISSING
      free = has_default if published else _is_optional(field)
      required += () if free else names
    for problem, names in (
      ("lacks", [name for name in required if name not in fields]),
      ("has the unknown", sorted(set(fields) - known)),
    ):
      if names:
        raise ValueError(
          f"{where} {problem} {', '.join(map(repr, names))}. {_REMEDY}"
        )
    try:
      parts = {
        name: type_(**{part: fields.pop(part) for part in _names(type_)})
        for name, type_ in _PARTS.items()
      }
      return cls(**parts, **fields)
    except (TypeError, ValueError) as error:
      raise ValueError(f"{where}: {error}. {_REMEDY}") from error


# Fields of the manifest whose own fields the file holds flat.
_PARTS = {"windows": Windows, "thresholds": Thresholds}


def _names(type_: type) -> tuple[str, ...]:
  return tuple(field.name for field in dataclasses.fields(type_))


def _is_optional(field: dataclasses.Field) -> bool:
  return field.name in _OPTIONAL
