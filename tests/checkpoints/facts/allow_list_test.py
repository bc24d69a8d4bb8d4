import pytest
from support.llama_fields import read

from longctx_jax.checkpoints.facts import allow_list


def test_a_field_is_refused_unless_known_null_or_of_its_neutral_value():
  fields = {
    "read": 3,
    "_private": 1,
    "absent": None,
    "is_causal": True,
    "gain": 1.0,
  }
  allow_list.refuse_unknown(fields, {"read"}, {"gain": 1.0})
  for name, value in (("is_causal", False), ("gain", 0), ("mode", "")):
    with pytest.raises(ValueError, match=f"numbers: {name}={value!r}$"):
      changed = fields | {name: value}
      allow_list.refuse_unknown(changed, {"read"}, {"gain": 1.0})


def test_null_and_harmless_fields_pass():
  read(new_field=None, _name_or_path="x", torch_dtype="bfloat16")
