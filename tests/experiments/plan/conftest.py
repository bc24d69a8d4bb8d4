"""Configs as the scripts read them."""

import runpy

import pytest
from support.command_line import ROOT


@pytest.fixture
def load_config():
  """(name of a shipped config, variant, changed fields) -> its config."""

  def load(name, variant="", **changed):
    path = ROOT / "configs" / f"{name}.py"
    config = runpy.run_path(str(path))["get_config"](variant)
    config.update_from_flattened_dict(changed)
    config.lock()
    return config

  return load
