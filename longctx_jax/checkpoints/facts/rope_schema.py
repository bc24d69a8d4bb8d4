"""RoPE facts in a config.json, old schema and new.

Old: `rope_theta`, `rope_scaling` and, for Gemma 3, `rope_local_base_freq`.
New, since transformers 5: `rope_parameters`, which a model with a table per
layer type nests by type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from longctx_jax.model import rope
from longctx_jax.model.rope import RopeConfig

Fields = Mapping[str, Any]


FIELDS = (
  "rope_theta",
  "rope_scaling",
  "rope_parameters",
  "rope_local_base_freq",
  "partial_rotary_factor",
  "original_max_position_embeddings",
)


# Layer types, in the order of the tables of a model with one for each.
LAYER_TYPES = ("full_attention", "sliding_attention")
_ORIGINAL = "original_max_position_embeddings"
_NAMES = {
  "factor": "factor",
  "low_freq_factor": "low_freq_factor",
  "high_freq_factor": "high_freq_factor",
  _ORIGINAL: "original_max_position",
  "beta_fast": "beta_fast",
  "beta_slow": "beta_slow",
  "attention_factor": "attention_factor",
  "truncate": "truncate",
  "short_factor": "short_factor",
  "long_factor": "long_factor",
}


# transformers before 4.43, and the paper's EABF over 4.37, take exactly the
# fields `type` and `factor` for these.
_TWO_FIELDS = ("linear", "dynamic", "eabf")
# Fields in which a config states the context of a linear table.
_LENGTHS = ("max_sequence_length", "model_max_length")
_ENDLESS = 1 << 30
# Read into the attention factor.
_SCALES = ("mscale", "mscale_all_dim")
# What each type is made of; another field beside them is refused.
_KNOWN = {
  "linear": {"factor"},
  "dynamic": {"factor", _ORIGINAL},
  "llama3": {
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    _ORIGINAL,
  },
  "yarn": {
    "factor",
    _ORIGINAL,
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "truncate",
    *_SCALES,
  },
  "longrope": {
    "factor",
    _ORIGINAL,
    "attention_factor",
    "short_factor",
    "long_factor",
  },
  # The published code demands a factor that it does not use.
  "eabf": {"factor", _ORIGINAL},
}


def read_ropes(
  fields: Fields,
  *,
  per_layer_type: bool,
  missing_theta: float,
  aliases: Mapping[str, str],
) -> tuple[RopeConfig, ...]:
  """The tables of a config: one, or one for each of `LAYER_TYPES`.

  Args:
    fields: of a config.json, either schema or both.
    per_layer_type: whether layers with and without a window have tables of
      their own.
    missing_theta: the base of configs that were written before they stated
      one; 0 where all do.
    aliases: other names of RoPE types.

  Raises:
    ValueError: for a missing fact, fields that contradict each other, a type
      or a field that is not known.
  """
  new = fields.get("rope_parameters") or {}
  nested = {kind: new[kind] for kind in LAYER_TYPES if kind in new}
  if nested and not per_layer_type:
    raise ValueError("rope_parameters by layer type on a model with one table")
  kinds = LAYER_TYPES if per_layer_type else LAYER_TYPES[:1]
  if per_layer_type and new and set(nested) != set(kinds):
    raise ValueError(f"rope_parameters must have {' and '.join(kinds)}")
  stated = [
    _merge(nested[kind] if nested else new, kind, fields, aliases)
    for kind in kinds
  ]
  max_position = fields["max_position_embeddings"]
  return tuple(
    _make(kind, {"rope_theta": missing_theta} | facts, max_position)
    for kind, facts in stated
  )


def read_context(
  fields: Fields,
  table: RopeConfig,
  *,
  aliases: Mapping[str, str],
) -> int:
  """Longest context of the model: that of its table, not the stated one alone.

  longrope: at least original x factor, where the factor is stated. linear:
  another field that states a longer one; see `doubtful_context`. For the other
  types see `RopeConfig.context`.

  Args:
    fields: of a config.json.
    table: of the layers without a window.
    aliases: other names of RoPE types.
  """
  stated = fields["max_position_embeddings"]
  if table.rope_type == "longrope":
    new = fields.get("rope_parameters") or {}
    _, facts = _merge(new, LAYER_TYPES[0], fields, aliases)
    factor = facts.get("factor") or 0
    return max(stated, int(table.original_max_position * factor))
  if table.rope_type == "linear":
    return max(stated, *(_finite(fields.get(name)) for name in _LENGTHS))
  return table.context(stated)


def doubtful_context(fields: Fields) -> str:
  """What to say of a linear table whose stretched length no field states; "".

  The stated length may be the one before the stretch, or behind it.

  Args:
    fields: of a config.json that `read_ropes` can read.
  """
  new = fields.get("rope_parameters") or {}
  kind, facts = _merge(new, LAYER_TYPES[0], fields, {})
  if kind != "linear" or _finite(fields.get("max_sequence_length")):
    return ""
  stated = fields["max_position_embeddings"]
  if _finite(fields.get("model_max_length")) > stated:
    return ""
  return (
    f"RoPE is stretched x {facts['factor']:g}: if {stated:,} is the original "
    f"length, give --max_length {int(stated * facts['factor'])}"
  )


def _finite(length: int | float | None) -> int:
  """A length that is one: tokenizers write 1e30 for none."""
  return int(length) if length and length < _ENDLESS else 0


def _merge(
  new: Fields, layer_type: str, fields: Fields, aliases: Mapping[str, str]
) -> tuple[str, dict[str, Any]]:
  """Type and facts of a table, from both schemas and the model's own fields."""
  stated = {name: value for name, value in new.items() if value is not None}
  is_full = layer_type == LAYER_TYPES[0]
  # Gemma 3 never scaled the tables of its windows.
  scaling = fields.get("rope_scaling") if is_full else None
  for name, value in (scaling or {}).items():
    _state(stated, name, value, where=f"rope_scaling[{name!r}]")
  kind = _kind(stated, aliases)
  theta = "rope_theta" if is_full else "rope_local_base_freq"
  own = {"rope_theta": theta, "partial_rotary_factor": "partial_rotary_factor"}
  if _ORIGINAL in _KNOWN.get(kind, ()):
    own[_ORIGINAL] = _ORIGINAL
  for name, field in own.items():
    _state(stated, name, fields.get(field), where=field)
  if "rope_theta" not in stated and not is_full:
    raise ValueError(f"{theta} is missing")
  return kind, stated


