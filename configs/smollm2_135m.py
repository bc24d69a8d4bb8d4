"""SmolLM2-135M as evaluator: LongPPL on a laptop.

Purpose: score or evaluate documents of 1,281 to 8,192 tokens on a CPU.
Command: python scripts/eval.py --config configs/smollm2_135m.py \
  --model A --model B --data my.txt
Hardware: 2 CPU cores; about 150 scored tokens a second.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_BASE = pathlib.Path(__file__).with_name("longppl.py")


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; there are no variants."""
  if variant:
    raise ValueError(f"variant {variant!r}: this config has none")
  config = runpy.run_path(str(_BASE))["get_config"]()
  config.evaluator = "HuggingFaceTB/SmolLM2-135M"
  config.longppl.short_len = 1024  # ids
  config.longppl.stride = 256  # ids
  return config
