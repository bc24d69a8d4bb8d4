"""Whether published slice files were cut from the texts of a corpus.

Nothing in a slice file names its text, so a text that differs a little (other
order, revision or cut, a BOS) moves LongPPL without a word. Spans of key
tokens give it away: each starts and ends where a token of the evaluator does,
and none starts before token K + d (paper section 3.2).
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from longctx_jax.key_tokens import record, slices
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.paper import spans as spans_lib
from longctx_jax.report import tables
from longctx_jax.text.corpus import Corpus, Document
from longctx_jax.text.tokenizer import TextTokenizer

# "<s>", and "<s> " as fast Llama tokenizers decode it before a word.
_SHIFTS = (0, 3, -3, 4, -4)
# In their own text all edges are boundaries, but where a tokenizer normalizes;
# in another about one in four.
_MIN_SHARE = 0.95
_MUCH_BETTER = 0.3


@dataclasses.dataclass(frozen=True)
class DocumentFit:
  """How the spans of one document lie in its text.

  Attributes:
    doc_id: of the document.
    n_spans: spans.
    n_outside: those that end behind the text.
    n_early: those that start before token K + d; 0 without a tokenizer.
    on_boundary: starts and ends that are those of a token, after moving the
      spans by so many characters; empty without a tokenizer.
    error: why the document can't be read, else "".
  """

  doc_id: str
  n_spans: int
  n_outside: int = 0
  n_early: int = 0
  on_boundary: Mapping[int, int] = dataclasses.field(default_factory=dict)
  error: str = ""

  @property
  def share(self) -> float | None:
    """Share of starts and ends on token boundaries; None where unknown."""
    return _share([self], 0)

  @property
  def misfit(self) -> str:
    """What is wrong, in a word or two; "" where the spans fit."""
    if self.error:
      return "unreadable"
    if self.n_outside:
      return "outside the text"
    if self.share is not None and self.share < _MIN_SHARE:
      return "off the tokens"
    return "too early" if self.n_early else ""


@dataclasses.dataclass(frozen=True)
class SliceReport:
  """How the spans of a corpus lie in its texts.

  Attributes:
    documents: in the order of the corpus.
  """

  documents: tuple[DocumentFit, ...]

  def share(self, shift: int = 0) -> float | None:
    """Share of all starts and ends on token boundaries; None where unknown.

    Args:
      shift: 0, or one of the few that a BOS would make.
    """
    return _share(self.documents, shift)

  @property
  def worst(self) -> DocumentFit | None:
    """The document with the least share; None without a tokenizer."""
    known = [fit for fit in self.documents if fit.share is not None]
    return min(known, key=lambda fit: fit.share, default=None)

  @property
  def shift(self) -> int:
    """Characters to move the spans by to fit much better, as a BOS would."""
    if self.share() is None:
      return 0
    best = max(_SHIFTS, key=self.share)
    return best if self.share(best) > self.share() + _MUCH_BETTER else 0

  @property
  def problem(self) -> str:
    """Why the slices are not of this corpus, and the likely cause; "" if so."""
    wrong = [fit for fit in self.documents if fit.misfit]
    if not wrong:
      return ""
    text = (
      f"the slices of {len(wrong)} of {len(self.documents)} documents don't "
      f"fit, {wrong[0].doc_id!r} first ({wrong[0].misfit})"
    )
    if self.worst is not None:
      text += (
        f"; the worst is {self.worst.doc_id!r}, {self.worst.share:.0%} on "
        "token boundaries"
      )
    if self.shift:
      whose = "the slices were cut from" if self.shift < 0 else "these are"
      return (
        f"{text}. Moved by {self.shift:+d} characters, "
        f"{self.share(self.shift):.0%} of all edges are on boundaries: "
        f"{whose} texts that start with '<s>', the others not. Decode the ids "
        "as for the slices"
      )
    return (
      f"{text}. Likely causes: documents in another order, or filtered or cut "
      "otherwise; another revision of the data set; ids decoded with another "
      "tokenizer or with spaces cleaned up; slices of another evaluator"
    )


def check_slices(
  keys: KeyTokenStore | str | os.PathLike,
  corpus: Corpus,
  tokenizer: TextTokenizer | None = None,
) -> SliceReport:
  """Checks spans of key tokens against the texts that they are said to be of.

  Args:
    keys: a store with spans, or a folder of slice files, where `slice_i.txt`
      is of the document with doc_index i.
    corpus: documents with their texts.
    tokenizer: the evaluator's. Without it nothing but the lengths of the texts
      is checked.

  Returns:
    The report; its `problem` is "" where all fits.

  Raises:
    FileNotFoundError: a document without a slice file.
    ValueError: more files than documents, a file that can't be parsed, a store
      without spans, token ids for texts, a tokenizer without usable offsets.
  """
  if isinstance(keys, KeyTokenStore):
    record.require_spans(keys.manifest)
    manifest = keys.manifest

    def spans_of(document: Document) -> np.ndarray:
      return keys.get(document.doc_id).spans

  else:
    manifest = slices.PUBLISHED
    spans_of = _open_folder(pathlib.Path(keys), corpus)
  return SliceReport(
    tuple(
      _fit(document, spans_of(document), tokenizer, manifest)
      for document in corpus
    )
  )


def format_report(report: SliceReport) -> str:
  """The report as a table: a row per document, and one for all of them."""
  header = ["document", "slices", "outside", "early", "on tokens", "misfit"]
  rows = [_cells(fit.doc_id, [fit], fit.misfit) for fit in report.documents]
  rows.append(_cells("all", report.documents, ""))
  return tables.format_table(header, [("", rows)], fmt="text")


def _open_folder(
  folder: pathlib.Path, corpus: Corpus
) -> Callable[[Document], np.ndarray]:
  paths = [folder / f"slice_{i}.txt" for i in range(corpus.total + 1)]
  absent = [p for p in paths[corpus.start : corpus.stop] if not p.exists()]
  if absent:
    raise FileNotFoundError(
      f"{absent[0]} is missing: the corpus has {corpus.total} documents, and "
      "each needs its slice file"
    )
  if paths[-1].exists():
    raise ValueError(
      f"{paths[-1]} has no document: the corpus has {corpus.total}. Take the "
      "documents that the files were made for, in that order"
    )
  return lambda document: spans_lib.read_slices(paths[document.doc_index])


def _fit(
  document: Document,
  spans: np.ndarray,
  tokenizer: TextTokenizer | None,
  manifest: Manifest,
) -> DocumentFit:
  fit = DocumentFit(document.doc_id, len(spans), error=document.error)
  if document.error:
    return fit
  if document.text is None:
    raise ValueError(
      f"document {document.doc_id!r} holds token ids; slices are of its text"
    )
  outside = int((spans[:, 1] > len(document.text)).sum())
  fit = dataclasses.replace(fit, n_outside=outside)
  if tokenizer is None:
    return fit
  # K + d counts what the evaluator read: in the strict protocol text alone.
  offsets = tokenizer.encode(
    document.text, add_special_tokens=manifest.protocol == "paper"
  ).offsets
  first = offsets[manifest.windows.length :, 0]
  starts, ends = offsets[offsets[:, 0] < offsets[:, 1]].T
  return dataclasses.replace(
    fit,
    n_early=int((spans[:, 0] < first[0]).sum()) if len(first) else len(spans),
    on_boundary={
      shift: int(
        np.isin(spans[:, 0] + shift, starts).sum()
        + np.isin(spans[:, 1] + shift, ends).sum()
      )
      for shift in _SHIFTS
    },
  )


def _share(fits: Sequence[DocumentFit], shift: int) -> float | None:
  fits = [fit for fit in fits if fit.on_boundary]
  edges = 2 * sum(fit.n_spans for fit in fits)
  return sum(fit.on_boundary[shift] for fit in fits) / edges if edges else None


def _cells(name: str, fits: Sequence[DocumentFit], misfit: str) -> list[str]:
  share = _share(fits, 0)
  return [
    name,
    f"{sum(fit.n_spans for fit in fits):,}",
    str(sum(fit.n_outside for fit in fits)),
    str(sum(fit.n_early for fit in fits)),
    "-" if share is None else f"{share:.1%}",
    misfit,
  ]