def _state(
  stated: dict[str, Any], name: str, value: Any, *, where: str
) -> None:
  """Adds a fact from another place, which must not contradict."""
  if value is not None and stated.setdefault(name, value) != value:
    raise ValueError(
      f"{where} is {value!r} and, in the RoPE parameters, {stated[name]!r}"
    )


def _kind(stated: Fields, aliases: Mapping[str, str]) -> str:
  """The type of the table, by our name."""
  kinds = {
    aliases.get(stated[key], stated[key])
    for key in ("rope_type", "type")
    if key in stated
  }
  if len(kinds) > 1:
    raise ValueError(f"RoPE types {sorted(kinds)} contradict")
  return kinds.pop() if kinds else "default"


def _make(kind: str, stated: Fields, max_position: int) -> RopeConfig:
  """The table of these facts."""
  facts = dict(stated)
  # Yarn-Mistral and its kin mark a fine-tuned table; the table is the same.
  for name in ("rope_type", "type", "finetuned"):
    facts.pop(name, None)
  theta = float(facts.pop("rope_theta"))
  if not theta:
    raise ValueError("rope_theta is missing")
  share = float(facts.pop("partial_rotary_factor", 1.0))
  if kind == "default":
    # A stale scaling factor beside the default type changes nothing.
    return RopeConfig(kind, theta, rotary_share=share)
  if kind in _KNOWN and (unknown := sorted(set(facts) - _KNOWN[kind])):
    raise ValueError(
      f"RoPE fields {unknown} are not understood for type {kind!r}"
    )
  values = {_NAMES[name]: facts[name] for name in _NAMES if name in facts}
  values |= _derived(kind, facts, max_position)
  for name in ("short_factor", "long_factor"):
    if name in values:
      values[name] = tuple(float(value) for value in values[name])
  return RopeConfig(kind, theta, rotary_share=share, **values)


