"""What may be compared, in what order, and with which intervals."""

import csv
import dataclasses
import io
import math

import numpy as np
import pytest

from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.paper import intervals, perplexity
from longctx_jax.report import alike, comparison

KEYS = {"evaluator": "E", "short_len": 4096, "versions": {"jax": "0.10.2"}}


def make_documents(counts, sums, n_tokens, nll):
  return tuple(
    DocumentResult(
      f"d{i}", i, "", n, nll_sum,
      region_nll_sums=(key_sum,), region_counts=(count,),
    )
    for i, (count, key_sum, n, nll_sum) in enumerate(
      zip(
        counts.tolist(), sums.tolist(), n_tokens.tolist(), nll.tolist(),
        strict=True,
      )
    )
  )  # fmt: skip


def make_result(name, log_longppl=1.0, *, n_documents=12, seed=0, **fields):
  rng = np.random.default_rng(seed)
  counts = rng.integers(1, 40, n_documents)
  sums = counts * (log_longppl + rng.normal(0, 0.3, n_documents))
  n_tokens = rng.integers(100, 900, n_documents)
  nll = n_tokens * rng.normal(1.5, 0.1, n_documents)
  made = dict(
    name=name,
    protocol="strict",
    n_documents=n_documents,
    keys=KEYS,
    longppl=perplexity.pooled_perplexity(sums, counts),
    longppl_ci95=intervals.jackknife_ci95(sums, counts),
    ppl=perplexity.pooled_perplexity(nll, n_tokens),
    n_key_tokens=int(counts.sum()),
    n_key_regions=1234,
    key_coverage=0.97,
    top5_documents_share=perplexity.top_documents_share(counts),
    documents=make_documents(counts, sums, n_tokens, nll),
  )
  return ModelResult(**made | fields)


def make_failed(name):
  return ModelResult(name=name, reason="failed: no file")


def test_rows_are_sorted_and_self_evaluated_ones_not_ranked():
  results = [
    make_result("worse", 1.2),
    make_result("judge", 0.2, self_evaluated=True),
    make_failed("broken"),
    make_result("better", 0.8),
  ]
  rows = comparison.comparison_rows(results)
  names = [row.result.name for row in rows]
  assert names == ["better", "worse", "broken", "judge"]
  text = comparison.compare_table(results, fmt="text")
  ranked, unranked = text.split(comparison.SELF_EVALUATED)
  assert "judge" in unranked and "judge" not in ranked
  unranked, failed = unranked.split(comparison.FAILED)
  assert "judge" in unranked and "broken" not in ranked + unranked
  assert "broken: failed: no file" in failed


@pytest.mark.parametrize(
  "field, mine, theirs",
  [
    ("protocol", {"protocol": "paper"}, ("'paper'", "'strict'")),
    ("alpha", {"keys": KEYS | {"alpha": 1.5}}, ("1.5", "None")),
    ("n_documents", {"n_documents": 3}, ("3", "12")),
    ("keys.short_len", {"keys": KEYS | {"short_len": 1024}}, ("1024", "4096")),
    (
      "keys.checksum",
      {"keys": KEYS | {"checksum": "ab"}},
      ("'ab'", "not there"),
    ),
  ],
)
def test_unlike_results_are_refused_by_name(field, mine, theirs):
  """Cases J2."""
  results = [make_result("A", **mine), make_result("B"), make_failed("C")]
  with pytest.raises(alike.NotComparable) as error:
    comparison.compare_table(results, fmt="text")
  for part in ("'A'", "'B'", f"in {field}:", *theirs):
    assert part in str(error.value)
  assert "A" in comparison.compare_table(results, fmt="text", force=True)


def test_versions_do_not_part_results():
  other = KEYS | {"versions": {"jax": "0.11"}, "detail": "keys"}
  alike.check_comparable([make_result("A"), make_result("B", keys=other)])
  alike.check_comparable([])


def test_a_constant_factor_shows_as_an_exact_ratio():
  """The models differ by a factor 1.1 everywhere: no uncertainty is left."""
  base = make_result("base", 1.0)
  other = make_result("other", 1.0 + math.log(1.1))
  order = np.random.default_rng(0).permutation(12)
  documents = tuple(other.documents[i] for i in order)
  other = dataclasses.replace(other, documents=documents)
  row = comparison.comparison_rows([base, other], baseline="base")[1]
  assert row.ratio == pytest.approx(1.1)
  assert row.ratio_ci95 == pytest.approx((1.1, 1.1))
  table = comparison.compare_table([base, other], fmt="text", baseline="base")
  assert "vs base" in table and "1.100 [1.100, 1.100]" in table


def test_the_ratio_is_over_the_documents_of_both():
  base, other = make_result("base"), make_result("other")
  first, *middle, last = other.documents
  elsewhere = dataclasses.replace(
    last, doc_id="elsewhere", region_nll_sums=(1e6,)
  )
  other = dataclasses.replace(
    other, documents=(DocumentResult("d0", 0, "failed"), *middle, elsewhere)
  )
  with pytest.raises(alike.NotComparable, match="'d11'.*and not there"):
    comparison.comparison_rows([base, other], baseline="base")
  rows = comparison.comparison_rows([base, other], baseline="base", force=True)
  assert rows[1].ratio == pytest.approx(1.0)


def test_few_shared_documents_give_a_ratio_without_interval():
  results = [make_result("A", n_documents=3), make_result("B", n_documents=3)]
  row = comparison.comparison_rows(results, baseline="A")[1]
  assert (row.ratio, row.ratio_ci95, row.ppl_ci95) == (1.0, None, None)
  assert comparison.ratio_text(row, "A") == "1.000 (few texts)"
  four = [make_result("A", n_documents=4), make_result("B", n_documents=4)]
  row = comparison.comparison_rows(four, baseline="A")[1]
  assert row.ratio_ci95 == (1.0, 1.0) and row.ppl_ci95 is not None


