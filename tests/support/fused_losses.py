"""The fused losses beside their plain composition, and what both read."""

import jax
import jax.numpy as jnp
import numpy as np

from longctx_jax.model import log_probs
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.training import losses


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
