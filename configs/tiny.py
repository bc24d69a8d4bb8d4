r"""A tiny model on any text: the whole program in a minute.

Purpose: smoke test of data, step, checkpoints, evaluation and export.
Command: python scripts/train.py --config configs/tiny.py \
    --model MODEL --data my.txt --workdir runs/tiny
Hardware: any; 1 CPU core.
Expected: a loss that falls, and W/export.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_BASE = pathlib.Path(__file__).with_name("llama2_7b.py")


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; there are no variants."""
  if variant:
    raise ValueError(f"variant {variant!r}: this config has none")
  config = runpy.run_path(str(_BASE))["get_config"]()
  config.data.update(
    sources=(), text_column="text", id_column="", seq_len=128, batch_size=8
  )
  config.model.path = ""
  config.model.rope.update(
    rope_type="", theta=0.0, original_max_position=0, max_position=0
  )
  config.loss.update(short_len=32, stride=16, chunk=128)
  config.optimizer.update(
    steps=12, accumulate=1, learning_rate=3e-3, warmup_steps=2, clip_norm=1.0
  )
  config.checkpoint.update(every=4, export_dtype="float32")
  return config
