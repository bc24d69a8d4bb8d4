"""The figures: well-formed, and drawn where the numbers are."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from longctx_jax.evaluation.results import ModelResult
from longctx_jax.experiments.retrieval import plot
from longctx_jax.report import figures
from longctx_jax.report.comparison import Row


def make_row(name, longppl, ppl, *, notes=(), **fields):
  result = ModelResult(name=name, longppl=longppl, ppl=ppl, **fields)
  return Row(result, ppl_ci95=None, ratio=None, ratio_ci95=None, notes=notes)


def test_dots_stand_on_a_log_scale_in_order():
  rows = [make_row(f"m{i}", 2.0 * 1.5**i, 9.0 - i) for i in range(4)]
  root = ElementTree.fromstring(figures.model_plot(rows))
  x = [
    float(dot.get("cx"))
    for dot in root.iter("circle")
    if "longppl" in dot.get("class")
  ]
  assert np.ptp(np.diff(x)) < 0.2 and x[1] - x[0] > 20
  assert len(list(root.iter("circle"))) == 8


def test_the_whisker_spans_the_interval():
  rows = [
    make_row("a", 2.0, 5.0, longppl_ci95=(1.0, 4.0)),
    make_row("b", 1.0, 5.0),
    make_row("c", 4.0, 5.0),
  ]
  root = ElementTree.fromstring(figures.model_plot(rows))
  (whisker,) = (p for p in root.iter("path") if "whisker" in p.get("class", ""))
  ends = [float(v) for v in re.findall(r"[MH]([\d.]+)", whisker.get("d"))]
  dots = [
    float(dot.get("cx"))
    for dot in root.iter("circle")
    if "longppl" in dot.get("class")
  ]
  assert ends == dots[1:]


def test_names_are_escaped_and_long_ones_shortened():
  rows = [make_row("<b>&" + "x" * 80, 2.0, 3.0)]
  root = ElementTree.fromstring(figures.model_plot(rows))
  assert root.find(".//title").text == "<b>&" + "x" * 80
  assert "<b>" not in figures.model_plot(rows)


@pytest.mark.parametrize(
  "rows",
  [
    [make_row("failed", None, None, notes=("failed: <x>",))],
    [make_row("huge", 1e9, 1.0), make_row("small", 1.0, None)],
    [make_row("self", 1.2, 3.0, self_evaluated=True)],
    [make_row("open", 2.0, 3.0, longppl_ci95=(1.0, None))],
  ],
)
def test_odd_rows_are_drawn_without_warnings(rows):
  text = figures.model_plot(rows)
  ElementTree.fromstring(text)
  assert "nan" not in text and "inf" not in text


def test_self_evaluated_models_are_hollow():
  rows = [make_row("a", 2.0, 3.0), make_row("b", 1.2, 3.0, self_evaluated=True)]
  root = ElementTree.fromstring(figures.model_plot(rows))
  hollow = ["hollow" in dot.get("class") for dot in root.iter("circle")]
  assert hollow == [False, True] * 2


def test_the_histogram_marks_alpha_between_its_bars():
  rng = np.random.default_rng(0)
  lsd = np.r_[rng.normal(0, 0.4, 3000), rng.uniform(2, 9, 60), 99.0, -99.0]
  text = figures.lsd_histogram(lsd, lsd > 2, alpha=2.0)
  root = ElementTree.fromstring(text)
  paths = {p.get("class"): p.get("d") for p in root.iter("path")}
  threshold = float(paths["threshold"][1:].split()[0])
  keys = [float(x) for x in re.findall(r"M([\d.]+)", paths["bar-key"])]
  bars = [float(x) for x in re.findall(r"M([\d.]+)", paths["bar"])]
  assert min(keys) == pytest.approx(threshold + 0.5, abs=0.11)
  assert min(bars) < threshold < max(bars)
  assert "α = 2" in text and "nan" not in text


def test_the_histogram_of_one_token():
  ElementTree.fromstring(
    figures.lsd_histogram(np.zeros(1), np.zeros(1, bool), alpha=2.0)
  )


@pytest.mark.parametrize("n", [1, 7, 5000])
def test_the_track_keeps_every_extreme(n):
  lsd = np.random.default_rng(1).normal(0, 0.1, n)
  lsd[3 * n // 7] = 8.0
  lsd[: n // 4] = np.nan
  text, low, high = figures.lsd_track(lsd, lsd > 2)
  root = ElementTree.fromstring(text)
  paths = {p.get("class"): p.get("d") for p in root.iter("path")}
  tops = [float(v) for v in re.findall(r"V([\d.]+)", paths["gain"])]
  assert min(tops) == pytest.approx((high - 8) / (high - low) * 100, abs=0.06)
  assert paths["rug"].count("M") == 1
  assert low < 0 < 8 < high and math.isfinite(low)


def test_curves_stand_where_the_numbers_are():
  x = np.array([0.0, 50.0, 100.0])
  runs = np.array([[0.0, 0.5, 1.0], [0.0, 0.3, 1.0]])
  text = plot.curve_plot(
    {"A & B": (x, runs)}, x_label="steps", y_label="exact match"
  )
  tree = ElementTree.fromstring(text)
  paths = [
    node
    for node in tree.iter("{http://www.w3.org/2000/svg}path")
    if node.get("class") in ("seed", "mean")
  ]
  assert [path.get("class") for path in paths] == ["seed"] * 2 + ["mean"] * 2
  points = [
    np.array(re.findall(r"([\d.]+) ([\d.]+)", path.get("d")), float)
    for path in paths[:3]
  ]
  assert all(np.ptp(one[:, 0]) == points[0][2, 0] - points[0][0, 0]
             for one in points)  # fmt: skip
  height = points[0][0, 1] - points[0][2, 1]
  for one, y in zip(points, [*runs, runs.mean(0)], strict=True):
    found = (one[0, 1] - one[:, 1]) / height
    np.testing.assert_allclose(found, y, atol=1e-3)
  assert "A &amp; B" in text and "exact match" in text
