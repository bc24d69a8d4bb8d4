"""Rows that the axis "context" splits equal rows on one device."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import family_cases
from support.attention_problems import problem
from support.checks import one_device_mesh, refuses

from longctx_jax import testing
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import attention, row_parts, sharding

# A program of a test runs for milliseconds: it should compile fast.
FAST = {"xla_backend_optimization_level": 0}
PACKED = (64, 64, 0, 0, 0, True, 0.0)
ALL_AT_ONCE = (136, 136, 0, 30, 4, True, 20.0)


def mesh_of(**sizes):
  count = int(np.prod(list(sizes.values())))
  return sharding.make_mesh(sizes, jax.devices()[:count])


def test_a_part_is_a_chunk_from_the_front_and_one_from_the_back():
  rows = jnp.asarray(np.arange(4)[:, None] * 100 + np.arange(16))
  with jax.set_mesh(mesh_of(data=2, context=4)):
    parts = row_parts.split(rows)
    # Rows 0 and 1 are of the first shard of the batch.
    np.testing.assert_array_equal(parts[0], [0, 1, 14, 15])
    np.testing.assert_array_equal(parts[1], [100, 101, 114, 115])
    np.testing.assert_array_equal(parts[2], [2, 3, 12, 13])
    np.testing.assert_array_equal(parts[-1], [306, 307, 308, 309])
    np.testing.assert_array_equal(row_parts.join(parts), rows)
    np.testing.assert_array_equal(row_parts.positions(16, 4), parts % 100)
    np.testing.assert_array_equal(
      row_parts.repeat(rows[:, 0]), parts[:, 0] // 100 * 100
    )
    np.testing.assert_array_equal(
      row_parts.chunk_starts(4, 4), parts[::2, ::2][:4]
    )
  assert row_parts.split(rows) is row_parts.join(rows) is rows
  assert row_parts.repeat(rows[:, 0]).shape == (4,)


def test_a_length_that_has_no_equal_parts_is_refused():
  # cases E4
  row_parts.require_length(32, 4, name="data.seq_len")
  row_parts.require_length(33, 1, name="data.seq_len")
  with refuses("'context' of size 4.*data.seq_len=33 .*: take 32 or 40$"):
    row_parts.require_length(33, 4, name="data.seq_len")
  assert row_parts.fitting_length(33, 4) == 40
  assert row_parts.fitting_length(33, 1) == 33


def attend(qkv, kwargs, weights, *, backend, in_parts):
  """(output, gradients of q, k and v)."""

  def loss(*qkv):
    options = dict(kwargs, backend=backend)
    if in_parts:
      qkv = map(row_parts.split, qkv)
      if options["segment_ids"] is not None:
        options["segment_ids"] = row_parts.split(options["segment_ids"])
    out = attention.attention(*qkv, **options, in_parts=in_parts)
    out = row_parts.join(out) if in_parts else out
    return (weights * out).sum(), out

  graded = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)
  graded = jax.jit(graded, compiler_options=FAST)
  (_, out), grads = graded(*qkv)
  return out, *grads


def largest_error(rng, case, mesh, backend):
  """Of attention in parts, against plain attention on whole rows."""
  qkv, kwargs = problem(rng, case)
  weights = jnp.asarray(rng.normal(size=qkv[0].shape), jnp.float32)
  expected = attend(qkv, kwargs, weights, backend="plain", in_parts=False)
  with jax.set_mesh(mesh):
    got = attend(qkv, kwargs, weights, backend=backend, in_parts=True)
  return max(np.abs(a - b).max() for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize(
  ("backend", "case", "sizes"),
  [
    ("plain", ALL_AT_ONCE, dict(context=4)),
    ("blockwise", PACKED, dict(context=2)),
    ("blockwise", ALL_AT_ONCE, dict(data=2, context=4)),
    ("blockwise", (520, 520, 0, 0, 0, False, 0.0), dict(context=2)),
    ("splash", ALL_AT_ONCE, dict(context=4)),
    ("splash", PACKED, dict(fsdp=2, tensor=2, context=2)),
  ],
)
def test_attention_in_parts_is_that_of_whole_rows(
  rng, interpreted, backend, case, sizes
):
  # cases H8
  assert largest_error(rng, case, mesh_of(**sizes), backend) < 1e-5


@pytest.mark.parametrize("backend", ["plain", "blockwise", "splash"])
def test_parts_whose_positions_start_anew_are_caught(
  rng, interpreted, backend, monkeypatch
):
  # cases H8
  starts = row_parts.chunk_starts
  monkeypatch.setattr(
    row_parts,
    "chunk_starts",
    lambda *sizes: starts(*sizes) - starts(*sizes).min(1, keepdims=True),
  )
  assert largest_error(rng, PACKED, mesh_of(context=2), backend) > 0.1


def test_cudnn_does_no_parts(rng):
  qkv, kwargs = problem(rng, (8, 8, 0, 0, 0, False, 0.0), dtype=jnp.bfloat16)
  with jax.set_mesh(mesh_of(context=2)), refuses("does not do in_parts: use"):
    attention.attention(*qkv, **kwargs, in_parts=True, backend="cudnn")


def hidden(config, mesh, ids, **arguments):
  """Hidden states of a tiny model, of whole rows."""
  model = testing.tiny_model(config, mesh=mesh)

  @functools.partial(jax.jit, compiler_options=FAST)
  def run(params, ids, arguments):
    arguments = {
      name: row_parts.repeat(x) if x.ndim == 1 else row_parts.split(x)
      for name, x in arguments.items()
    }
    module = nnx.merge(model.graphdef, params)
    out = module(row_parts.split(ids), in_parts=True, **arguments)
    return row_parts.join(out)

  with jax.set_mesh(mesh):
    return np.asarray(run(model.params, ids, arguments))


def packed_rows(rng):
  """Rows of 64 with three documents each, as a pipeline packs them."""
  ids = jnp.asarray(rng.integers(0, 256, (4, 64)))
  ends = np.array([0, 19, 41, 64])
  segments = np.repeat([1, 2, 3], np.diff(ends))
  positions = np.concatenate([np.arange(n) for n in np.diff(ends)])
  lengths = np.repeat(np.diff(ends), np.diff(ends))
  facts = dict(segment_ids=segments, positions=positions, lengths=lengths)
  return ids, {
    name: jnp.broadcast_to(jnp.asarray(x), ids.shape)
    for name, x in facts.items()
  }


@pytest.mark.parametrize(
  ("name", "sizes", "packed"),
  [
    ("llama", dict(context=2), False),
    ("llama, dynamic", dict(context=4), True),
    ("gemma2", dict(data=2, context=4), True),
    ("gemma3_text", dict(fsdp=2, tensor=2, context=2), False),
    ("mixtral", dict(data=2, fsdp=2, context=2), False),
    ("qwen3_moe", dict(context=4), True),
  ],
)
def test_a_model_in_parts_is_the_same(rng, name, sizes, packed):
  # cases H8, at the borders of shards too
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  ids, facts = packed_rows(rng)
  facts = facts if packed else {}
  expected = hidden(config, one_device_mesh(), ids, **facts)
  got = hidden(config, mesh_of(**sizes), ids, **facts)
  np.testing.assert_allclose(got, expected, atol=2e-5)


def test_rope_that_starts_anew_on_each_shard_is_caught(rng, monkeypatch):
  # cases H8
  ids, _ = packed_rows(rng)
  config = testing.tiny_config()
  expected = hidden(config, one_device_mesh(), ids)
  monkeypatch.setattr(
    row_parts,
    "positions",
    lambda parts, length: jnp.broadcast_to(jnp.arange(length), (parts, length)),
  )
  got = hidden(config, mesh_of(context=2), ids)
  # The first chunk of a row begins at 0 in any case.
  np.testing.assert_allclose(got[:, :16], expected[:, :16], atol=2e-5)
  assert np.abs(got[:, 16:] - expected[:, 16:]).max() > 0.1


def test_parts_have_no_score_rows():
  model = testing.tiny_model(mesh=one_device_mesh())
  with refuses("score_rows=.* of rows in parts"):
    nnx.merge(model.graphdef, model.params)(
      jnp.zeros((1, 8), int), in_parts=True, score_rows=(4, 8)
    )
