"""Checkpoints come back whole, on any mesh, and cost no memory that stays."""

import gc
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from support.checks import refuses

from longctx_jax import testing
from longctx_jax.model import sharding
from longctx_jax.training import program
from longctx_jax.training import state as state_lib
from longctx_jax.training.checkpoint import Checkpoints

RULE = optax.adam(1e-3)
CONFIG = testing.tiny_config(vocab_size=264)


def make_state(devices=8, **sizes):
  """A state with different values in all its arrays, and its description."""
  mesh = sharding.make_mesh(sizes or {"fsdp": -1}, jax.devices()[:devices])
  model = testing.tiny_model(CONFIG, mesh=mesh)
  state = state_lib.create(model, RULE)
  leaves, structure = jax.tree.flatten(state)
  state = structure.unflatten(leaf + i for i, leaf in enumerate(leaves))
  placed = state_lib.shardings(state, model.config, mesh)
  return jax.device_put(state, placed), program.describe_state(model, RULE)


def host(state):
  return [np.array(leaf) for leaf in jax.tree.leaves(state)]


def assert_equal(state, expected):
  for leaf, wanted in zip(jax.tree.leaves(state), expected, strict=True):
    np.testing.assert_array_equal(leaf, wanted)


def save(folder, state, *, keep=2, steps=(7,)):
  saved = Checkpoints(folder, keep=keep)
  for step in steps:
    saved.save(step, state, data={"step": step}, identity={"a.b": [1, "x"]})
  saved.close()


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
  """(folder, values) of a state that was saved on 4 x 2 devices."""
  folder = tmp_path_factory.mktemp("eight")
  state, _ = make_state(fsdp=4, tensor=2)
  save(folder, state)
  return folder, host(state)


@pytest.mark.parametrize(
  ("devices", "sizes"),
  [(1, {}), (2, {"tensor": 2}), (4, {"data": 2, "fsdp": 2}), (8, {"fsdp": 8})],
)
def test_eight_devices_write_what_any_number_reads(on_eight, devices, sizes):
  """Cases H1 and H2: every array equal, and where this mesh wants it."""
  folder, expected = on_eight
  _, like = make_state(devices, **sizes)
  saved = Checkpoints(folder, keep=2)
  state = saved.restore(7, like)
  saved.close()
  assert_equal(state, expected)
  for leaf, target in zip(
    jax.tree.leaves(state), jax.tree.leaves(like), strict=True
  ):
    assert leaf.sharding == target.sharding
  # The largest share of a device, of all bytes: small arrays are everywhere.
  shards = [
    shard.data.nbytes
    for leaf in jax.tree.leaves(state)
    for shard in leaf.addressable_shards
    if shard.device == jax.devices()[0]
  ]
  total = sum(leaf.nbytes for leaf in expected)
  split = sizes.get("data", 1)
  assert sum(shards) < 1.5 * total * split / devices


def test_what_stands_beside_the_arrays_comes_back(on_eight):
  saved = Checkpoints(on_eight[0], keep=2)
  meta = saved.read_meta(7)
  saved.close()
  assert meta["data"] == {"step": 7} and meta["settings"] == {"a.b": [1, "x"]}


def test_the_state_may_be_donated_while_it_is_written(tmp_path):
  state, like = make_state(1)
  saved = Checkpoints(tmp_path, keep=9)
  change = jax.jit(
    lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0
  )
  expected = {}
  for step in range(4):
    state = change(state)
    expected[step] = host(state)
    saved.save(step, state, data=None, identity={})
    state = change(change(state))
  saved.wait()
  for step, values in expected.items():
    assert_equal(saved.restore(step, like), values)
  saved.close()


def test_the_last_ones_stay(tmp_path):
  state, _ = make_state(1)
  save(tmp_path, state, keep=2, steps=(1, 2, 5, 9))
  saved = Checkpoints(tmp_path, keep=2)
  assert saved.steps == [5, 9]
  saved.close()
  with pytest.raises(ValueError, match="keep=0"):
    Checkpoints(tmp_path, keep=0)


def test_what_a_kill_left_half_does_not_count(tmp_path):
  state, _ = make_state(1)
  save(tmp_path, state)
  (tmp_path / "8.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
  saved = Checkpoints(tmp_path, keep=2)
  assert saved.steps == [7]
  saved.close()


def test_arrays_of_another_model_are_refused_by_name(on_eight):
  other = testing.tiny_config(vocab_size=264, mlp_dim=48)
  mesh = sharding.make_mesh({"fsdp": -1}, jax.devices()[:1])
  like = program.describe_state(testing.tiny_model(other, mesh=mesh), RULE)
  saved = Checkpoints(on_eight[0], keep=2)
  with pytest.raises(
    ValueError, match=r"mlp.up_proj.kernel.* was \[\[2, 40, 56"
  ):
    saved.restore(7, like)
  saved.close()


def test_twenty_saves_leave_no_memory_behind(tmp_path):
  """Case H9, with 8 MiB a save."""
  state = {"params": nnx.State({"a": jnp.zeros((2, 1 << 20))})}
  saved = Checkpoints(tmp_path, keep=1)
  sizes = []
  for step in range(20):
    saved.save(step, state, data=None, identity={})
    saved.wait()
    gc.collect()
    pages = pathlib.Path("/proc/self/statm").read_text().split()[1]
    sizes.append(int(pages))
  saved.close()
  assert sizes[-1] <= 1.1 * sizes[2]


def test_a_damaged_checkpoint_is_named(on_eight, monkeypatch):
  """Not damaged in earnest: threads of Orbax would go on after the error."""

  def fail(*args, **options):
    raise RuntimeError("OUT_OF_RANGE\n" + "pages of text" * 99)

  monkeypatch.setattr(ocp.PyTreeCheckpointer, "restore", fail)
  _, like = make_state(devices=1)
  saved = Checkpoints(on_eight[0], keep=2)
  with refuses("/7 is damaged, or not whole: take another.{,400}$"):
    saved.restore(7, like)
  saved.close()


def test_damaged_facts_of_a_checkpoint_are_named(on_eight, tmp_path):
  folder = tmp_path / "checkpoints"
  shutil.copytree(on_eight[0], folder)
  path = folder / "7" / "meta" / "metadata"
  path.write_text(path.read_text()[:50])
  saved = Checkpoints(folder, keep=2)
  with refuses("checkpoints/7 is damaged, or not whole: "):
    saved.read_meta(7)
  saved.close()
