"""Stacks are built in place, from pieces that are read once."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from longctx_jax.checkpoints import placement
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
