import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax.model import log_probs, sharding
from longctx_jax.paper import contrast
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.training import head_sweep, losses


def test_masked_equals_filtered(rng):
  log_probs = -rng.exponential(size=20).astype(np.float32)
  weights = rng.uniform(0, 5, 20).astype(np.float32)
  mask = rng.random(20) < 0.5
  total, count = losses.weighted_nll(log_probs, weights, mask)
  np.testing.assert_allclose(
    total, -(weights * log_probs)[mask].sum(), rtol=1e-6
  )
  assert count == mask.sum()


def test_nan_outside_the_mask_reaches_neither_value_nor_gradient():
  log_probs = jnp.array([-1.0, jnp.nan])
  mask = jnp.array([True, False])

  def loss(log_probs):
    return losses.longce(log_probs, log_probs - 1, mask, mask, gamma=5.0)[0]

  value, grad = jax.value_and_grad(loss)(log_probs)
  np.testing.assert_allclose(value, np.e, rtol=1e-6)
  np.testing.assert_allclose(grad, [-np.e, 0.0], rtol=1e-6)


def test_all_masked_is_zero_with_finite_gradient():
  none = jnp.zeros(3, bool)
  values, grad = jax.value_and_grad(
    lambda x: losses.weighted_nll(x, jnp.ones(3), none)[0]
  )(jnp.full(3, -2.0))
  assert values == 0 and grad.tolist() == [0, 0, 0]


def test_longce_with_gamma_one_and_benefit_everywhere_is_ce(rng):
  long = -rng.exponential(size=(2, 9)).astype(np.float32)
  everywhere = jnp.ones((2, 9), bool)
  total, count = losses.longce(
    long, long - 0.3, everywhere, everywhere, gamma=1.0
  )
  np.testing.assert_allclose(total / count, -long.mean(), rtol=1e-6)


def test_longce_divides_by_targets_not_by_weights():
  long, short = jnp.array([-1.0, -1.0]), jnp.array([-9.0, -1.0])
  everywhere = jnp.ones(2, bool)
  total, count = losses.longce(long, short, everywhere, everywhere, gamma=5.0)
  assert (float(total), float(count)) == (6.0, 2.0)


def test_gradient_at_800_nats_is_gamma_over_n():
  # cases D8
  everywhere = jnp.ones(2, bool)

  def loss(long):
    total, count = losses.longce(
      long, jnp.array([-801.0, -1.0]), everywhere, everywhere, gamma=5.0
    )
    return total / count

  assert jax.grad(loss)(jnp.array([-1.0, -1.0])).tolist() == [-2.5, -0.5]


def problem(rng, *, batch=2, length=37, dim=12, vocab=264, dtype="float32"):
  """What the fused losses read; weights of 0, 0.3, 1 and 4.7 occur."""
  short_mask = rng.random((batch, length)) < 0.7
  short = -rng.exponential(4.0, (batch, length))
  return {
    "hidden": jnp.asarray(rng.normal(size=(batch, length, dim)), dtype),
    "head": jnp.asarray(rng.normal(size=(vocab, dim)), dtype),
    "targets": jnp.asarray(rng.integers(0, vocab, (batch, length))),
    "weights": jnp.asarray(
      rng.choice([0.0, 0.3, 1.0, 4.7], (batch, length)), jnp.float32
    ),
    "short": jnp.asarray(np.where(short_mask, short, np.nan), jnp.float32),
    "short_mask": jnp.asarray(short_mask),
    "loss_mask": jnp.asarray(rng.random((batch, length)) < 0.8),
  }


def plain_log_probs(hidden, head, targets, softcap):
  """Every logit at once."""
  logits = jnp.einsum(
    "btd,vd->btv", hidden, head, preferred_element_type=jnp.float32
  )
  logits = log_probs.soft_cap(logits, softcap)
  normal = jax.nn.log_softmax(logits)
  return jnp.take_along_axis(normal, targets[..., None], -1)[..., 0]


def plain(kind, given, hidden, head, *, softcap):
  log_p = plain_log_probs(hidden, head, given["targets"], softcap)
  if kind == "weighted":
    return losses.weighted_nll(log_p, given["weights"], given["loss_mask"])
  return losses.longce(
    log_p,
    given["short"],
    given["loss_mask"],
    given["short_mask"],
    gamma=5.0,
    floor=1.0 if kind == "floor" else 0.0,
  )


def fused(kind, given, hidden, head, *, softcap, chunk):
  options = dict(softcap=softcap, chunk=chunk)
  common = hidden, head, given["targets"]
  mask = given["loss_mask"].astype(jnp.float32)
  if kind == "weighted":
    return losses.fused_weighted_nll(*common, given["weights"], mask, **options)
  floor = {"floor": 1.0} if kind == "floor" else {}
  return losses.fused_longce(
    *common,
    given["short"],
    given["short_mask"],
    mask,
    gamma=5.0,
    thresholds=Thresholds(),
    **floor,
    **options,
  )


