"""Flags as fields of a config."""

import re

import pytest
from support.tiny_runs import make_config

from longctx_jax import fields


def test_flags_that_are_not_given_leave_the_config_alone():
  config = make_config(models=("a",), longppl__alpha=1.0).lock()
  values = {"models": None, "data.sources": ["x", "y"], "longppl.alpha": None}
  changed = fields.override(config, values | {"eval.per_token": False})
  assert changed.models == ("a",) and changed.longppl.alpha == 1.0
  assert changed.data.sources == ("x", "y") and changed.is_locked
  with pytest.raises(KeyError, match="alhpa"):
    fields.override(config, {"longppl.alhpa": 1.0})


def test_models_come_from_flags_and_then_from_the_file(tmp_path):
  path = tmp_path / "models.txt"
  path.write_text("# the small ones\nB\n\n  C # \n")
  assert fields.read_models(["A"], str(path)) == ["A", "B", "C #"]
  assert fields.read_models(None, "") is None


@pytest.mark.parametrize(
  "text", ["", ":", "1:", "-1:2", "1:2:3", "a:b", "1 :2"]
)
def test_a_row_range_is_two_numbers(text):
  assert fields.row_range("3:14") == (3, 14)
  assert fields.row_range(None) is None
  with pytest.raises(ValueError, match=re.escape(f"row_range={text!r}")):
    fields.row_range(text)


def test_a_limit_is_the_first_rows():
  assert fields.row_range(None, 20) == (0, 20)
  for text, limit in (("0:5", 20), (None, 0)):
    with pytest.raises(ValueError, match="in the place of --row_range"):
      fields.row_range(text, limit)
