"""Results of many models side by side: rows, their order, the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from longctx_jax.evaluation.results import ModelResult
from longctx_jax.paper import intervals, perplexity
from longctx_jax.report import alike, tables

SELF_EVALUATED = "Self-evaluated (not ranked)"
FAILED = "Failed (the notes say why)"
COLUMNS = (
  "Key tokens: those of the model that lie in the evaluator's key spans; key "
  "regions: runs of them with gaps of at most 16 tokens; keys covered: share "
  "of the spans' characters in them; top 5: share of the key tokens in the "
  "five documents with most."
)


@dataclass(frozen=True)
class Row:
  """One model of the comparison; None where a number is missing.

  Attributes:
    result: of the model.
    ppl_ci95: interval of its PPL.
    ratio: LongPPL over the baseline's, on the documents that hold key tokens
      of both.
    ratio_ci95: its paired interval.
    notes: what a reader must know.
  """

  result: ModelResult
  ppl_ci95: tuple[float, float] | None
  ratio: float | None
  ratio_ci95: tuple[float, float] | None
  notes: tuple[str, ...]


def comparison_rows(
  results: Sequence[ModelResult],
  *,
  baseline: str = "",
  force: bool = False,
) -> list[Row]:
  """Rows in the order of the table: by LongPPL, self-evaluated models last.

  Args:
    results: as `files.load_results` returns them.
    baseline: name of the model to divide by; "" for none.
    force: compare results that were not made alike.

  Raises:
    NotComparable: see `alike.check_comparable`.
    ValueError: no result is called `baseline`, or it is self-evaluated
      (NotComparable).
  """
  if not force:
    alike.check_comparable(results)
  by_name = {result.name: result for result in results}
  if baseline and baseline not in by_name:
    raise ValueError(
      f"no result is called {baseline!r}: the baseline is one of "
      f"{', '.join(sorted(by_name))}."
    )
  if baseline and by_name[baseline].self_evaluated and not force:
    raise alike.NotComparable(
      f"the baseline {baseline!r} chose the key tokens itself (self_evaluated "
      "is True), which bounds its LongPPL: name a model that did not, or pass "
      "force to divide by it all the same."
    )
  rows = [_row(result, by_name.get(baseline)) for result in results]
  return sorted(
    rows,
    key=lambda row: (
      row.result.self_evaluated,
      row.result.longppl is None,
      row.result.longppl or 0.0,
      row.result.name,
    ),
  )


def compare_table(
  results: Sequence[ModelResult],
  *,
  fmt: str,
  baseline: str = "",
  force: bool = False,
) -> str:
  """The comparison as text, markdown, csv (full precision) or latex.

  Sorted by LongPPL. Self-evaluated models are listed after the others: their
  LongPPL is bounded by construction and ranks against nothing. Below the table
  stand what its columns mean and the notes, each once with the models that it
  is of; a CSV has a column for them. Arguments and errors as `comparison_rows`
  and `tables.format_table`.
  """
  rows = comparison_rows(results, baseline=baseline, force=force)
  if fmt == "csv":
    return _csv(rows, baseline)
  table = tables.format_table(
    table_header(baseline), table_groups(rows, baseline), fmt=fmt
  )
  return table + tables.format_notes([COLUMNS, *table_notes(rows)], fmt=fmt)


def run_table(
  results: Sequence[ModelResult], others: Sequence[ModelResult]
) -> str:
  """The table of a run, as text, with what it may be compared with.

  Args:
    results: of the run.
    others: what its workdir holds besides; those that were made of something
      else are named below the table, with the difference.
  """
  shown, left_out = alike.beside(results, others)
  lines = [
    f"left out: {name}, of another run, which differs in {difference}\n"
    for name, difference in left_out.items()
  ]
  return "".join([compare_table(shown, fmt="text"), *lines])


def table_header(baseline: str) -> list[str]:
  """Names of the columns that `table_groups` fills."""
  versus = [f"vs {baseline}"] if baseline else []
  header = ["Model", "LongPPL", "95% interval", *versus, "PPL", "Documents"]
  return [*header, "Key tokens", "Key regions", "Keys covered", "Top 5"]


def table_notes(rows: Sequence[Row]) -> list[str]:
  """What a reader must know, each once, with the models that it is of."""
  models: dict[str, list[str]] = {}
  for row in rows:
    for note in row.notes:
      models.setdefault(note, []).append(row.result.name)
  return [f"{', '.join(names)}: {note}" for note, names in models.items()]


def table_groups(
  rows: Sequence[Row], baseline: str
) -> list[tuple[str, list[list[str]]]]:
  """Printed cells of the ranked, the self-evaluated and the failed models."""
  groups = {"": [], SELF_EVALUATED: [], FAILED: []}
  for row in rows:
    title = SELF_EVALUATED if row.result.self_evaluated else ""
    groups[FAILED if row.result.failed else title].append(_cells(row, baseline))
  return list(groups.items())


def ppl_text(value: float | None) -> str:
  """A perplexity for the eye: two decimals below 100, "-" for None."""
  if value is None:
    return "-"
  if value < 100:
    return f"{value:.2f}"
  return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def ratio_text(row: Row, baseline: str) -> str:
  """The ratio to the baseline and its interval; 1 for the baseline itself."""
  if row.ratio is None or row.result.name == baseline:
    return "-" if row.ratio is None else "1"
  bounds = ", ".join(f"{bound:.3f}" for bound in row.ratio_ci95 or ())
  return f"{row.ratio:.3f} " + (f"[{bounds}]" if bounds else "(few texts)")


def interval_text(row: Row) -> str:
  """The interval of LongPPL for the eye, and what it speaks of if not all."""
  result = row.result
  label = result.longppl_ci95_reason.replace("_", " ")
  if result.longppl_ci95 is None:
    return label if label and result.longppl is not None else "-"
  low, high = map(ppl_text, result.longppl_ci95)
  return f"[{low}, {high}] {label}".rstrip()


def share_text(value: float | None) -> str:
  """A share in per cent, "-" for None."""
  return "-" if value is None else f"{100 * value:.0f}%"


def count_text(value: int | None) -> str:
  """A count with thousands separated, "-" for None."""
  return "-" if value is None else f"{value:,}"


def _row(result: ModelResult, baseline: ModelResult | None) -> Row:
  ratio, ratio_ci95 = None, None
  if baseline and not result.self_evaluated:
    ratio, ratio_ci95 = _paired_ratio(result, baseline)
  return Row(result, _ppl_ci95(result), ratio, ratio_ci95, _notes(result))


def _notes(result: ModelResult) -> tuple[str, ...]:
  notes = [result.reason] if result.reason else []
  if result.longppl is None:
    counts = result.null_reasons.items()
    notes += [f"{reason}: {count}" for reason, count in counts]
  if result.attention not in ("", "full", result.name):
    notes.append(f"attention {result.attention}")
  return (*notes, *result.warnings)


def _sums(
  result: ModelResult, sums: str, counts: str
) -> tuple[Float[np.ndarray, "D"], Int[np.ndarray, "D"]]:
  documents = result.documents
  return (
    np.array([getattr(one, sums) for one in documents], np.float64),
    np.array([getattr(one, counts) for one in documents], np.int64),
  )


def _ppl_ci95(result: ModelResult) -> tuple[float, float] | None:
  if result.ppl is None:
    return None
  sums, counts = _sums(result, "nll_sum", "n_tokens")
  if result.protocol == "paper":
    sums, counts = perplexity.paper_weighted(sums, counts)
  sums, counts = intervals.by_text(result.text_labels, sums, counts)
  if np.count_nonzero(counts) < intervals.MIN_DOCUMENTS:
    return None
  return intervals.jackknife_ci95(sums, counts)


def _paired_ratio(
  result: ModelResult, baseline: ModelResult
) -> tuple[float | None, tuple[float, float] | None]:
  places = {one.identity: i for i, one in enumerate(baseline.documents)}
  pairs = [
    (i, places[one.identity])
    for i, one in enumerate(result.documents)
    if one.identity in places
  ]
  mine, theirs = np.array(pairs, np.int64).reshape(-1, 2).T
  key_sums = ("key_nll_sum", "n_key_tokens")
  sums, counts = (x[mine] for x in _sums(result, *key_sums))
  base_sums, base_counts = (x[theirs] for x in _sums(baseline, *key_sums))
  shared = (counts > 0) & (base_counts > 0)
  if not shared.any():
    return None, None
  difference = (
    sums[shared].sum() / counts[shared].sum()
    - base_sums[shared].sum() / base_counts[shared].sum()
  )
  ratio = float(np.exp(difference))
  texts = result.text_labels[mine][shared]
  if np.unique(texts).size < intervals.MIN_DOCUMENTS:
    return ratio, None
  each = (sums, counts, base_sums, base_counts)
  interval = intervals.paired_difference_ci95(
    *intervals.by_text(texts, *(values[shared] for values in each))
  )
  return ratio, tuple(np.exp(interval).tolist())


def _cells(row: Row, baseline: str) -> list[str]:
  result = row.result
  coverage = result.key_coverage
  return [
    result.name,
    ppl_text(result.longppl),
    interval_text(row),
    *([ratio_text(row, baseline)] if baseline else []),
    ppl_text(result.ppl),
    _documents_text(result),
    count_text(result.n_key_tokens),
    count_text(result.n_key_regions),
    "-" if coverage is None else f"{coverage:.2f}",
    share_text(result.top5_documents_share),
  ]


def _documents_text(result: ModelResult) -> str:
  """How many documents a number is of; "6 of 12" where some were not read."""
  read, n = result.n_documents_read, result.n_documents
  if read is None or read == n:
    return count_text(n)
  return f"{read:,} of {n:,}"


def _csv(rows: Sequence[Row], baseline: str) -> str:
  records = [_record(row, baseline) for row in rows]
  cells = [
    ["" if value is None else str(value) for value in record.values()]
    for record in records
  ]
  header = list(records[0]) if records else []
  return tables.format_table(header, [("", cells)], fmt="csv")


def _record(row: Row, baseline: str) -> dict[str, Any]:
  def bounds(
    name: str, interval: tuple[float | None, float | None] | None
  ) -> dict[str, float | None]:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}

  result = row.result
  record = {
    "model": result.name,
    "self_evaluated": result.self_evaluated,
    "longppl": result.longppl,
    **bounds("longppl", result.longppl_ci95),
    "longppl_ci95_reason": result.longppl_ci95_reason,
    "ppl": result.ppl,
    **bounds("ppl", row.ppl_ci95),
    "n_key_tokens": result.n_key_tokens,
    "n_key_regions": result.n_key_regions,
    "key_coverage": result.key_coverage,
    "top5_documents_share": result.top5_documents_share,
    "n_documents": result.n_documents,
    "n_documents_read": result.n_documents_read,
  }
  if baseline:
    record |= {"ratio": row.ratio, **bounds("ratio", row.ratio_ci95)}
  return record | {"notes": "; ".join(row.notes)}
