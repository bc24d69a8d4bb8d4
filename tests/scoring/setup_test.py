"""From a config to a run: what no run can have is refused before any model."""

import pytest
from support.tiny_runs import make_config

from longctx_jax import testing
from longctx_jax.scoring import setup


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("longppl__stride", 64, "stride=64 and short_len=32"),
    ("longppl__protocol", "loose", "'loose'"),
    ("data__over_length", "drop", "'drop'"),
    ("scoring__detail", "all", "detail='all' is not one of"),
    ("scoring__dtype", "int8", "scoring.dtype='int8' .*--weights int8"),
    ("scoring__weights", "int4", "weights='int4' is not one of int8"),
    ("data__chunk_tokenizer", "t", "chunk_tokenizer='t' without chunk_len"),
  ],
)
def test_settings_that_no_run_can_have_are_refused(field, value, message):
  with pytest.raises(ValueError, match=message):
    setup.check_config(make_config(**{field: value}))
  setup.check_config(make_config())


def test_the_limit_is_the_models_unless_it_is_named(warnings):
  model = testing.tiny_model()
  limit = model.config.max_position
  assert setup.max_length_of(make_config(), model) == limit
  short = make_config(data__max_length=50)
  assert setup.max_length_of(short, model) == 50 and not warnings
  longer = make_config(data__max_length=limit + 1)
  assert setup.max_length_of(longer, model) == limit + 1
  (text,) = warnings
  assert f"max_length={limit + 1} is more than the {limit} positions" in text


def test_ids_are_decoded_with_the_tokenizer_they_came_from(tmp_path):
  path = tmp_path / "ids.jsonl"
  path.write_text('{"ids": [1, 2]}\n')
  config = make_config(data__sources=(str(path),), data__ids_column="ids")
  with pytest.raises(ValueError, match="ids_column='ids' needs the tokenizer"):
    setup.open_corpus(config)


@pytest.mark.parametrize(
  ("fields", "sizes"),
  [
    (dict(tensor=2), (1, 4, 2)),
    (dict(data=-1), (8, 1, 1)),
    (dict(fsdp=8), (1, 8, 1)),
    (dict(data=2), (2, 4, 1)),
    (dict(data=1, fsdp=-1), (1, 8, 1)),
    (dict(tensor=-1), (1, 1, 8)),
  ],
)
def test_what_is_stated_of_a_mesh_stands(fields, sizes):
  config = make_config(**{f"mesh__{axis}": n for axis, n in fields.items()})
  mesh = setup.mesh_of(config)
  assert tuple(mesh.shape[axis] for axis in ("data", "fsdp", "tensor")) == sizes
  assert not setup.leaves_mesh_open(config)


def test_a_mesh_that_is_left_open_is_the_machines():
  config = make_config()
  assert setup.leaves_mesh_open(config) and setup.mesh_of(config) is None
