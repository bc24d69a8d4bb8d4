"""Two runs are compared by what determines their numbers."""

import pytest

from longctx_jax.runtime import settings


def test_nested_fields_are_flat_and_as_json_gives_them_back():
  fields = {"a": {"b": (1, 2), "c": {"d": "x"}}, "e": 0.5}
  assert settings.flatten(fields) == {"a.b": [1, 2], "a.c.d": "x", "e": 0.5}


def test_each_difference_is_named_with_both_values():
  settings.require_same({"a": 1}, {"a": 1}, where="here")
  with pytest.raises(
    ValueError,
    match="here holds .*: a was 1 and is 2; b was 3 and is not there; c was "
    "not there and is 4. Take another --workdir",
  ):
    settings.require_same({"a": 1, "b": 3}, {"a": 2, "c": 4}, where="here")


def test_of_hundreds_of_differences_some_are_named():
  stored = {f"layer{i:03}": 1 for i in range(100)}
  with pytest.raises(
    settings.OtherSettings,
    match=r"^W holds other arrays: layer000 was 1 and is not there; .*"
    r"; and 88 more\. Do this$",
  ):
    settings.require_same(
      stored, {}, where="W", problem="holds other arrays", remedy="Do this"
    )
