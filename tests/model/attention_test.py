import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from longctx_jax import testing
from longctx_jax.model import attention, sharding
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import blockwise, cudnn, splash

# rows, keys, first row, window, sink, segments, cap
CASES = [
  (1, 1, 0, 0, 0, False, 0.0),
  (37, 37, 0, 0, 0, False, 0.0),
  (64, 64, 0, 0, 0, True, 0.0),
  (129, 129, 0, 30, 0, False, 0.0),
  (129, 129, 0, 30, 4, False, 0.0),
  (129, 129, 0, 30, 45, True, 0.0),
  (50, 129, 79, 0, 0, False, 0.0),
  (50, 129, 79, 30, 4, False, 20.0),
  (31, 200, 100, 40, 70, True, 0.0),
]


def problem(rng, case, head_dim=12, dtype=jnp.float32):
  rows, keys, first, window, sink, segments, cap = case

  def normal(length, heads):
    x = rng.normal(size=(2, length, heads, head_dim))
    return jnp.asarray(x, dtype)

  qkv = normal(rows, 6), normal(keys, 2), normal(keys, 2)
  ids = np.sort(rng.integers(0, 4, (2, keys)), axis=1) if segments else None
  spec = AttentionSpec(
    q_offset=first, window=window, sink_len=sink, softcap=cap, scale=0.3
  )
  ids = None if ids is None else jnp.asarray(ids)
  return qkv, dict(spec=spec, segment_ids=ids)


def definition(qkv, spec, segment_ids):
  """A loop over rows in float64."""
  q, k, v = (np.asarray(x, np.float64) for x in qkv)
  out = np.zeros_like(q)
  ids = None if segment_ids is None else np.asarray(segment_ids)
  for b, t, n in np.ndindex(q.shape[:3]):
    row = spec.q_offset + t
    seen = [
      s
      for s in range(row + 1)
      if (not spec.window or s > row - spec.window or s < spec.sink_len)
      and (ids is None or ids[b, s] == ids[b, row])
    ]
    head = n // (q.shape[2] // k.shape[2])
    scores = spec.scale * k[b, seen, head] @ q[b, t, n]
    if spec.softcap:
      scores = spec.softcap * np.tanh(scores / spec.softcap)
    probs = np.exp(scores - scores.max())
    out[b, t, n] = probs @ v[b, seen, head] / probs.sum()
  return out


@pytest.mark.parametrize("case", CASES)
def test_plain_attention_is_the_definition(rng, case):
  qkv, kwargs = problem(rng, case)
  got = attention.attention(*qkv, **kwargs, backend="plain")
  np.testing.assert_allclose(got, definition(qkv, **kwargs), atol=2e-6)


@pytest.fixture
def interpreted(monkeypatch):
  """Makes the backend `splash` run on CPU."""
  function = functools.partial(splash.splash_attention, interpret=True)
  monkeypatch.setitem(attention._FUNCTIONS, "splash", function)


