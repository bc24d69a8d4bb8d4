r"""SmolLM2-135M: LongPPL, or fine-tuning, on a laptop.

Purpose: score or evaluate documents of 1,281 to 8,192 tokens on a CPU; as
  "train", fine-tune with LongCE on rows of 2,048 tokens.
Commands: python scripts/eval.py --config configs/smollm2_135m.py \
    --model A --model B --data my.txt
  python scripts/train.py --config configs/smollm2_135m.py:train \
    --data my.txt --workdir runs/smollm2
Variants: "train" (positions interpolated twice, to 16,384; ten steps).
Hardware: 2 CPU cores; about 150 scored tokens a second; a training step of one
  row takes about half a minute.
Expected: ten steps on a manual lower the loss on its rows.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_HERE = pathlib.Path(__file__)


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; see the module docstring for the variants."""
  match variant:
    case "":
      config = _load("longppl.py")
      config.evaluator = "HuggingFaceTB/SmolLM2-135M"
      config.longppl.short_len = 1024  # ids
      config.longppl.stride = 256  # ids
    case "train":
      config = _load("llama2_7b.py")
      config.data.update(
        sources=(), text_column="text", id_column="", seq_len=2048, batch_size=1
      )
      config.model.path = "HuggingFaceTB/SmolLM2-135M"
      config.model.rope.update(
        rope_type="linear",
        factor=2.0,
        theta=0.0,
        original_max_position=0,
        max_position=16384,
      )
      config.loss.update(short_len=512, stride=512)
      config.optimizer.update(
        steps=10, accumulate=1, learning_rate=1e-4, warmup_steps=2
      )
      config.optimizer.clip_norm = 1.0
      config.checkpoint.every = 5
    case _:
      raise ValueError(f"variant {variant!r} is not one of '', 'train'")
  return config


def _load(name):
  return runpy.run_path(str(_HERE.with_name(name)))["get_config"]()
