"""Stacks are built in place, from pieces that are read once."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.checkpoints import placement, weights
from longctx_jax.model import sharding


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_slab_is_written_in_place(dtype):
  # A second stack would not fit beside the first.
  mesh = sharding.make_mesh({"fsdp": 8})
  spec = jax.sharding.PartitionSpec(None, "fsdp")
  where = jax.sharding.NamedSharding(mesh, spec)
  stack = jnp.zeros((4, 8), dtype, device=where)
  slab = jnp.ones((1, 8), dtype, device=where)
  after = placement._writer(where)(stack, slab, 2)
  assert stack.is_deleted() and after.sharding == where
  np.testing.assert_array_equal(after[:, 0], [0, 0, 1, 0])


def test_one_slab_at_a_time_is_not_yet_rounded(monkeypatch):
  """The law of the memory: int8 and two slabs, never a stack of floats."""
  config = testing.tiny_config(vocab_size=264, num_layers=8, windows=(0,) * 8)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  source = testing.RandomSource(config, seed=0)
  layer = 4 * config.embed_dim * config.mlp_dim
  monkeypatch.setattr(placement, "_SLAB_BYTES", layer)
  read, most = placement._read_slab, []
  before = {id(array) for array in jax.live_arrays()}

  def watch(*args):
    slab = read(*args)
    floats = [
      array.nbytes
      for array in jax.live_arrays()
      if id(array) not in before and array.ndim == 3
      and array.dtype == np.float32
    ]  # fmt: skip
    most.append(sum(floats))
    return slab

  monkeypatch.setattr(placement, "_read_slab", watch)
  weights.load_parameters(
    source, config, dtype=np.float32, mesh=mesh, rounded=True
  )
  assert len(most) >= 3 * config.num_layers
  assert 0 < max(most) <= 2 * layer
