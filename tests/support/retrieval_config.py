"""The config of the retrieval experiment, some fields replaced."""

import runpy

from support.command_line import ROOT


def make_config(**fields):
  """configs/retrieval.py; fields by dotted name, "__" for the dot."""
  path = ROOT / "configs" / "retrieval.py"
  config = runpy.run_path(str(path))["get_config"]()
  config.lock()
  config.update_from_flattened_dict(
    {name.replace("__", "."): value for name, value in fields.items()}
  )
  return config
