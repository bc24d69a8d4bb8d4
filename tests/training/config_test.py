"""The config of a run as the settings of its parts."""

import jax.numpy as jnp
import pytest
from support.tiny_training import make_config

from longctx_jax import testing
from longctx_jax.paper.windows import Windows
from longctx_jax.training import config as config_lib

WINDOWED = dict(model_type="mistral", windows=(24, 24), max_position=128)


def test_the_windows_of_a_checkpoint_can_be_switched_off(tmp_path, mesh):
  """As the paper trains Mistral."""
  model = testing.tiny_model(testing.tiny_config(**WINDOWED), mesh=mesh)
  config = make_config(tmp_path)
  assert config_lib.adapted(config, model).config.windows == (24, 24)
  config.model.full_attention = True
  adapted = config_lib.adapted(config, model)
  assert adapted.config.windows == (0, 0)
  ids = jnp.arange(60).reshape(1, -1)
  difference = jnp.abs(adapted.logits(ids) - model.logits(ids))[0].max(-1)
  assert difference[:24].max() < 1e-4 < difference[40:].max()


def test_the_table_is_that_of_the_config(tmp_path, mesh):
  model = testing.tiny_model(mesh=mesh)
  config = make_config(
    tmp_path,
    model__rope__rope_type="ntk",
    model__rope__theta=5e5,
    model__rope__max_position=8192,
  )
  adapted = config_lib.adapted(config, model)
  assert adapted.config.describe_rope() == "default(theta 500000)"
  assert adapted.config.max_position == 8192
  ids = jnp.arange(60).reshape(1, -1)
  assert jnp.abs(adapted.logits(ids) - model.logits(ids)).max() > 1e-3


def test_rows_that_the_table_does_not_reach_are_refused(tmp_path, mesh):
  model = testing.tiny_model(testing.tiny_config(max_position=64), mesh=mesh)
  config = make_config(tmp_path)
  with pytest.raises(ValueError, match="seq_len=96 is more than the 64 pos"):
    config_lib.adapted(config, model)


def test_ce_plans_no_windows(tmp_path):
  config = make_config(tmp_path)
  found = config_lib.data_config(config, tmp_path)
  assert found.windows == Windows(32, 16)
  config.loss.weights = "none"
  found = config_lib.data_config(config, tmp_path)
  assert found.windows is None


def test_tokens_are_kept_in_the_workdir_unless_said_otherwise(tmp_path):
  config = make_config(tmp_path, data__cache_dir="")
  found = config_lib.data_config(config, "runs/a").cache_dir
  assert found == "runs/a/cache"
  config.data.cache_dir = "elsewhere"
  assert config_lib.data_config(config, "runs/a").cache_dir == "elsewhere"


def test_what_determines_the_numbers_is_compared_and_no_more(tmp_path, mesh):
  config, model = make_config(tmp_path), testing.tiny_model(mesh=mesh)

  def identity():
    return config_lib.identity(config, model, "1234", 0)

  def require_same(**free):
    free = dict(other_optimizer=False, other_steps=False) | free
    config_lib.require_same_run(
      before, identity(), where="W", remedy="Restore", **free
    )

  before = identity()
  for name in ("mesh.fsdp", "optimizer.accumulate", "checkpoint.every",
               "loss.chunk", "eval.log_every"):  # fmt: skip
    config.update_from_flattened_dict({name: 64})
  config.data.cache_dir = "elsewhere"
  config.model.remat = "none"
  assert identity() == before
  # As runs of before noted it.
  before = before | {"model.remat": True}
  require_same()
  config.update_from_flattened_dict(
    {"data.sources": ("b",), "data.text_column": "t", "model.path": "../m"}
  )
  require_same()
  config.optimizer.steps = 99
  require_same(other_steps=True)
  with pytest.raises(ValueError, match="optimizer.steps was 12 and is 99"):
    require_same()
  config.optimizer.b1 = 0.5
  require_same(other_optimizer=True)
  with pytest.raises(ValueError, match="optimizer.b1 was 0.9 and is 0.5. Res"):
    require_same(other_steps=True)
  config.model.rope.factor = 2.0
  config.loss.stride = 8
  with pytest.raises(
    ValueError, match="loss.stride was 16 .* model.rope.factor was 0.0 and is 2"
  ):
    require_same(other_optimizer=True)


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("optimizer.steps", 0, "at least 1"),
    ("checkpoint.every", 0, "at least 1"),
    ("data.key_tokens", "runs/keys", "weights='live' with key_tokens"),
    ("loss.weights", "stale", "not one of none, live, stored"),
    ("loss.stride", 64, "1 <= stride <= short_len"),
    ("data.seq_len", 0, "seq_len=0"),
    ("model.dtype", "bf16", "model.dtype='bf16' is not one of float32, bflo"),
    ("checkpoint.export_dtype", "int8", "export_dtype='int8' is not one of"),
    ("optimizer.warmup_steps", 12, "warmup_steps=12 of 12 .*lower it to 11"),
    ("data.seq_len", 47, "beyond a row of 48 ids"),
    ("model.remat", "all", "remat='all' is not one of auto, block, attention"),
  ],
)
def test_settings_that_no_run_can_have_are_refused(
  tmp_path, field, value, message
):
  config = make_config(tmp_path)
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ValueError, match=message):
    config_lib.check_config(config)
