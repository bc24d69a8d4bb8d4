import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.model import parameters, sharding
from longctx_jax.training import optimizer
from longctx_jax.training import state as state_lib

CONFIG = testing.tiny_config(vocab_size=264)
ADAM = optimizer.make_optimizer(
  optimizer.OptimizerConfig(
    learning_rate=1e-3, weight_decay=0.1, clip_norm=1.0
  ),
  100,
)


def make(sizes, dtype=jnp.float32):
  count = int(np.prod(list(sizes.values())))
  mesh = sharding.make_mesh(sizes, jax.devices()[:count])
  model = testing.tiny_model(CONFIG, mesh=mesh, dtype=dtype)
  return model, state_lib.create(model, ADAM)


def test_every_part_lies_where_its_parameter_does():
  model, state = make({"fsdp": 4, "tensor": 2})
  placed = state_lib.shardings(state, model.config, model.mesh)
  jax.tree.map(
    lambda leaf, where: (
      leaf.sharding.is_equivalent_to(where, leaf.ndim)
      or pytest.fail(f"{leaf.sharding} is not {where}")
    ),
    state,
    placed,
  )
  wanted = {
    name: leaf.sharding.spec
    for name, leaf in parameters.flatten(model.params).items()
  }
  assert len(set(map(str, wanted.values()))) > 3
  adam = next(part for part in state.opt_state if hasattr(part, "mu"))
  for tree in (state.params, adam.mu, adam.nu):
    for name, leaf in parameters.flatten(tree).items():
      assert leaf.sharding.spec == wanted[name], name
  assert state.step.sharding.is_fully_replicated


def test_shapes_are_enough_to_say_where_things_lie():
  model, state = make({"fsdp": 4, "tensor": 2})
  shapes = jax.eval_shape(lambda: state)
  a, b = (
    state_lib.shardings(one, model.config, model.mesh)
    for one in (state, shapes)
  )
  assert jax.tree.leaves(a) == jax.tree.leaves(b)


def test_masters_are_float32_copies():
  model, state = make({"data": 1}, jnp.bfloat16)
  for name, leaf in parameters.flatten(state.params).items():
    original = parameters.flatten(model.params)[name]
    assert leaf.dtype == jnp.float32 and original.dtype == jnp.bfloat16
    np.testing.assert_array_equal(leaf, original.astype(jnp.float32))
  # Donating the state leaves the model, in float32 too.
  model, state = make({"data": 1})
  moved = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(
    state
  )
  assert int(moved.step) == 1 and state.step.is_deleted()
  assert all(
    np.isfinite(leaf).all()
    for leaf in parameters.flatten(model.params).values()
  )


def test_the_start_does_not_depend_on_the_mesh():
  # cases H7
  _, one = make({"data": 1})
  _, eight = make({"data": 2, "fsdp": 2, "tensor": 2})
  jax.tree.map(np.testing.assert_array_equal, one, eight)


def test_a_mesh_that_does_not_divide_is_refused():
  model, state = make({"data": 1})
  mesh = sharding.make_mesh({"fsdp": 1, "tensor": 8})
  with pytest.raises(ValueError, match="num_kv_heads=2"):
    state_lib.shardings(state, model.config, mesh)
