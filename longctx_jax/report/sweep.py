"""LongPPL at other thresholds, windows and models, from what is stored.

No model runs: a store has the evaluator's log-probs under both contexts, an
evaluation keeps those of each model, and thresholds apply to what is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from longctx_jax.evaluation import files, identity, log_probs
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.paper import perplexity, spans
from longctx_jax.report import alike, tables
from longctx_jax.runtime import settings, urls

# What it reads of a workdir that is a URL.
_FILES = (
  "results/*.json",
  "documents/*.parquet",
  "log_probs/*.parquet",
  "key_tokens/*.parquet",
  "key_tokens.json",
)
# What a sweep varies, as `identity.of_keys` calls it.
_SWEPT = ("keys.short_len", "keys.stride", "keys.alpha", "keys.beta")


@dataclasses.dataclass(frozen=True)
class Cell:
  """One model at one setting.

  Attributes:
    short_len, stride: K and d of the store, ids.
    alpha, beta: thresholds, nats.
    model: its name among the results.
    longppl: exp(sum of key NLL / key tokens); None without key tokens.
    n_key_tokens: key tokens of the model.
    n_documents: documents that the model read.
    rank: 1 for the lowest LongPPL of those that are ranked; None for models
      that are the evaluator, or read fewer documents than others.
  """

  short_len: int
  stride: int
  alpha: float
  beta: float
  model: str
  longppl: float | None
  n_key_tokens: int
  n_documents: int
  rank: int | None = None

  @property
  def setting(self) -> tuple[int, int, float, float]:
    """K, d, alpha and beta."""
    return self.short_len, self.stride, self.alpha, self.beta


def sweep(
  workdir: str | pathlib.Path,
  *,
  keys: Sequence[str] = (),
  alpha: Sequence[float],
  beta: Sequence[float],
  force: bool = False,
) -> list[Cell]:
  """LongPPL of each model of a workdir at each pair of thresholds.

  LongPPL = exp(sum of key NLL / number of key tokens), key tokens projected on
  each model's targets as in an evaluation.

  Args:
    workdir: of an evaluation that kept log-probs.
    keys: stores of the same documents, which may differ in K and d; none is
      the one in the workdir.
    alpha, beta: thresholds, nats; all pairs are taken.
    force: take results that were not made alike.

  Returns:
    Cells by setting and, within it, by rank.

  Raises:
    NotComparable: results, or key tokens, of other documents or settings.
    FileNotFoundError: a store or the log-probs are not there.
    ValueError: thresholds that a store does not know, or two stores of one K
      and d.
  """
  workdir = urls.fetched(workdir, files=_FILES)
  results = [r for r in files.load_results(workdir) if r.has_numbers]
  if not results:
    raise ValueError(f"{workdir}: no model has numbers to sweep")
  if not (alpha and beta):
    raise ValueError("name values of both thresholds: --alpha 1,2 --beta -2")
  if not force:
    alike.check_comparable(results)
  stores = [(place, _open_store(place)) for place in keys or [workdir]]
  _require_other_windows(stores)
  found = []
  for place, store in stores:
    if not force:
      _require_same_documents(results, store, place)
    pairs = {
      (a, b): store.with_thresholds(a, b)
      for a, b in itertools.product(sorted(set(alpha)), sorted(set(beta)))
    }
    cells = [_model_cells(workdir, result, pairs) for result in results]
    unranked = {r.name for r in results if r.self_evaluated}
    for at_one in zip(*cells, strict=True):
      found += _ranked(at_one, unranked)
  return found


def sweep_table(cells: Sequence[Cell], *, fmt: str) -> str:
  """A row per setting, a column per model; CSV has a row per cell."""
  if fmt == "csv":
    names = [field.name for field in dataclasses.fields(Cell)]
    rows = [
      ["" if value is None else str(value) for value in dataclasses.astuple(c)]
      for c in cells
    ]
    return tables.format_table(names, [("", rows)], fmt=fmt)
  models = list(dict.fromkeys(cell.model for cell in cells))
  settings = list(dict.fromkeys(cell.setting for cell in cells))
  at = {(cell.setting, cell.model): cell for cell in cells}
  header = ["alpha, beta", "K, d", *models, "key tokens"]
  rows = [
    [
      f"{setting[2]:g}, {setting[3]:g}",
      f"{setting[0]:,}, {setting[1]:,}",
      *(_cell_text(at[setting, model]) for model in models),
      _counts([at[setting, model] for model in models]),
    ]
    for setting in settings
  ]
  return tables.format_table(header, [("", rows)], fmt=fmt)


def notes(cells: Sequence[Cell]) -> list[str]:
  """What a reader of the table must know; a sentence each."""
  found = ["(1) is the lowest LongPPL of its row"]
  if unranked := sorted({c.model for c in cells if c.rank is None}):
    found.append(
      f"not ranked, being the evaluator itself, with fewer documents than "
      f"others or without key tokens: {', '.join(unranked)}"
    )
  orders = [
    tuple(c.model for c in row if c.rank is not None)
    for _, row in itertools.groupby(cells, key=lambda c: c.setting)
  ]
  # Rows in which some have no key tokens say nothing of the others' order.
  most = max(map(len, orders))
  orders = [order for order in orders if len(order) == most]
  if most > 1:
    count = len(set(orders))
    found.append(
      f"the order of all {most} that are ranked "
      + (
        f"is the same in all {len(orders)} rows that have it"
        if count == 1
        else f"changes: {count} orders in {len(orders)} rows"
      )
    )
  return found


def parse_values(text: str, *, flag: str) -> list[float]:
  """Reads "1,2,4"; ValueError for anything else."""
  try:
    return [float(part) for part in text.split(",") if part.strip()]
  except ValueError as error:
    raise ValueError(f"--{flag} {text}: numbers with commas between") from error


def _open_store(place: str | pathlib.Path) -> KeyTokenStore:
  try:
    return store_lib.read_store(place)
  except FileNotFoundError as error:
    raise FileNotFoundError(f"{error} Or name the store: --keys W") from error


def _require_other_windows(
  stores: Sequence[tuple[object, KeyTokenStore]],
) -> None:
  seen: dict[object, object] = {}
  for place, store in stores:
    windows = store.manifest.windows
    if windows in seen:
      raise ValueError(
        f"{seen[windows]} and {place} have both K={windows.short_len} and "
        f"d={windows.stride}: name stores that differ in them"
      )
    seen[windows] = place


def _require_same_documents(
  results: Sequence[ModelResult], store: KeyTokenStore, place: object
) -> None:
  """Raises NotComparable unless the store differs in windows alone.

  Another evaluator would not have read the same of each document.
  """
  theirs = _without_windows(store.manifest.to_json())
  for result in results:
    own = _without_windows(result.keys)
    for name, one, another in settings.differences(own, theirs):
      raise alike.NotComparable(
        f"{place} is not like the key tokens of {result.name!r}: {name} was "
        f"{one} and is {another}. Stores of a sweep differ in K, d and "
        "thresholds alone"
      )
    for document in result.documents:
      there = store.hashes.get(document.doc_id)
      if document.text_sha256 and there != document.text_sha256:
        state = "lacks" if there is None else "has another text of"
        raise alike.NotComparable(
          f"{place} {state} document {document.doc_id!r} of {result.name!r}: "
          "name stores of the documents that were evaluated (--keys)"
        )


def _without_windows(manifest: Mapping[str, Any]) -> dict[str, Any]:
  facts = identity.of_keys(manifest)
  return {name: facts[name] for name in facts if name not in _SWEPT}


def _log_probs_of(
  workdir: str | pathlib.Path, result: ModelResult
) -> pathlib.Path:
  """The file of a model; another engine's lies where its result says."""
  elsewhere = result.model.get("log_probs")
  path = (
    pathlib.Path(elsewhere)
    if elsewhere
    else log_probs.path_of(workdir, result.name)
  )
  if not path.exists():
    raise FileNotFoundError(
      f"{path}: no log-probs of {result.name!r} are kept: evaluate it again "
      "(--overwrite, and --config.eval.log_probs=true, which is the default)"
    )
  facts = log_probs.stored_facts(path)
  own = log_probs.facts_of(result.model, result.max_length)
  if facts is not None and not elsewhere and facts != own:
    raise alike.NotComparable(
      f"{path} is of another run than the result of {result.name!r}: evaluate "
      "again with the command that made them"
    )
  return path


