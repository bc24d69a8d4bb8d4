"""A training step against torch, live, on a tiny float32 model."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.command_line import ROOT
from support.train_batches import keep_gradient, make_batch

import longctx_jax as lc
from longctx_jax import testing
from longctx_jax.checkpoints import export
from longctx_jax.model.rope import RopeConfig
from longctx_jax.training import losses
from longctx_jax.training import state as state_lib
from longctx_jax.training import step as step_lib

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
sys.path += [str(ROOT / "tools"), str(ROOT / "bench")]
import reference_loss  # noqa: E402
import torch_reference  # noqa: E402

torch.set_num_threads(1)
K, D, N, GAMMA = 16, 8, 103, 5.0
CONFIGS = {
  "tied": testing.tiny_config(),
  "untied, PI": testing.tiny_config(
    tied=False, ropes=(RopeConfig("linear", 10000.0, factor=4.0),)
  ),
}


@pytest.mark.parametrize("weights", ["none", "live"])
@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_gradients_are_those_of_the_reference(
  name, weights, mesh, rng, tmp_path
):
  testing.RandomSource(CONFIGS[name], seed=1).save(tmp_path)
  theirs, _ = torch_reference.load_folder(tmp_path)
  ids = rng.integers(0, 256, N).astype(np.int32)
  tensor = torch.from_numpy(ids[None].astype(np.int64))
  if weights == "none":
    expected = reference_loss.cross_entropy(theirs, tensor)
  else:
    expected = reference_loss.longce(
      theirs, tensor, short_len=K, stride=D, gamma=GAMMA
    )
  expected.backward()

  ours = lc.load_model(tmp_path, mesh=mesh, dtype=jnp.float32)
  loss = losses.LossConfig(
    weights=weights, short_len=K, stride=D, gamma=GAMMA, chunk=32
  )
  step = step_lib.make_train_step(
    ours, keep_gradient(), loss, compute_dtype=jnp.float32
  )
  state = state_lib.create(ours, keep_gradient())
  placed = state_lib.shardings(state, ours.config, mesh)
  state, sums = jax.jit(step, out_shardings=(placed, None))(
    state, make_batch([[ids]], seq_len=N - 1, short_len=K, stride=D)
  )
  np.testing.assert_allclose(
    sums["weighted_nll"] / sums["targets"], expected.item(), rtol=1e-5
  )
  assert weights == "none" or sums["clipped"] > 3
  grads = export.ParameterSource(state.opt_state, ours.config)
  parameters = dict(theirs.named_parameters())
  assert set(parameters) == set(grads.shapes)
  for tensor_name, parameter in parameters.items():
    value = parameter.grad.numpy()
    np.testing.assert_allclose(
      grads.read(tensor_name),
      value,
      rtol=0,
      atol=1e-5 * np.abs(value).max(),
      err_msg=tensor_name,
    )
