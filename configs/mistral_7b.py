r"""Mistral-7B-v0.1 to 32k tokens with LongCE, as the paper trains it.

Purpose: the second base model of the paper (Fang et al., ICLR 2025, table 4).
Command: python scripts/train.py --config configs/mistral_7b.py \
    --workdir runs/mistral_longce
Data: as configs/llama2_7b.py.
Variants: those of configs/llama2_7b.py: "ce", "eabf" (the default; the base
  stays, as in the paper's code), "pi", "arxiv", "k1024".
Hardware: as configs/llama2_7b.py.
Expected (paper): LongEval 10 to 16 points above CE after 200 steps.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_BASE = pathlib.Path(__file__).with_name("llama2_7b.py")


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; see the module docstring for the variants."""
  config = runpy.run_path(str(_BASE))["get_config"](variant)
  config.model.path = "mistralai/Mistral-7B-v0.1"
  config.model.rope.theta = 0.0
  # The sliding window of 4,096 would hide what is to be learned.
  config.model.full_attention = True
  config.optimizer.learning_rate = 1e-6
  return config
