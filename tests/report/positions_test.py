"""Means by position, pooled over documents."""

import numpy as np
import pytest

from longctx_jax.report import positions


def test_a_bin_is_the_mean_of_its_targets_over_all_documents():
  edges = np.array([0.0, 10.0, 20.0, 30.0])
  curve = positions.Curve("m", edges)
  rng = np.random.default_rng(0)
  values, places = [], []
  for _ in range(2):
    starts = rng.integers(0, 20, 200)
    own = rng.normal(size=200)
    own[:5] = np.nan  # unscored
    curve.add(np.stack([starts, starts + 1], axis=1), own)
    values.append(own[5:])
    places.append(starts[5:])
  values, places = np.concatenate(values), np.concatenate(places)
  expected = [values[places < 10].mean(), values[places >= 10].mean(), np.nan]
  assert curve.means == pytest.approx(np.array(expected), nan_ok=True)


def test_few_targets_are_no_mean_and_the_last_edge_belongs_to_the_last_bin():
  curve = positions.Curve("m", np.array([0.0, 1.0, 2.0]))
  starts = np.array([0] * 31 + [2] * 32)
  curve.add(np.stack([starts, starts], axis=1), np.ones(63))
  assert np.isnan(curve.means[0]) and curve.means[1] == 1.0
  edges = positions.edges_of([7, 24])
  assert (edges[0], edges[-1], len(edges)) == (0, 24, 25)
