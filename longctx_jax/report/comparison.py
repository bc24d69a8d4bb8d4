"""Results of many models side by side: what may be compared, and the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from longctx_jax.paper import intervals, perplexity
from longctx_jax.report import tables

Result = Mapping[str, Any]


SELF_EVALUATED = "Self-evaluated (not ranked)"


_SETTINGS = ("protocol", "alpha", "beta", "n_documents")
# What a manifest may say differently about the same key tokens.
_INCIDENTAL = {"versions", "detail", "format_version"}


class NotComparable(ValueError):
  """Two results were made from different key tokens or protocols."""


@dataclass(frozen=True)
class Row:
  """One model of the comparison; None where a number is missing.

  `ratio` is LongPPL over the baseline's on the documents that hold key tokens
  of both, with its paired interval. `longppl_ci95_reason` is what the interval
  speaks of, where not of documents like these, or why there is none.
  """

  name: str
  longppl: float | None
  longppl_ci95: tuple[float, float] | None
  longppl_ci95_reason: str
  ppl: float | None
  ppl_ci95: tuple[float, float] | None
  n_key_tokens: int | None
  n_key_regions: int | None
  key_coverage: float | None
  top5_documents_share: float | None
  ratio: float | None
  ratio_ci95: tuple[float, float] | None
  self_evaluated: bool
  notes: tuple[str, ...]


def check_comparable(results: Sequence[Result]) -> None:
  """Refuses results that were not made alike (cases J2).

  Compares protocol, thresholds, the number of documents and the manifest of
  the key tokens; software versions and the stored detail may differ. A model
  that failed has no numbers and is not asked.

  Raises:
    NotComparable: names the field and both values.
  """
  first, *others = [r for r in results if _has_numbers(r)] or [{}]
  expected = _settings(first)
  for other in others:
    found = _settings(other)
    for field in sorted({*expected, *found}):
      if expected.get(field) != found.get(field):
        raise NotComparable(
          f"{first['name']!r} and {other['name']!r} differ in {field}: "
          f"{expected.get(field)!r} and {found.get(field)!r}. Evaluate both "
          "from one key-token store under one protocol, or pass force to "
          "compare them as they are."
        )


def comparison_rows(
  results: Sequence[Result],
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
    NotComparable: see `check_comparable`.
    ValueError: no result is called `baseline`, or it is self-evaluated
      (NotComparable).
  """
  if not force:
    check_comparable(results)
  by_name = {result["name"]: result for result in results}
  if baseline and baseline not in by_name:
    raise ValueError(
      f"no result is called {baseline!r}: the baseline is one of "
      f"{', '.join(sorted(by_name))}."
    )
  if baseline and by_name[baseline].get("self_evaluated") and not force:
    raise NotComparable(
      f"the baseline {baseline!r} chose the key tokens itself (self_evaluated "
      "is True), which bounds its LongPPL: name a model that did not, or pass "
      "force to divide by it all the same."
    )
  rows = [_row(result, by_name.get(baseline)) for result in results]
  return sorted(
    rows,
    key=lambda row: (
      row.self_evaluated,
      row.longppl is None,
      row.longppl or 0.0,
      row.name,
    ),
  )


def compare_table(
  results: Sequence[Result],
  *,
  fmt: str,
  baseline: str = "",
  force: bool = False,
) -> str:
  """The comparison as text, markdown, csv (full precision) or latex.

  Sorted by LongPPL. Self-evaluated models are listed after the others: their
  LongPPL is bounded by construction and ranks against nothing. Arguments and
  errors as `comparison_rows` and `tables.format_table`.
  """
  rows = comparison_rows(results, baseline=baseline, force=force)
  if fmt == "csv":
    return _csv(rows, baseline)
  return tables.format_table(
    table_header(baseline), table_groups(rows, baseline), fmt=fmt
  )


def table_header(baseline: str) -> list[str]:
  """Names of the columns that `table_groups` fills."""
  versus = [f"vs {baseline}"] if baseline else []
  header = ["Model", "LongPPL", "95% interval", *versus, "PPL", "Keys"]
  return [*header, "Regions", "Coverage", "Top 5", "Notes"]


def table_groups(
  rows: Sequence[Row], baseline: str
) -> list[tuple[str, list[list[str]]]]:
  """Printed cells of the ranked and of the self-evaluated models."""
  return [
    (
      title,
      [_cells(row, baseline) for row in rows if row.self_evaluated is own],
    )
    for title, own in (("", False), (SELF_EVALUATED, True))
  ]


def ppl_text(value: float | None) -> str:
  """A perplexity for the eye: two decimals below 100, "-" for None."""
  if value is None:
    return "-"
  if value < 100:
    return f"{value:.2f}"
  return f"{value:,.0f}" if value < 1e6 else f"{value:.1e}"


def ratio_text(row: Row, baseline: str) -> str:
  """The ratio to the baseline and its interval; 1 for the baseline itself."""
  if row.ratio is None or row.name == baseline:
    return "-" if row.ratio is None else "1"
  bounds = ", ".join(f"{bound:.3f}" for bound in row.ratio_ci95 or ())
  return f"{row.ratio:.3f} " + (f"[{bounds}]" if bounds else "(few texts)")


def interval_text(row: Row) -> str:
  """The interval of LongPPL for the eye, and what it speaks of if not all."""
  label = row.longppl_ci95_reason.replace("_", " ")
  if row.longppl_ci95 is None:
    return label if label and row.longppl is not None else "-"
  low, high = map(ppl_text, row.longppl_ci95)
  return f"[{low}, {high}] {label}".rstrip()