def assert_equals_plain(rng, backend, qkv, kwargs):
  """In value and gradient."""
  weights = jnp.asarray(rng.normal(size=qkv[0].shape), jnp.float32)

  def run(backend):
    def loss(*qkv):
      out = attention.attention(*qkv, **kwargs, backend=backend)
      return (weights * out).sum(), out

    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*qkv)

  (_, got), got_grads = run(backend)
  (_, expected), expected_grads = run("plain")
  np.testing.assert_allclose(got, expected, atol=2e-6)
  for a, b in zip(got_grads, expected_grads, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("case", CASES)
def test_blockwise_equals_plain(rng, monkeypatch, case, block):
  monkeypatch.setattr(blockwise, "_BLOCK", block)
  assert_equals_plain(rng, "blockwise", *problem(rng, case))


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
  ("backend", "head_dim"),
  [("blockwise", n) for n in (16, 64, 80, 96, 192)]
  + [("splash", n) for n in (64, 80, 192)],
)
def test_head_sizes(rng, interpreted, backend, head_dim):
  # cases F9
  qkv, kwargs = problem(rng, (40, 40, 0, 0, 0, False, 0.0), head_dim)
  kwargs["spec"] = dataclasses.replace(kwargs["spec"], scale=head_dim**-0.5)
  got = attention.attention(*qkv, **kwargs, backend=backend)
  expected = attention.attention(*qkv, **kwargs, backend="plain")
  np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
  ("sizes", "spec"),
  [
    # "context" takes no part.
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


@pytest.mark.parametrize("sink_len", [0, 1, 4, 6])
def test_blocks_of_the_splash_mask_make_up_the_whole(sink_len):
  rows, keys = np.arange(8)[:, None], np.arange(16)[None]
  for window, q_offset in np.ndindex(13, 9):
    if sink_len and not window:
      continue
    seen = keys <= rows + q_offset
    if window:
      seen &= (keys > rows + q_offset - window) | (keys < sink_len)
    spec = AttentionSpec(1.0, q_offset, window, sink_len)
    sight = splash._Sight(8, 16, spec)
    blocks = [
      [sight[i : i + 4, j : j + 4] for j in range(0, 16, 4)] for i in (0, 4)
    ]
    np.testing.assert_array_equal(np.block(blocks), seen)


def test_the_splash_mask_shares_its_uniform_blocks():
  # cases E5: 2**40 pairs of positions
  spec = AttentionSpec(1.0, window=2**16, sink_len=2**10)
  sight = splash._Sight(2**20, 2**20, spec)
  first, last = slice(0, 512), slice(2**20 - 512, 2**20)
  sink, forgotten = slice(512, 1024), slice(1024, 1536)
  assert sight[last, first] is sight[last, sink]
  assert sight[last, forgotten] is sight[first, last]
  assert sight[last, sink].all() and not sight[last, forgotten].any()


@pytest.mark.parametrize(
  "case",
  [case for case in CASES if not any(case[4:])] + [(9, 99, 5, 7, 0, 0, 0)],
)
def test_cudnn_is_asked_for_plain_attention(rng, monkeypatch, case):
  # The kernel needs a GPU; XLA takes the same arguments.
  compute = jax.nn.dot_product_attention

  def stand_in(*args, implementation, **kwargs):
    assert implementation == "cudnn"
    assert all(x.shape[1] % 128 == 0 for x in args)
    return compute(*args, **kwargs, implementation="xla")

  monkeypatch.setattr(jax.nn, "dot_product_attention", stand_in)
  monkeypatch.setattr(cudnn, "DTYPES", ("float32",))
  assert_equals_plain(rng, "cudnn", *problem(rng, case))


@pytest.mark.parametrize(
  ("case", "dtype", "named"),
  [
    ((9, 9, 0, 4, 2, False, 0.0), jnp.float16, "sink_len"),
    ((9, 9, 0, 0, 0, True, 0.0), jnp.bfloat16, "segment_ids"),
    ((9, 9, 0, 0, 0, False, 5.0), jnp.bfloat16, "softcap"),
    ((9, 9, 0, 0, 0, False, 0.0), jnp.float32, "dtype float32"),
  ],
)
def test_cudnn_refuses_what_it_has_not(rng, case, dtype, named):
  qkv, kwargs = problem(rng, case, dtype=dtype)
  with pytest.raises(ValueError, match=f"not do {named}.*use 'blockwise'"):
    attention.attention(*qkv, **kwargs, backend="cudnn")


def changed(spec, segment_ids, *qkv, **changes):
  spec = dataclasses.replace(spec, **changes)
  return attention.plain_attention(*qkv, spec, segment_ids)


def wrong_offset(q, k, v, spec, ids):
  return changed(spec, ids, q, k, v, q_offset=0)


def sees_ahead(q, k, v, spec, ids):
  return changed(spec, ids, q, k, v, q_offset=spec.q_offset + 1)


def sees_padding(q, k, v, spec, ids):
  """The last key, which is padding, is visible to every row."""
  k, v = (jnp.concatenate([x[:, -1:], x], axis=1) for x in (k, v))
  return changed(spec, ids, q, k, v, q_offset=spec.q_offset + 1)


def wide_window(q, k, v, spec, ids):
  return changed(spec, ids, q, k, v, window=spec.window + (spec.window > 0))


def no_sink(q, k, v, spec, ids):
  return changed(spec, ids, q, k, v, sink_len=0)


def mixed_heads(q, k, v, spec, ids):
  return changed(spec, ids, q, k[:, :, ::-1], v[:, :, ::-1])


def nan_at_100(q, k, v, spec, ids):
  out = changed(spec, ids, q, k, v)
  return out * (jnp.nan if out.shape[1] == 100 else 1)


def nan_gradient(q, k, v, spec, ids):
  return changed(spec, ids, q, k, v + 0 * jnp.sqrt(0 * v))


def no_gradient(q, k, v, spec, ids):
  return changed(spec, ids, q, jax.lax.stop_gradient(k), v)


def crash(q, k, v, spec, ids):
  raise NotImplementedError("no such kernel\non this chip")


@pytest.mark.parametrize(
  ("function", "fault"),
  [
    (wrong_offset, "length 64, window 0: output is off by"),
    (sees_ahead, "length 64, window 0: output is off by"),
    (sees_padding, "length 64, window 0: output is off by"),
    (wide_window, "length 64, window 24: output is off by 0.[1-9]"),
    (no_sink, "length 64, window 24: output is off by"),
    (mixed_heads, "length 64, window 0: output is off by"),
    (nan_at_100, "length 100, window 0: output is off by nan"),
    (nan_gradient, "length 64, window 0: gradient of v is off by nan"),
    (no_gradient, "length 64, window 0: gradient of k is off by 1"),
    (crash, "length 64, window 0: NotImplementedError: no such kernel$"),
  ],
)
def test_the_self_check_names_the_fault(function, fault):
  # cases D6
  config = testing.tiny_config(windows=(0, 100), sink_len=9)
  found = attention.find_fault(function, config, dtype="bfloat16")
  assert re.match(fault, found), found


@pytest.mark.parametrize("lost", [{"softcap": 0.0}, {"scale": 8**-0.5}])
def test_the_self_check_has_the_cap_and_scale_of_the_model(lost):
  config = testing.tiny_config(attention_softcap=1.5, query_scale=0.1)

  def without(q, k, v, spec, ids):
    return changed(spec, ids, q, k, v, **lost)

  found = attention.find_fault(without, config, dtype="float32")
  assert "output is off by" in found


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_self_check_passes_blockwise(dtype):
  config = testing.tiny_config(windows=(100, 100), sink_len=9)
  assert not attention.find_fault(
    blockwise.blockwise_attention, config, dtype=dtype
  )


@pytest.mark.slow
def test_the_self_check_passes_splash():
  function = functools.partial(splash.splash_attention, interpret=True)
  config = testing.tiny_config(windows=(0, 100), sink_len=9)
  assert not attention.find_fault(function, config, dtype="bfloat16")


@pytest.mark.parametrize(
  ("platform", "dtype", "changes", "expected"),
  [
    ("cpu", "float32", {}, "blockwise"),
    ("tpu", "float32", {"sink_len": 2}, "splash"),
    ("gpu", "bfloat16", {}, "cudnn"),
    ("gpu", "float32", {}, "blockwise"),
    ("gpu", "float16", {"sink_len": 2}, "blockwise"),
    ("gpu", "bfloat16", {"attention_softcap": 9.0}, "blockwise"),
    ("gpu", "bfloat16", {"packed": True}, "blockwise"),
    ("tpu", "bfloat16", {"packed": True}, "splash"),
  ],
)
@pytest.mark.parametrize("broken", [False, True])
def test_the_choice_follows_platform_and_self_check(
  monkeypatch, platform, dtype, changes, expected, broken
):
  # cases D6: one line says why a backend is skipped.
  monkeypatch.setattr(attention, "_CHECKED_LENGTHS", (64,))
  warnings = []
  function = crash if broken else attention.plain_attention
  for name in ("splash", "cudnn"):
    monkeypatch.setitem(attention._FUNCTIONS, name, function)
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  monkeypatch.setattr(
    attention.logging,
    "warning",
    lambda line, *args: warnings.append(line % args),
  )
  changes = {"packed": False} | changes
  packed = changes.pop("packed")
  config = testing.tiny_config(windows=(7, 7), **changes)
  got = attention.choose_backend.__wrapped__(config, dtype=dtype, packed=packed)
  if broken and expected != "blockwise":
    assert got == "blockwise"
    assert len(warnings) == 1
    assert f"{expected} failed" in warnings[0] and "no such" in warnings[0]
  else:
    assert (got, warnings) == (expected, [])


@pytest.mark.parametrize("backend", ["blockwise", "splash"])
def test_bfloat16_stays_close_to_float32(rng, interpreted, backend):
  qkv, kwargs = problem(rng, (100, 100, 0, 0, 0, False, 0.0))
  low = [x.astype(jnp.bfloat16) for x in qkv]
  got = attention.attention(*low, **kwargs, backend=backend)
  assert got.dtype == jnp.bfloat16
  exact = attention.attention(*[x.astype(jnp.float32) for x in low], **kwargs)
  np.testing.assert_allclose(got.astype(jnp.float32), exact, atol=2e-2)


def test_keys_out_of_sight_never_matter(rng):
  # cases F8: window 4 at row 11 sees keys 8 to 11, and key 0 with a sink
  qkv, kwargs = problem(rng, (12, 12, 0, 4, 0, False, 0.0))
  other = (qkv[0], qkv[1].at[:, 0].add(9.0), qkv[2].at[:, 0].add(9.0))

  def last(qkv, **more):
    spec = dataclasses.replace(kwargs["spec"], **more)
    return attention.attention(*qkv, spec)[:, 11]

  np.testing.assert_array_equal(last(qkv), last(other))
  sunk = dict(sink_len=1)
  assert np.abs(last(qkv, **sunk) - last(other, **sunk)).max() > 0.1


def test_memory_grows_with_length_and_not_with_its_square():
  # cases E1: the scores of 4,096 positions and 6 heads alone are 400 MB
  q = jax.ShapeDtypeStruct((1, 4096, 6, 16), jnp.float32)
  k = jax.ShapeDtypeStruct((1, 4096, 2, 16), jnp.float32)

  def grads(q, k, v):
    return jax.grad(
      lambda *qkv: attention.attention(*qkv, AttentionSpec(0.25)).sum(),
      (0, 1, 2),
    )(q, k, v)

  memory = jax.jit(grads).lower(q, k, k).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 30 * 2**20


def test_unknown_backend_is_named(rng):
  qkv, kwargs = problem(rng, CASES[0])
  with pytest.raises(ValueError, match="'flash' is not one of plain"):
    attention.attention(*qkv, **kwargs, backend="flash")
