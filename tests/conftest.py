"""Eight CPU devices, strict JAX, no network."""

import os
import pathlib
import socket

os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import support.typechecked  # noqa: E402, F401
from jaxtyping import install_import_hook  # noqa: E402

# Shapes and types of arguments and results are checked in every test; what is
# imported before this line would not be.
install_import_hook("longctx_jax", "support.typechecked.check")

import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402
from absl import logging  # noqa: E402
from support import tiny_runs  # noqa: E402
from support.checks import one_device_mesh  # noqa: E402

LEVEL = logging.get_absl_logger().level
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
  """No other machine: servers of a test are on this one."""
  connect = socket.socket.connect

  def guarded(self, address):
    own = self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1")
    if not own:
      raise OSError(f"the tests need no network, but connect to {address}")
    return connect(self, address)

  monkeypatch.setattr(socket.socket, "connect", guarded)


@pytest.fixture(autouse=True)
def level_of_the_log():
  """Scripts that run in this process set it; each test finds the same."""
  logging.get_absl_logger().setLevel(LEVEL)


@pytest.fixture
def rng():
  return np.random.default_rng(0)


@pytest.fixture
def warnings(monkeypatch):
  """What was logged as a warning, formatted."""
  said = []
  monkeypatch.setattr(
    logging, "warning", lambda text, *values: said.append(text % values)
  )
  return said


@pytest.fixture(scope="session")
def compiled():
  """Programs by model config and options: see `tiny_runs.share_passes`."""
  return {}


@pytest.fixture
def scorers(monkeypatch, compiled):
  """The scorers that the test makes; they share their programs with others."""
  return tiny_runs.share_passes(monkeypatch, compiled)


@pytest.fixture
def mesh():
  return one_device_mesh()
