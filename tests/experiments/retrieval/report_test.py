"""The report of the experiment says what the records hold."""

import numpy as np
import pytest

from longctx_jax.experiments.retrieval import report


def record(arm, seed, matches, start="retrieves", **fields):
  rows = [
    {
      "step": step,
      "cpu_seconds": step / 10,
      "exact_match": match,
      "nll": 1.5,
      "nll_by_class": dict.fromkeys(report._CLASSES, 0.25),
    }
    for step, match in zip((0, 50, 100), matches, strict=True)
  ]
  return (
    dict(start=start, arm=arm, seed=seed, rows=rows, flat_weights=False,
         mean_weight=1.0, scoring_seconds=0.0) | fields
  )  # fmt: skip


RECORDS = [
  record("ce", 0, (0.1, 0.2, 0.4)),
  record("longce", 0, (0.1, 0.6, 0.8)),
  record("ce", 1, (0.1, 0.3, 0.5)),
  record("longce", 1, (0.1, 0.5, 0.9)),
  record("hard", 1, (0.1, 0.5, 0.9), scoring_seconds=3.25),
]
BLIND = [
  record("ce", 0, (0.0, 0.03, 0.03), start="blind"),
  record("longce", 0, (0.0, 0.03, 0.03), start="blind", flat_weights=True),
]


def test_curves_keep_the_seeds():
  x, y = report.curves(RECORDS, "cpu_seconds")["longce"]
  np.testing.assert_array_equal(x, [0, 5, 10])
  np.testing.assert_array_equal(y, [[0.1, 0.6, 0.8], [0.1, 0.5, 0.9]])


def test_the_gap_is_taken_seed_by_seed():
  assert report.gaps(RECORDS, 50) == pytest.approx({0: 0.4, 1: 0.2})
  assert report.gaps(RECORDS, 50, arm="hard") == pytest.approx({1: 0.2})


@pytest.mark.parametrize(
  ("worst", "words"), [(0.5, ": at least"), (0.4, "NOT at least")]
)
def test_the_page_says_whether_every_seed_shows_it(tmp_path, worst, words):
  records = [*RECORDS, *BLIND]
  records[3] = record("longce", 1, (0.1, worst, 0.9))
  report.write_report(tmp_path, records, 50)
  page = (tmp_path / "report.html").read_text()
  assert words in page
  assert "Where LongCE does not help" in page and "1 of 1" in page
  assert "3.2" in page  # The price of scoring is not hidden.
  assert page.count("<svg") == 2
  for name in ("step", "cpu_seconds"):
    text = (tmp_path / f"exact_match_by_{name}.svg").read_text()
    assert text.startswith("<svg xmlns=")


def test_without_both_arms_there_is_no_verdict(tmp_path):
  report.write_report(tmp_path, RECORDS[:1], 50)
  assert "no comparison" in (tmp_path / "report.html").read_text()
