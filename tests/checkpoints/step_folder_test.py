import json

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from support import saved_models

from longctx_jax.checkpoints import step_folder, weights
from longctx_jax.model import parameters


@pytest.fixture
def step(tmp_path, mesh):
  """A checkpoint of step 100 of a run, and its config and parameters."""
  config, source = saved_models.family_source("llama")
  _, params = weights.load_parameters(
    source, config, dtype=np.float32, mesh=mesh
  )
  stored = {
    f"params.{name}.value": jnp.asarray(leaf[...])
    for name, leaf in parameters.flatten(params).items()
  }
  folder = tmp_path / "checkpoints" / "100"
  (folder / step_folder.META).mkdir(parents=True)
  with ocp.PyTreeCheckpointer() as checkpointer:
    checkpointer.save(
      folder / step_folder.STATE, stored | {"step": jnp.asarray(100)}
    )
  step_folder.write_facts(
    tmp_path / step_folder.FACTS, config, dtype="bfloat16", origin=None
  )
  return folder, config, params


def test_a_step_is_read_with_the_facts_beside_it(step, mesh):
  folder, config, params = step
  assert step_folder.is_step(folder)
  assert not step_folder.is_step(step_folder.facts_folder(folder))
  assert step_folder.read_config(folder) == config
  assert step_folder.export_dtype(folder) == "bfloat16"
  _, found = step_folder.load_parameters(folder, config, mesh=mesh)
  expected = parameters.flatten(params)
  for name, leaf in parameters.flatten(found).items():
    np.testing.assert_array_equal(
      leaf[...], expected[name][...], name, strict=True
    )


def test_facts_that_are_not_there_or_of_another_model_are_named(step, mesh):
  folder, config, _ = step
  path = step_folder.facts_folder(folder) / "config.json"
  fields = json.loads(path.read_text())
  path.write_text(json.dumps(fields | {"intermediate_size": 48}))
  other = step_folder.read_config(folder)
  with pytest.raises(ValueError, match=r"up_proj.*56\] and is \[3, 40, 48\]"):
    step_folder.load_parameters(folder, other, mesh=mesh)
  # What is there stays, as a run that goes on would have it.
  step_folder.write_facts(path.parent, config, dtype="float32", origin=None)
  assert step_folder.read_config(folder) == other
  path.unlink()
  with pytest.raises(FileNotFoundError, match="needs .*model beside it"):
    step_folder.facts_folder(folder)
