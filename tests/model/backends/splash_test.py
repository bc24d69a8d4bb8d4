"""The Splash kernel, interpreted: the plain attention, also over a mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from support.attention_problems import assert_equals_plain, problem

from longctx_jax import testing
from longctx_jax.model import attention, sharding
from longctx_jax.model.backends import splash


@pytest.mark.parametrize(
  "case",
  [
    (37, 37, 0, 0, 0, False, 0.0),
    (50, 129, 79, 30, 4, False, 20.0),
    (31, 200, 100, 40, 70, True, 0.0),
    (250, 1000, 750, 300, 4, False, 0.0),  # blocks of 256 and 512
  ],
)
def test_splash_equals_plain(rng, interpreted, case):
  assert_equals_plain(rng, "splash", *problem(rng, case))


@pytest.mark.parametrize(
  ("sizes", "spec"),
  [
    # "context" takes no part: 4 does not divide the batch of 2.
    ({"fsdp": 2, "tensor": 2, "context": 2}, ("fsdp", None, "tensor")),
    # 4 does not divide the 2 key heads, nor 8 the batch of 2.
    ({"fsdp": 2, "tensor": 4}, ("fsdp",)),
    ({"fsdp": 8}, ()),
  ],
)
def test_splash_is_split_over_the_mesh(rng, interpreted, sizes, spec):
  mesh = sharding.make_mesh(sizes)
  qkv, kwargs = problem(rng, (9, 20, 11, 5, 2, True, 0.0))
  with jax.set_mesh(mesh):
    assert_equals_plain(rng, "splash", qkv, kwargs)
    out = attention.attention(*qkv, **kwargs, backend="splash")
  expected = NamedSharding(mesh, PartitionSpec(*spec))
  assert out.sharding.is_equivalent_to(expected, out.ndim)


def test_a_model_with_splash_equals_itself(rng, interpreted, mesh):
  # Windows that differ by layer, and last rows only, inside the scan.
  config = testing.tiny_config(
    model_type="qwen2",
    qkv_bias=True,
    windows=(0, 5, 5),
    num_layers=3,
    sink_len=2,
  )
  model = testing.tiny_model(config, mesh=mesh)
  ids = jnp.asarray(rng.integers(0, 256, (2, 23)))

  @functools.partial(jax.jit, static_argnums=0)
  def hidden(backend):
    module = nnx.merge(model.graphdef, model.params)
    return module(ids, score_rows=(11, 17), backend=backend)

  np.testing.assert_allclose(hidden("splash"), hidden("plain"), atol=1e-5)


def test_long_rows_are_given_to_several_kernels(rng, monkeypatch):
  # cases E5
  pieces = functools.partial(
    splash.splash_attention, interpret=True, most_pairs=2
  )
  monkeypatch.setitem(attention._FUNCTIONS, "splash", pieces)
  case = (300, 500, 190, 90, 4, True, 0.0)
  plan = splash._Plan(((0,),), chunk=300, num_k=500, most_pairs=2)
  assert (plan.block_q, plan.block_k) == (128, 512)
  assert (plan.piece, plan.pieces) == (256, 2)
  assert_equals_plain(rng, "splash", *problem(rng, case))


def test_a_table_of_a_million_positions_is_cut_until_it_fits():
  # cases E5
  most = splash._MOST_PAIRS
  for starts, pieces in (((0,),), 4), (((0, 7), (1, 6), (2, 5), (3, 4)), 1):
    chunk = 2**20 // len(starts) // len(starts[0])
    plan = splash._Plan(starts, chunk, 2**20, most)
    assert plan.pieces == pieces
    assert plan.piece * len(starts[0]) // 1024 * 1024 <= most
    assert plan.piece * pieces >= chunk


@pytest.mark.slow
def test_the_self_check_passes_splash():
  function = functools.partial(splash.splash_attention, interpret=True)
  config = testing.tiny_config(windows=(0, 100), sink_len=9)
  assert not attention.find_fault(function, config, dtype="bfloat16")


@pytest.mark.parametrize(
  ("length", "head_dim", "window", "block"),
  [
    (4096, 128, 0, 512),
    (32768, 64, 0, 1024),
    (32768, 128, 0, 1024),
    (32768, 256, 0, 512),
    # What a block reaches beyond a window is computed in vain.
    (32768, 128, 4096, 512),
    # Padded by at most an eighth.
    (4 * 1024 + 1, 64, 0, 512),
    (600, 64, 0, 128),
    # The table of pairs of blocks has to fit.
    (131073, 256, 512, 1024),
  ],
)
def test_blocks_grow_where_they_cost_little(length, head_dim, window, block):
  assert splash.block_size(length, head_dim, window) == block
