import functools

import pytest

from longctx_jax.model import attention
from longctx_jax.model.backends import splash


@pytest.fixture
def interpreted(monkeypatch):
  """Makes the backend `splash` run on CPU."""
  function = functools.partial(splash.splash_attention, interpret=True)
  monkeypatch.setitem(attention._FUNCTIONS, "splash", function)
