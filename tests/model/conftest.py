import functools

import pytest
from jax._src.cudnn import fused_attention_stablehlo

from longctx_jax.model import attention
from longctx_jax.model.backends import splash


@pytest.fixture
def interpreted(monkeypatch):
  """Makes the backend `splash` run on CPU."""
  function = functools.partial(splash.splash_attention, interpret=True)
  monkeypatch.setitem(attention._FUNCTIONS, "splash", function)


@pytest.fixture
def pretended_cudnn(monkeypatch):
  """Lets cuDNN be asked for where there is none; nothing of it can run."""
  for name, value in (
    ("check_cudnn_version", lambda: 91000),
    ("check_compute_capability", lambda capability: True),
    ("is_cuda_compute_capability_equal", lambda capability: False),
  ):
    monkeypatch.setattr(fused_attention_stablehlo, name, value)
