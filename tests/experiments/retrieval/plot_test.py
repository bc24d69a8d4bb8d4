"""Curves as SVG: every run, their mean, and names as they are."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from longctx_jax.experiments.retrieval import plot

X = np.array([0.0, 50.0, 100.0])
RUNS = np.array([[0.0, 0.5, 1.0], [0.0, 0.25, 0.5]])


def draw(**series):
  svg = plot.curve_plot(series, x_label="step", y_label="share & more")
  ET.fromstring(svg)  # It is well-formed.
  return svg


def points(svg, kind):
  """The curves of a kind, each an array [P, 2]."""
  found = re.findall(rf'class="{kind}" stroke="[^"]*" d="M([^"h]*)"', svg)
  return [
    np.array([[float(v) for v in point.split()] for point in one.split("L")])
    for one in found
  ]


def test_every_run_is_drawn_and_their_mean():
  svg = draw(ce=(X, RUNS), longce=(X, RUNS[:1]))
  seeds, means = points(svg, "seed"), points(svg, "mean")
  assert (len(seeds), len(means)) == (3, 2)
  np.testing.assert_allclose(means[0], (seeds[0] + seeds[1]) / 2, atol=0.1)
  x, y = seeds[0].T
  assert np.diff(x) == pytest.approx([350, 350], abs=0.1)
  # 1 is at the top.
  assert y == pytest.approx([356, 207, 58], abs=0.1)


def test_names_are_escaped():
  svg = draw(**{"a<b": (X, RUNS)})
  assert "a&lt;b</text>" in svg and "share &amp; more" in svg


def test_a_single_point_at_zero_can_be_drawn():
  svg = draw(ce=(np.zeros(1), np.full((1, 1), 0.5)))
  assert len(points(svg, "seed")) == 1 and "nan" not in svg
