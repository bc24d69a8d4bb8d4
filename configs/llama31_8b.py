r"""Llama-3.1-8B at 32k tokens with LongCE: a model that has its long context.

Purpose: not in the paper; LongCE where no extension is needed.
Command: python scripts/train.py --config configs/llama31_8b.py \
    --workdir runs/llama31_longce
Data: as configs/llama2_7b.py.
Variants: "ce" (cross-entropy), "stored" (weights from a key-token store: at the
  price of "ce"; score it with --chunk_len 32768), "k1024".
Hardware: 8 TPU v5p chips, or 8 GPUs of 80 GB.
Expected: unknown. A model that retrieves already gains little (the project's
  docs/results.md shows it at toy size); watch eval_longppl.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_BASE = pathlib.Path(__file__).with_name("llama2_7b.py")


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; see the module docstring for the variants."""
  stored = variant == "stored"
  base = "" if stored else variant
  if base not in ("", "ce", "k1024"):
    raise ValueError(
      f"variant {variant!r} is not one of 'ce', 'stored', 'k1024'"
    )
  config = runpy.run_path(str(_BASE))["get_config"](base)
  config.model.path = "meta-llama/Llama-3.1-8B"
  config.model.rope.update(
    rope_type="", theta=0.0, original_max_position=0, max_position=0
  )
  if stored:
    config.loss.weights = "stored"
  return config
