"""What a config leaves open: the machine's, and what is stated wins."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.model import attention, defaults, parameters
from longctx_jax.runtime import device


@pytest.mark.parametrize(
  ("machine", "dtype", "windows", "remat"),
  [
    ("cpu", "float32", 1, "attention"),
    ("gpu", "bfloat16", 4, "block"),
    ("tpu", "bfloat16", 4, "block"),
  ],
)
def test_an_open_field_is_the_machines(
  monkeypatch, machine, dtype, windows, remat
):
  monkeypatch.setattr(jax, "default_backend", lambda: machine)
  assert defaults.dtype().name == dtype
  assert defaults.window_batch() == windows
  assert defaults.dtype("float16").name == "float16"
  assert defaults.window_batch(3) == 3
  assert defaults.window_batch(length=129) == windows
  assert defaults.window_batch(length=128) == 4
  assert defaults.remat("auto") == remat
  assert defaults.remat("none") == "none"


def test_the_mesh_of_cpus_is_copies_and_that_of_others_is_shards(monkeypatch):
  config = testing.tiny_config()
  mesh = defaults.mesh(config, "float32")
  assert (mesh.shape["data"], mesh.shape["fsdp"]) == (8, 1)
  shapes = parameters.parameter_shapes(config).values()
  asked = []
  monkeypatch.setattr(device, "copies", lambda size: asked.append(size) or 3)
  mesh = defaults.mesh(config, "bfloat16")
  assert (mesh.shape["data"], mesh.size) == (3, 3)
  assert asked == [2 * sum(np.prod(shape) for shape in shapes)]
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  mesh = defaults.mesh(config, "float32")
  assert (mesh.shape["data"], mesh.shape["fsdp"]) == (1, 8)


def test_processes_that_were_joined_share_the_weights(monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  assert defaults.mesh(testing.tiny_config(), "float32").shape["fsdp"] == 8


def test_float32_is_meant_to_be_float32():
  assert defaults.matmul_precision(jnp.float32) == "highest"
  assert defaults.matmul_precision(jnp.bfloat16) == "default"


def test_a_stated_backend_is_not_chosen_anew(monkeypatch):
  asked = []
  monkeypatch.setattr(
    attention, "choose_backend",
    lambda config, **facts: asked.append(facts) or "chosen",
  )  # fmt: skip
  config = testing.tiny_config()
  options = dict(dtype=jnp.bfloat16, packed=True)
  assert defaults.attention_backend("plain", config, **options) == "plain"
  assert not asked
  assert defaults.attention_backend("auto", config, **options) == "chosen"
  assert asked == [{"dtype": "bfloat16", "packed": True, "in_parts": False}]