@pytest.mark.parametrize("known", [True, False])
def test_copies_of_a_text_are_no_evidence(known):
  """The interval of 4 texts, however often each stands there."""
  once, copied = [], []
  for seed, name in enumerate("AB"):
    result = make_result(name, n_documents=4, seed=seed)
    documents = [
      dataclasses.replace(one, text_sha256="abcd"[i] if known else "")
      for i, one in enumerate(result.documents)
    ]
    once.append(dataclasses.replace(result, documents=tuple(documents)))
    copies = (
      dataclasses.replace(one, doc_id=str(i))
      for i, one in enumerate(3 * documents)
    )
    copied.append(dataclasses.replace(result, documents=tuple(copies)))
  rows = [
    comparison.comparison_rows(results, baseline="A")
    for results in (once, copied)
  ]
  for one, other in zip(*rows, strict=True):
    assert other.ppl_ci95 == pytest.approx(one.ppl_ci95)
    assert other.ratio_ci95 == pytest.approx(one.ratio_ci95)


@pytest.mark.parametrize(
  ("interval", "label", "text"),
  [
    ([1.5, 2.5], "", "[1.50, 2.50]"),
    ([1.5, None], "these texts only", "[1.50, -] these texts only"),
    (None, "few_key_regions", "few key regions"),
  ],
)
def test_the_table_says_what_an_interval_speaks_of(interval, label, text):
  result = make_result("A", longppl_ci95=interval, longppl_ci95_reason=label)
  (row,) = comparison.comparison_rows([result])
  assert comparison.interval_text(row) == text
  assert text in comparison.compare_table([result], fmt="text")
  (record,) = csv.DictReader(
    io.StringIO(comparison.compare_table([result], fmt="csv"))
  )
  assert record["longppl_ci95_reason"] == label


def test_self_evaluated_models_are_divided_by_nothing():
  results = [make_result("A"), make_result("B", self_evaluated=True)]
  assert comparison.comparison_rows(results, baseline="A")[1].ratio is None


def test_ppl_interval_follows_the_protocol():
  for protocol in ("paper", "strict"):
    result = make_result("A", protocol=protocol)
    sums = np.array([one.nll_sum for one in result.documents])
    counts = np.array([one.n_tokens for one in result.documents])
    if protocol == "paper":
      sums, counts = sums / counts * (counts + 1), counts + 1
    (row,) = comparison.comparison_rows([result])
    assert row.ppl_ci95 == pytest.approx(intervals.jackknife_ci95(sums, counts))


def test_a_baseline_must_exist_and_not_be_self_evaluated():
  results = [make_result("A"), make_result("B", self_evaluated=True)]
  with pytest.raises(ValueError, match="'Z'.*one of A, B"):
    comparison.comparison_rows(results, baseline="Z")
  with pytest.raises(alike.NotComparable, match="'B'.*self_evaluated"):
    comparison.comparison_rows(results, baseline="B")
  (first, _) = comparison.comparison_rows(results, baseline="B", force=True)
  assert first.ratio == pytest.approx(1.0)


def test_csv_keeps_full_precision_and_leaves_missing_cells_empty():
  result = make_result("A, with comma", warnings=("w1", "w2"))
  table = comparison.compare_table([result, make_failed("F")], fmt="csv")
  first, second = csv.DictReader(io.StringIO(table))
  assert first["model"] == "A, with comma"
  assert float(first["longppl"]) == result.longppl
  assert float(first["longppl_high"]) == result.longppl_ci95[1]
  assert first["notes"] == "w1; w2"
  assert (second["longppl"], second["ppl_low"]) == ("", "")
  assert "ratio" not in first


def test_notes_say_why_there_is_no_longppl_and_what_attention_was_cut():
  result = make_result(
    "A", longppl=None, longppl_ci95=None, reason="too_short",
    null_reasons={"too_short": 11, "empty": 1},
    model={"attention": "first 4 + last 512"},
  )  # fmt: skip
  (row,) = comparison.comparison_rows([result])
  assert row.notes == (
    "too_short", "too_short: 11", "empty: 1", "attention first 4 + last 512",
  )  # fmt: skip


@pytest.mark.parametrize("fmt", ["text", "markdown", "latex"])
def test_a_note_stands_once_with_the_models_that_it_is_of(fmt):
  results = [
    make_result("A", warnings=("cut at 9 ids", "copied")),
    make_result("B", 1.1, warnings=("cut at 9 ids",)),
  ]
  table = comparison.compare_table(results, fmt=fmt)
  assert table.count("cut at 9 ids") == 1
  assert "A, B: cut at 9 ids" in table and "A: copied" in table
  # Below the table, where a wide terminal is not needed.
  assert table.index("1,234") < table.index("cut at 9 ids")
  assert "runs of them" in table.split("A, B:")[0]


@pytest.mark.parametrize("fmt", ["text", "markdown", "csv", "latex"])
def test_every_format_holds_every_model(fmt):
  results = [make_result("A"), make_result("B", self_evaluated=True)]
  table = comparison.compare_table(results, fmt=fmt)
  assert "A" in table and "B" in table


@pytest.mark.parametrize(
  "value, text",
  [(None, "-"), (2.155, "2.15"), (1822.3, "1,822"), (2.5e7, "2.5e+07")],
)
def test_perplexities_are_printed_short(value, text):
  assert comparison.ppl_text(value) == text