def _derived(kind: str, stated: Fields, max_position: int) -> dict[str, Any]:
  """Facts of ours that follow from what is stated."""
  original = stated.get(_ORIGINAL) or 0
  factor = stated.get("factor") or 0.0
  if kind == "dynamic":
    if original not in (0, max_position):
      raise ValueError(
        f"dynamic RoPE grows from max_position_embeddings="
        f"{max_position}; original_max_position_embeddings={original} differs"
      )
    return {"original_max_position": max_position}
  if kind == "eabf":
    return {"factor": 0.0}
  if kind not in ("yarn", "longrope") or not original:
    return {}
  if "attention_factor" in stated:
    attention = stated["attention_factor"]
  elif kind == "yarn":
    scales = {name: stated.get(name) or 0.0 for name in _SCALES}
    attention = rope.yarn_attention_factor(factor, **scales)
  else:
    stretch = factor or max_position / original
    attention = rope.longrope_attention_factor(stretch, original)
  # What longrope's factor is for is in the attention factor.
  unused = {"factor": 0.0} if kind == "longrope" else {}
  return {"attention_factor": attention} | unused


def write_ropes(
  ropes: Sequence[RopeConfig], *, max_position: int, original_on_top: bool
) -> dict[str, Any]:
  """The fields that `read_ropes` reads back, in both schemas.

  transformers before version 5 reads `rope_theta`, `rope_scaling` and, of
  Gemma 3, `rope_local_base_freq` only. These cannot state a scaled table of
  layers with a window: such a folder has the new form alone.

  Args:
    ropes: one table, or one for each of `LAYER_TYPES`.
    max_position: the model's longest context.
    original_on_top: whether the family states the original length among the
      fields of the model (Phi-3).
  """
  if len(ropes) > 1:
    nested = {
      kind: _parameters(table)
      for kind, table in zip(LAYER_TYPES, ropes, strict=True)
    }
    fields = {"rope_parameters": nested}
    if ropes[1].rope_type != "default":
      return fields
    old = write_ropes(
      ropes[:1], max_position=max_position, original_on_top=original_on_top
    )
    if old["rope_scaling"]:
      # Of a family that no reader of the shorter names knows.
      old["rope_scaling"] = {
        name: nested[LAYER_TYPES[0]][name]
        for name in nested[LAYER_TYPES[0]]
        if name not in ("rope_theta", "partial_rotary_factor")
      }
    return old | {"rope_local_base_freq": ropes[1].theta} | fields
  (table,) = ropes
  new = _parameters(table)
  old = {"type": table.rope_type} | {
    name: value
    for name, value in new.items()
    if name not in ("rope_theta", "partial_rotary_factor")
  }
  if table.rope_type in _TWO_FIELDS:
    factor = table.factor or max_position / table.original_max_position
    new["factor"] = factor
    old = {"type": table.rope_type, "factor": factor}
  fields = {"rope_theta": table.theta, "rope_parameters": new}
  if table.rope_type == "dynamic":
    fields["max_position_embeddings"] = table.original_max_position
  if table.rope_type == "linear":
    fields["max_sequence_length"] = max_position
  if table.rotary_share != 1:
    fields["partial_rotary_factor"] = table.rotary_share
  original_on_top |= table.rope_type == "eabf"
  if original_on_top and table.original_max_position:
    fields[_ORIGINAL] = table.original_max_position
  if original_on_top and table.rope_type == "longrope":
    # Phi-3's own reader takes these three fields and no fourth.
    usual = rope.longrope_attention_factor(
      max_position / table.original_max_position, table.original_max_position
    )
    kept = {"short_factor", "long_factor"}
    if table.attention_factor != usual:
      kept.add("attention_factor")
    old = {"type": "longrope"} | {name: old[name] for name in kept}
  fields["rope_scaling"] = None if table.rope_type == "default" else old
  return fields


def _parameters(table: RopeConfig) -> dict[str, Any]:
  """`rope_parameters` of one table."""
  used = _KNOWN.get(table.rope_type, set())
  usual = RopeConfig("default", table.theta)
  found = {
    "rope_type": table.rope_type,
    "rope_theta": table.theta,
    "partial_rotary_factor": table.rotary_share,
  }
  if table.rotary_share == 1:
    del found["partial_rotary_factor"]
  for theirs, ours in _NAMES.items():
    value = getattr(table, ours)
    if theirs in used and (value != getattr(usual, ours)):
      found[theirs] = list(value) if isinstance(value, tuple) else value
  if "attention_factor" in used:
    found["attention_factor"] = table.attention_factor
  if table.rope_type == "dynamic":
    # It is max_position_embeddings by definition.
    del found[_ORIGINAL]
  return found
