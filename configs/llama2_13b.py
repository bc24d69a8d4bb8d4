r"""Llama-2-13B to 32k tokens with LongCE, as the paper trains it.

Purpose: the larger base model of the paper (Fang et al., ICLR 2025).
Command: python scripts/train.py --config configs/llama2_13b.py \
    --workdir runs/llama2_13b_longce
Data: as configs/llama2_7b.py.
Variants: those of configs/llama2_7b.py: "ce", "eabf" (the default), "pi",
  "arxiv", "k1024".
Hardware: 8 TPU v5p chips. Parameters, gradient and optimizer take 194 GiB, so
  that 8 GPUs of 80 GB hold them too, 24 GiB each, with 1.9 times the
  operations of 7B (an estimate; neither was run).
Expected: the direction of the paper's table for 7B; its numbers for 13B are
  not stated here.
"""

import pathlib
import runpy

from ml_collections import ConfigDict

_BASE = pathlib.Path(__file__).with_name("llama2_7b.py")


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; see the module docstring for the variants."""
  config = runpy.run_path(str(_BASE))["get_config"](variant)
  config.model.path = "meta-llama/Llama-2-13b-hf"
  return config
