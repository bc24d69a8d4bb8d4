"""Programs are compiled for a mesh, on shapes that need no arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from longctx_jax import testing
from longctx_jax.model import sharding
from longctx_jax.training import program
from longctx_jax.training import state as state_lib

RULE = optax.adam(1e-3)
CONFIG = testing.tiny_config(vocab_size=264)


def test_a_description_needs_no_arrays():
  mesh = sharding.make_mesh({"fsdp": -1})
  model = testing.tiny_model(CONFIG, mesh=mesh)
  state = state_lib.create(model, RULE)
  for leaf, like in zip(
    jax.tree.leaves(state),
    jax.tree.leaves(program.describe_state(model, RULE)),
    strict=True,
  ):
    assert (leaf.shape, leaf.dtype) == (like.shape, like.dtype)
    assert leaf.sharding == like.sharding


@pytest.mark.parametrize("sizes", [{"data": 1}, {"data": 2, "fsdp": 2}])
def test_rows_of_a_batch_are_split_over_the_mesh(sizes):
  count = int(np.prod(list(sizes.values())))
  mesh = sharding.make_mesh(sizes, jax.devices()[:count])
  ids = np.arange(24).reshape(8, 3)
  placed = program.place_batch({"inputs": ids}, mesh)["inputs"]
  np.testing.assert_array_equal(placed, ids)
  shapes = {shard.data.shape for shard in placed.addressable_shards}
  assert shapes == {(8 // count, 3)}


def test_positions_of_a_row_are_split_over_context():
  mesh = sharding.make_mesh({"data": 2, "context": 4})
  batch = {
    "inputs": np.arange(32).reshape(4, 8),
    "window_start": np.arange(12).reshape(4, 3),
    "lengths": np.arange(4),
  }
  placed = program.place_batch(batch, mesh)
  shapes = {"inputs": (2, 2), "window_start": (2, 3), "lengths": (2,)}
  for name, array in placed.items():
    np.testing.assert_array_equal(array, batch[name])
    assert {shard.data.shape for shard in array.addressable_shards} == {
      shapes[name]
    }


def test_a_program_knows_its_mesh_and_says_what_it_takes(caplog):
  mesh = sharding.make_mesh({"fsdp": 4}, jax.devices()[:4])

  def ways(x):
    return x + sharding.axis_size("fsdp")

  with caplog.at_level("INFO"):
    compiled = program.compile_on(
      mesh, ways, jax.ShapeDtypeStruct((2**20,), jnp.float32), note=" so"
    )
  # 4 MiB, and as much again for the result.
  assert "compiled ways so in" in caplog.text
  assert "(4194304, 0 and 8388608 bytes)" in caplog.text
  assert "0.00 GiB of arguments" in caplog.text
  assert (compiled(jnp.ones(2**20)) == 5).all()
