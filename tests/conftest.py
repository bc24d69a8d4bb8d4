"""Eight CPU devices, strict JAX, no network."""

import os
import pathlib
import socket

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from support.checks import one_device_mesh  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")


def pytest_addoption(parser):
  parser.addoption(
    "--golden_dir",
    default="",
    help="folder with golden/ and key_text/: values of the reference",
  )


def pytest_configure(config):
  cache = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
  if cache:
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


@pytest.fixture
def golden_dir(request) -> pathlib.Path:
  folder = request.config.getoption("--golden_dir")
  if not folder:
    pytest.skip("needs --golden_dir")
  return pathlib.Path(folder)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def refuse(self, address):
    if self.family != socket.AF_UNIX:
      raise OSError(f"the tests need no network, but connect to {address}")

  monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def rng():
  return np.random.default_rng(0)


@pytest.fixture
def mesh():
  return one_device_mesh()
