"""What a script runs on is said, and chosen by its user."""

import os
import re
import types

import jax
import pytest
from support.checks import refuses

from longctx_jax.runtime import device


def test_it_is_said_in_one_line():
  assert re.fullmatch(r"jax [\d.]+ \| cpu x\d+ \| \d+ GiB", device.describe())


@pytest.mark.parametrize(
  ("path", "extra"), [("/dev/accel0", "tpu"), ("/dev/nvidia0", "cuda")]
)
def test_a_device_that_jax_does_not_see_is_named_unless_one_was_chosen(
  monkeypatch, path, extra
):
  exists = os.path.exists
  monkeypatch.setattr(os.path, "exists", lambda p: p == path or exists(p))
  monkeypatch.setattr(jax, "config", types.SimpleNamespace(jax_platforms=None))
  device.require_seen("cpu")
  with refuses(rf"sees only the CPU: .*\.\[{extra}\]"):
    device.require_seen("")
