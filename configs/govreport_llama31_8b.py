"""The paper's evaluation: 50 government reports, Llama-3.1-8B finds the keys.

Purpose: LongPPL of the paper's nine models (Fang et al., ICLR 2025).
Commands: python scripts/data.py govreport --output govreport.parquet
  python scripts/eval.py --config configs/govreport_llama31_8b.py \
    --data govreport.parquet --model mistralai/Mistral-7B-Instruct-v0.2
  With the key tokens that the reference project published, no evaluator runs:
  --keys slices:key_text/Meta-Llama-3.1-8B
Hardware: one accelerator of 80 GB, or four of 24 GB.
Expected (README of PKU-ML/LongPPL, July 2025; evaluator Llama-3.1-8B), LongPPL
  and PPL:
    Mixtral-8x7B 1.70 3.59 | FILM-7B 1.95 4.35 | Mistral-7B 2.11 4.14
    Qwen1.5-14B 2.19 5.07 | Qwen2-7B 2.16 4.82 | Phi-3-small 2.28 5.29
    CLEX-7B 2.74 4.04 | Yi-6B 2.65 4.96 | Yarn-7B 2.98 4.06
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
  config.evaluator = "meta-llama/Llama-3.1-8B"
  config.data.max_length = 32768  # ids
  return config
