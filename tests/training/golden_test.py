"""A training step against stored values of the reference: --golden_dir."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.train_batches import keep_gradient, make_batch

import longctx_jax as lc
from longctx_jax.experiments import demo
from longctx_jax.model import parameters
from longctx_jax.paper import contrast
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.training import losses
from longctx_jax.training import state as state_lib
from longctx_jax.training import step as step_lib

pytestmark = pytest.mark.golden
K, D, GAMMA = 512, 128, 5.0
# Hugging Face tensor -> our parameter and layer.
SAMPLES = {
  "model.norm.weight": ("norm.scale", ...),
  "model.layers.0.input_layernorm.weight": ("layers.attention_norm.scale", 0),
  "model.layers.15.post_attention_layernorm.weight": (
    "layers.mlp_norm.scale",
    15,
  ),
  "model.layers.29.self_attn.k_proj.weight": (
    "layers.attention.k_proj.kernel",
    29,
  ),
}


@pytest.fixture
def model(mesh):
  return lc.load_model(demo.embedded_model(), mesh=mesh, dtype=jnp.float32)


@pytest.mark.parametrize(
  ("name", "weights"), [("train_ce", "none"), ("train_longce", "live")]
)
def test_a_step_has_the_references_loss_and_gradient(
  golden_dir, model, name, weights
):
  path = golden_dir / "golden" / f"{name}.n2048.json"
  facts = json.loads(path.read_text())
  stored = dict(np.load(path.with_suffix(".npz")))
  loss = losses.LossConfig(
    weights=weights, short_len=K, stride=D, gamma=GAMMA, chunk=128
  )
  step = step_lib.make_train_step(
    model, keep_gradient(), loss, compute_dtype=jnp.float32
  )
  state = state_lib.create(model, keep_gradient())
  batch = make_batch(
    [[stored["input_ids"]]], seq_len=2047, short_len=K, stride=D
  )
  state, sums = jax.jit(step)(state, batch)
  np.testing.assert_allclose(
    sums["weighted_nll"] / sums["targets"], facts["loss"], rtol=1e-4
  )
  np.testing.assert_allclose(sums["grad_norm"], facts["grad_norm"], rtol=1e-4)
  grads = parameters.flatten(state.opt_state)
  for tensor, (parameter, layer) in SAMPLES.items():
    expected = stored[f"grad.{tensor}"].T
    np.testing.assert_allclose(
      grads[parameter][layer],
      expected,
      rtol=0,
      atol=2e-3 * np.abs(expected).max(),
    )
  if weights == "live":
    check_weights(model, loss, batch, stored)
    np.testing.assert_allclose(
      sums["weight"], stored["weight"].sum(), rtol=1e-5
    )


def check_weights(model, loss, batch, stored):
  short, mask = jax.jit(
    lambda params: step_lib.short_pass(
      params, batch, model=model, loss=loss, backend="blockwise"
    )
  )(model.params)
  ids = stored["input_ids"].astype(np.int32)
  scorer = scorer_lib.make_scorer(model, Windows(K, D))
  (scores,) = scorer.score_long([scorer_lib.Job("document", ids)])
  np.testing.assert_allclose(-scores.long, stored["nll"], rtol=0, atol=5e-4)
  weights = contrast.longce_weights(scores.long[None], short, mask, gamma=GAMMA)
  np.testing.assert_allclose(weights[0], stored["weight"], rtol=0, atol=5e-4)