def _model_cells(
  workdir: str | pathlib.Path,
  result: ModelResult,
  pairs: dict[tuple[float, float], KeyTokenStore],
) -> list[Cell]:
  """One model at each pair, its documents read once."""
  sums = dict.fromkeys(pairs, 0.0)
  counts = dict.fromkeys(pairs, 0)
  own = {document.doc_id: document for document in result.documents}
  n_documents = 0
  for targets in log_probs.read(_log_probs_of(workdir, result)):
    document = own.get(targets.doc_id)
    if document is None or not document.n_tokens:
      continue
    if targets.text_sha256 not in ("", document.text_sha256):
      raise alike.NotComparable(
        f"the log-probs of {result.name!r} are of another text of "
        f"{targets.doc_id!r} than its result: evaluate again"
      )
    n_documents += 1
    for pair, store in pairs.items():
      keys = store.get(targets.doc_id)
      # What the evaluator did not read of a document counts for nobody.
      read = targets.offsets[:, 1] <= keys.n_chars
      mask = read & spans.project(
        keys.spans, targets.offsets, policy="contained"
      )
      sums[pair] -= float(targets.log_probs[mask].sum())
      counts[pair] += int(mask.sum())
  scored = sum(document.n_tokens > 0 for document in own.values())
  if n_documents < scored:
    raise ValueError(
      f"{workdir} keeps the log-probs of {n_documents} of the {scored} "
      f"documents of {result.name!r}: evaluate again with --overwrite"
    )
  windows = next(iter(pairs.values())).manifest.windows
  return [
    Cell(
      windows.short_len,
      windows.stride,
      *pair,
      result.name,
      perplexity.perplexity(sums[pair], counts[pair]),
      counts[pair],
      n_documents,
    )
    for pair in pairs
  ]


def _ranked(cells: Sequence[Cell], unranked: set[str]) -> list[Cell]:
  """The cells of one setting by LongPPL, with their ranks; others behind."""
  most = max(cell.n_documents for cell in cells)
  ranks = sorted(
    (
      cell
      for cell in cells
      if cell.longppl is not None
      and cell.model not in unranked
      and cell.n_documents == most
    ),
    key=lambda cell: (cell.longppl, cell.model),
  )
  others = [cell for cell in cells if cell not in ranks]
  return [
    *(
      dataclasses.replace(cell, rank=rank) for rank, cell in enumerate(ranks, 1)
    ),
    *others,
  ]


def _cell_text(cell: Cell) -> str:
  if cell.longppl is None:
    return "none"
  rank = "" if cell.rank is None else f" ({cell.rank})"
  return f"{cell.longppl:,.2f}{rank}"


def _counts(cells: Sequence[Cell]) -> str:
  low, high = (f(cell.n_key_tokens for cell in cells) for f in (min, max))
  return f"{low:,}" if low == high else f"{low:,} to {high:,}"
