"""The sweep over the output head: any blocks, on any mesh, in little memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.fused_losses import (
  KINDS,
  check_equal,
  fused,
  mean_and_gradients,
  plain,
  problem,
)

from longctx_jax.model import sharding
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.training import head_sweep, losses


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("block", [88, 100, 263])
def test_fused_takes_any_blocks_of_the_vocabulary(
  rng, monkeypatch, block, softcap
):
  # cases D5: blocks that divide the 264 entries, and that leave a remainder
  monkeypatch.setattr(head_sweep, "_VOCAB_BLOCK", block)
  given = problem(rng)
  check_equal(
    mean_and_gradients(
      functools.partial(fused, "longce", softcap=softcap, chunk=8), given
    ),
    mean_and_gradients(
      functools.partial(plain, "longce", softcap=softcap), given
    ),
    3e-6,
  )


@pytest.mark.parametrize("kind", KINDS)
def test_fused_equals_the_plain_composition_in_bfloat16(rng, kind):
  # cases D1, D5: over many chunks, sums are not those of bfloat16
  given = problem(rng, length=301, dtype="bfloat16")
  got = mean_and_gradients(
    functools.partial(fused, kind, softcap=0.0, chunk=4), given
  )
  wide = given | {
    name: given[name].astype(jnp.float32) for name in ("hidden", "head")
  }
  expected = mean_and_gradients(
    functools.partial(plain, kind, softcap=0.0), wide
  )
  assert {g.dtype for g in got[1]} == {jnp.dtype("bfloat16")}
  np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
  for a, b in zip(got[1], expected[1], strict=True):
    np.testing.assert_allclose(
      a.astype(jnp.float32), b, rtol=0, atol=6e-3 * np.abs(b).max()
    )


@pytest.mark.parametrize("block", [50, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_on_a_mesh_equals_fused_on_one_device(
  rng, monkeypatch, kind, block
):
  # cases I8: sharded or not
  monkeypatch.setattr(head_sweep, "_VOCAB_BLOCK", block)
  given = problem(rng, batch=4)
  function = functools.partial(fused, kind, softcap=5.0, chunk=5)
  expected = mean_and_gradients(function, given)
  mesh = sharding.make_mesh({"fsdp": 2, "data": 2, "tensor": 2})
  with jax.set_mesh(mesh):
    rows = sharding.batch_sharding(mesh)
    head = jax.sharding.NamedSharding(
      mesh, jax.sharding.PartitionSpec("tensor", "fsdp")
    )
    placed = {
      name: jax.device_put(value, head if name == "head" else rows)
      for name, value in given.items()
    }
    got = mean_and_gradients(function, placed)
  check_equal(got, expected, 3e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_fused_has_one_value_with_and_without_a_gradient(rng, kind):
  given = problem(rng)

  def of_fused(hidden, head):
    total, count, sums = fused(kind, given, hidden, head, softcap=0.0, chunk=8)
    return total, (count, sums)

  args = given["hidden"], given["head"]
  value = jax.jit(of_fused)(*args)
  again, _ = jax.jit(jax.value_and_grad(of_fused, has_aux=True))(*args)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), value, again
  )


def test_weight_zero_contributes_exactly_nothing(rng):
  # cases I8
  given = problem(rng)
  _, (d_hidden, _) = mean_and_gradients(
    functools.partial(fused, "weighted", softcap=0.0, chunk=8), given
  )
  none = ~np.asarray(given["loss_mask"]) | (np.asarray(given["weights"]) == 0)
  assert (np.asarray(d_hidden)[none] == 0).all()
  assert (np.abs(np.asarray(d_hidden)[~none]).sum(-1) > 0).all()


def test_32k_tokens_of_a_256k_vocabulary_fit_into_2_gib():
  # cases E1: all logits would be 33.5 GB
  length, dim, vocab = 32768, 16, 256_000
  args = (
    jax.ShapeDtypeStruct((1, length, dim), jnp.float32),
    jax.ShapeDtypeStruct((vocab, dim), jnp.float32),
    jax.ShapeDtypeStruct((1, length), jnp.int32),
    jax.ShapeDtypeStruct((1, length), jnp.float32),
    jax.ShapeDtypeStruct((1, length), jnp.bool),
  )

  def total(hidden, head, targets, short, mask):
    total, count, _ = losses.fused_longce(
      hidden,
      head,
      targets,
      short,
      mask,
      mask,
      gamma=5.0,
      thresholds=Thresholds(),
      chunk=256,
    )
    return total / count

  grads = jax.jit(jax.grad(total, (0, 1)))
  memory = grads.lower(*args).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 2 * 2**30
