import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from longctx_jax.model import sharding


def test_minus_one_takes_the_rest():
  mesh = sharding.make_mesh({"fsdp": -1, "tensor": 2})
  assert dict(mesh.shape) == {"data": 1, "fsdp": 4, "tensor": 2, "context": 1}
  assert sharding.batch_ways(mesh) == 4


@pytest.mark.parametrize("sizes", [{"data": 3}, {"data": -1, "fsdp": 3}, {}])
def test_mesh_must_cover_the_devices(sizes):
  # cases E4
  with pytest.raises(ValueError, match="8 devices"):
    sharding.make_mesh(sizes)


def test_unknown_axis_is_named():
  with pytest.raises(ValueError, match="fsdpp"):
    sharding.make_mesh({"fsdpp": 8})


def test_rules_are_strict():
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  shapes = {"a.kernel": (8, 6), "a.bias": (6,)}
  kernel = (r"a\.kernel", P("fsdp", "tensor"))
  bias = (r"a\.bias", P(None))
  good = sharding.infer_shardings(shapes, [kernel, bias], mesh)
  assert good["a.kernel"].spec == P("fsdp", "tensor")
  with pytest.raises(ValueError, match=r"no sharding rule.*a\.bias"):
    sharding.infer_shardings(shapes, [kernel], mesh)
  with pytest.raises(ValueError, match="match no parameter.*lm_head"):
    sharding.infer_shardings(shapes, [kernel, bias, ("lm_head", P())], mesh)
  with pytest.raises(ValueError, match=r"size 4 does not divide dimension 6"):
    sharding.infer_shardings(shapes, [kernel, (r"a\.bias", P("fsdp"))], mesh)


def test_processes_that_share_rows_give_the_same():
  def mesh(**sizes):
    # Two devices each.
    devices = [types.SimpleNamespace(process_index=i // 2) for i in range(8)]
    shape = [sizes.get(axis, 1) for axis in sharding.AXES]
    return types.SimpleNamespace(
      devices=np.array(devices).reshape(shape),
      shape=dict(zip(sharding.AXES, shape, strict=True)),
    )

  def shares(mesh):
    return [sharding.row_share(mesh, process) for process in range(4)]

  assert shares(mesh(fsdp=8)) == [(i, 4) for i in range(4)]
  assert shares(mesh(data=2, context=4)) == [(0, 2), (0, 2), (1, 2), (1, 2)]
  assert shares(mesh(fsdp=2, tensor=4)) == [(0, 2), (0, 2), (1, 2), (1, 2)]
  assert shares(mesh(context=8)) == [(0, 1)] * 4
  scattered = mesh(fsdp=8)
  scattered.devices = scattered.devices[:, [0, 2, 1, 3, 4, 5, 6, 7]]
  with pytest.raises(ValueError, match=r"row shards \[0, 2\] of 8"):
    shares(scattered)


def test_rows_are_split_over_the_axes_that_divide_them():
  mesh = sharding.make_mesh({"data": 2, "fsdp": 2, "context": 2})
  assert sharding.batch_axes(16, mesh) == ("data", "fsdp", "context")
  assert sharding.batch_axes(4, mesh) == ("data", "fsdp")
  assert sharding.batch_axes(2, mesh) == ("data",)
  assert sharding.batch_axes(3, mesh) == ()
  assert (sharding.batch_ways(mesh), sharding.row_ways(mesh)) == (8, 4)


def test_constrain_follows_the_mesh_and_not_the_platform():
  x = jnp.zeros((8, 2))
  assert sharding.constrain(x, "fsdp", None) is x
  assert sharding.axis_size("fsdp") == sharding.batch_axis_size() == 1
  with jax.set_mesh(sharding.make_mesh({"fsdp": -1})):
    assert sharding.axis_size("fsdp") == sharding.batch_axis_size() == 8
    out = jax.jit(lambda x: sharding.constrain(x, "fsdp", None))(x)
    assert out.sharding.spec == P("fsdp")


def test_the_mesh_in_use_says_whether_it_is_of_cpus(mesh):
  assert sharding.on_cpu()
  with jax.set_mesh(mesh):
    assert sharding.on_cpu()
  kind = jax.sharding.AbstractDevice("TPU v5 lite", None, "tpu")
  chips = mesh.abstract_mesh.update(abstract_device=kind)
  with jax.sharding.use_abstract_mesh(chips):
    assert not sharding.on_cpu()


def test_copies_on_some_devices_are_the_arrays_that_are_there():
  mesh = sharding.make_mesh({"data": 4}, jax.devices()[:4])
  x = jax.device_put(np.arange(6.0), NamedSharding(mesh, P()))
  two = sharding.first_devices(mesh, 2)
  got = sharding.copies_on({"x": x}, two)["x"]
  assert got.sharding.mesh == two and two.shape["data"] == two.size == 2
  few, all_parts = (
    {part.device: part.data.unsafe_buffer_pointer() for part in parts}
    for parts in (got.addressable_shards, x.addressable_shards)
  )
  assert few.items() <= all_parts.items() and len(few) == 2
  np.testing.assert_array_equal(got, np.arange(6.0))


@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 2}, {"tensor": 4}])
def test_devices_with_a_part_of_the_weights_hold_no_copies(sizes):
  copies = sharding.make_mesh({"data": 4}, jax.devices()[:4])
  assert sharding.has_copies_on_cores(copies)
  parts = sharding.make_mesh(sizes, jax.devices()[:4])
  assert not sharding.has_copies_on_cores(parts)
