import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.attention_problems import CASES, problem

from longctx_jax import testing
from longctx_jax.model import attention


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


def test_unknown_backend_is_named(rng):
  qkv, kwargs = problem(rng, CASES[0])
  with pytest.raises(ValueError, match="'flash' is not one of plain"):
    attention.attention(*qkv, **kwargs, backend="flash")
