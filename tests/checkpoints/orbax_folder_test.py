import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from support import saved_models

from longctx_jax import testing
from longctx_jax.checkpoints import convert, loading
from longctx_jax.model import parameters, sharding


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_eight_devices_write_and_any_number_reads(dtype, tmp_path):
  """Cases H1."""
  saved_models.save(tmp_path / "in", "qwen3_moe")
  eight = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model = loading.load_model(tmp_path / "in", mesh=eight, dtype=dtype)
  convert.write_model(
    model, str(tmp_path / "orbax"), fmt="orbax", origin=tmp_path / "in"
  )
  for count in (1, 2, 4):
    mesh = sharding.make_mesh({"fsdp": count}, jax.devices()[:count])
    again = loading.load_model(tmp_path / "orbax", mesh=mesh, dtype=dtype)
    for (name, ours), theirs in zip(
      parameters.flatten(again.params).items(),
      parameters.flatten(model.params).values(),
      strict=True,
    ):
      np.testing.assert_array_equal(ours[...], theirs[...], name, strict=True)
      assert len(ours[...].sharding.device_set) == count


def test_parameters_of_another_model_are_refused(tmp_path, mesh):
  saved_models.save(tmp_path / "in", "llama")
  target = tmp_path / "orbax"
  convert.convert(str(tmp_path / "in"), str(target), fmt="orbax")
  text = (target / "config.json").read_text()
  assert '"intermediate_size": 56' in text
  (target / "config.json").write_text(text.replace(": 56", ": 48"))
  message = r"up_proj.kernel was \[3, 40, 56\] and is \[3, 40, 48\]"
  with pytest.raises(ValueError, match=message):
    loading.load_model(target, mesh=mesh)


def test_a_damaged_orbax_folder_is_named(tmp_path, mesh, monkeypatch):
  testing.RandomSource(testing.tiny_config(), seed=0).save(tmp_path / "in")
  target = tmp_path / "orbax"
  convert.convert(str(tmp_path / "in"), str(target), fmt="orbax")

  def fail(*args, **options):
    raise RuntimeError("OUT_OF_RANGE")

  monkeypatch.setattr(ocp.StandardCheckpointer, "restore", fail)
  with pytest.raises(ValueError, match="orbax/params is damaged.*: convert"):
    loading.load_model(target, mesh=mesh)