def mean_and_gradients(function, given):
  def mean(hidden, head):
    total, count, *_ = function(given, hidden, head)
    return total / count

  return jax.jit(jax.value_and_grad(mean, (0, 1)))(
    given["hidden"], given["head"]
  )


def check_equal(got, expected, tolerance):
  np.testing.assert_allclose(got[0], expected[0], rtol=tolerance)
  for a, b in zip(got[1], expected[1], strict=True):
    assert a.dtype == b.dtype and a.shape == b.shape
    a, b = (np.asarray(x, np.float32) for x in (a, b))
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max())


KINDS = ("weighted", "longce", "floor")


@pytest.mark.parametrize("chunk", [1, 3, 64, 37])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("kind", KINDS)
def test_fused_equals_the_plain_composition(rng, kind, softcap, chunk):
  # cases D5, I8
  given = problem(rng)
  check_equal(
    mean_and_gradients(
      functools.partial(fused, kind, softcap=softcap, chunk=chunk), given
    ),
    mean_and_gradients(functools.partial(plain, kind, softcap=softcap), given),
    3e-6,
  )


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


def test_the_sums_are_those_of_their_definitions(rng):
  given = problem(rng)
  likeliest = jnp.argmax(given["hidden"] @ given["head"].T, axis=-1)
  easy = jnp.asarray(rng.random(likeliest.shape) < 0.5)
  given["targets"] = jnp.where(easy, likeliest, given["targets"])
  _, count, sums = fused(
    "longce", given, given["hidden"], given["head"], softcap=0.0, chunk=8
  )
  log_p = np.asarray(
    plain_log_probs(given["hidden"], given["head"], given["targets"], 0.0),
    np.float64,
  )
  mask, short_mask = (np.asarray(given[n]) for n in ("loss_mask", "short_mask"))
  scored = mask & short_mask
  gain = np.where(scored, log_p - np.nan_to_num(np.asarray(given["short"])), 0)
  weights = np.where(scored, np.minimum(np.exp(gain), 5), 1.0) * mask
  key = scored & (gain > 2) & (log_p > -2)
  clipped = scored & (gain > np.log(5))
  assert key.sum() > 1 and clipped.sum() > key.sum()
  expected = {
    "targets": mask.sum(),
    "nll": -log_p[mask].sum(),
    "weighted_nll": -(weights * log_p).sum(),
    "weight": weights.sum(),
    "scored": scored.sum(),
    "clipped": clipped.sum(),
    "key": key.sum(),
    "key_nll": -log_p[key].sum(),
  }
  assert count == mask.sum() and sums.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(sums[name], value, rtol=1e-5, err_msg=name)


def test_stored_weights_at_gamma_count_as_key(rng):
  given = problem(rng)
  args = (given[n] for n in ("hidden", "head", "targets", "weights"))
  _, _, sums = losses.fused_weighted_nll(
    *args, given["loss_mask"], gamma=4.7, chunk=8
  )
  top = np.asarray(given["loss_mask"] & (given["weights"] > 4))
  assert sums["clipped"] == sums["key"] == top.sum() > 0
  log_p = plain_log_probs(given["hidden"], given["head"], given["targets"], 0.0)
  np.testing.assert_allclose(sums["key_nll"], -log_p[top].sum(), rtol=1e-5)
  assert sums["scored"] == 0


def test_weight_zero_contributes_exactly_nothing(rng):
  # cases I8
  given = problem(rng)
  _, (d_hidden, _) = mean_and_gradients(
    functools.partial(fused, "weighted", softcap=0.0, chunk=8), given
  )
  none = ~np.asarray(given["loss_mask"]) | (np.asarray(given["weights"]) == 0)
  assert (np.asarray(d_hidden)[none] == 0).all()
  assert (np.abs(np.asarray(d_hidden)[~none]).sum(-1) > 0).all()


def test_800_nats_give_gamma_and_finite_gradients(rng):
  # cases D8
  given = problem(rng)
  given["short"] = jnp.full_like(given["short"], -800.0)
  value, grads = mean_and_gradients(
    functools.partial(fused, "longce", softcap=0.0, chunk=8), given
  )
  log_p = plain_log_probs(given["hidden"], given["head"], given["targets"], 0.0)
  weights = jnp.where(given["short_mask"], 5.0, 1.0)
  total, count = losses.weighted_nll(log_p, weights, given["loss_mask"])
  np.testing.assert_allclose(value, total / count, rtol=1e-5)
  assert all(np.isfinite(g).all() for g in grads)


def test_weights_outside_their_range_are_refused(rng):
  given = problem(rng)
  with pytest.raises(ValueError, match="gamma=5.0, floor=6.0"):
    contrast.longce_weights(
      given["short"], given["short"], given["short_mask"], gamma=5.0, floor=6.0
    )


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