def share_text(value: float | None) -> str:
  """A share in per cent, "-" for None."""
  return "-" if value is None else f"{100 * value:.0f}%"


def count_text(value: int | None) -> str:
  """A count with thousands separated, "-" for None."""
  return "-" if value is None else f"{value:,}"


def _has_numbers(result):
  return result.get("longppl") is not None or result.get("ppl") is not None


def _settings(result):
  manifest = result.get("keys") or {}
  settings = {name: result.get(name) for name in _SETTINGS}
  return settings | {
    f"keys.{name}": value
    for name, value in manifest.items()
    if name not in _INCIDENTAL
  }


def _row(result, baseline):
  ratio, ratio_ci95 = None, None
  if baseline and not result.get("self_evaluated"):
    ratio, ratio_ci95 = _paired_ratio(result, baseline)
  return Row(
    name=result["name"],
    longppl=result.get("longppl"),
    longppl_ci95=result.get("longppl_ci95"),
    longppl_ci95_reason=result.get("longppl_ci95_reason") or "",
    ppl=result.get("ppl"),
    ppl_ci95=_ppl_ci95(result),
    n_key_tokens=result.get("n_key_tokens"),
    n_key_regions=result.get("n_key_regions"),
    key_coverage=result.get("key_coverage"),
    top5_documents_share=result.get("top5_documents_share"),
    ratio=ratio,
    ratio_ci95=ratio_ci95,
    self_evaluated=bool(result.get("self_evaluated")),
    notes=_notes(result),
  )


def _notes(result):
  notes = [result["reason"]] if result.get("reason") else []
  if result.get("longppl") is None:
    counts = result.get("null_reasons") or {}
    notes += [f"{reason}: {count}" for reason, count in counts.items()]
  if result.get("attention") not in (None, "", "full", result["name"]):
    notes.append(f"attention {result['attention']}")
  return (*notes, *(result.get("warnings") or ()))


def _sums(result, prefix):
  documents = result["documents"]
  names = {"key": ("key_nll_sum", "n_key_tokens"), "": ("nll_sum", "n_tokens")}
  sums, counts = (
    np.nan_to_num(np.asarray(documents[name], np.float64))
    for name in names[prefix]
  )
  return sums, counts.astype(np.int64)


def _ppl_ci95(result):
  if result.get("ppl") is None or not result.get("documents"):
    return None
  sums, counts = _sums(result, "")
  if result.get("protocol") == "paper":
    sums, counts = perplexity.paper_weighted(sums, counts)
  sums, counts = intervals.by_text(_texts(result), sums, counts)
  if np.count_nonzero(counts) < intervals.MIN_DOCUMENTS:
    return None
  return intervals.jackknife_ci95(sums, counts)


def _texts(result):
  sums = (*_sums(result, ""), *_sums(result, "key"))
  # Results of before name no text; equal sums tell its copies.
  hashes = result["documents"].get("text_sha256")
  if hashes is None:
    hashes = [""] * len(sums[0])
  return intervals.text_labels(hashes, *sums)


def _paired_ratio(result, baseline):
  if not result.get("documents") or not baseline.get("documents"):
    return None, None
  _, mine, theirs = np.intersect1d(
    result["documents"]["doc_id"],
    baseline["documents"]["doc_id"],
    return_indices=True,
  )
  sums, counts = (x[mine] for x in _sums(result, "key"))
  base_sums, base_counts = (x[theirs] for x in _sums(baseline, "key"))
  shared = (counts > 0) & (base_counts > 0)
  if not shared.any():
    return None, None
  difference = (
    sums[shared].sum() / counts[shared].sum()
    - base_sums[shared].sum() / base_counts[shared].sum()
  )
  ratio = float(np.exp(difference))
  texts = _texts(result)[mine][shared]
  if np.unique(texts).size < intervals.MIN_DOCUMENTS:
    return ratio, None
  each = (sums, counts, base_sums, base_counts)
  interval = intervals.paired_difference_ci95(
    *intervals.by_text(texts, *(values[shared] for values in each))
  )
  return ratio, tuple(np.exp(interval).tolist())


def _cells(row, baseline):
  coverage = row.key_coverage
  return [
    row.name,
    ppl_text(row.longppl),
    interval_text(row),
    *([ratio_text(row, baseline)] if baseline else []),
    ppl_text(row.ppl),
    count_text(row.n_key_tokens),
    count_text(row.n_key_regions),
    "-" if coverage is None else f"{coverage:.2f}",
    share_text(row.top5_documents_share),
    "; ".join(row.notes),
  ]


def _csv(rows, baseline):
  records = [_record(row, baseline) for row in rows]
  cells = [
    ["" if value is None else str(value) for value in record.values()]
    for record in records
  ]
  header = list(records[0]) if records else []
  return tables.format_table(header, [("", cells)], fmt="csv")


def _record(row, baseline):
  record = {"model": row.name, "self_evaluated": row.self_evaluated}
  for name in [field.name for field in fields(row)][1:-2]:
    value = getattr(row, name)
    if name.startswith("ratio") and not baseline:
      continue
    if name.endswith("_ci95"):
      low, high = value or (None, None)
      stem = name.removesuffix("_ci95")
      record |= {f"{stem}_low": low, f"{stem}_high": high}
    else:
      record[name] = value
  return record | {"notes": "; ".join(row.notes)}
