"""What many tests expect or need: an error by its text, a mesh of one."""

import contextlib

import jax
import pytest


@contextlib.contextmanager
def refuses(message, kind=ValueError):
  """Expects an error; `pytest -rP` shows its text."""
  with pytest.raises(kind, match=message) as caught:
    yield
  print(caught.value)


def one_device_mesh():
  from longctx_jax.model import sharding

  return sharding.make_mesh({"data": 1}, jax.devices()[:1])
