"""One LongPPL measurement of the paper's own code, in a process of its own.

longppl 0.3.0 unmodified, transformers' default attention (sdpa), one thread.
Prints one line of JSON: CPU seconds, peak memory, results.
"""

from __future__ import annotations

import json
import pathlib
import resource
import time

import torch
import transformers
from absl import app, flags
from longppl.longppl import compute_longppl

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DOCUMENT = flags.DEFINE_string("document", None, "Text file.", required=True)
_SHORT_LEN = flags.DEFINE_integer("short_len", None, "K.", required=True)
_STRIDE = flags.DEFINE_integer("stride", None, "d.", required=True)
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "Of weights and activations."
)


def main(argv):
  """Loads, then measures LongPPL."""
  del argv
  torch.set_num_threads(1)
  text = pathlib.Path(_DOCUMENT.value).read_bytes().decode()
  start = time.process_time()
  model = transformers.AutoModelForCausalLM.from_pretrained(
    _MODEL.value, dtype=getattr(torch, _DTYPE.value)
  ).eval()
  tokenizer = transformers.AutoTokenizer.from_pretrained(_MODEL.value)
  load = time.process_time() - start
  wall, start = time.monotonic(), time.process_time()
  result = compute_longppl(
    text,
    model,
    model,
    tokenizer,
    tokenizer,
    trunc_len=_SHORT_LEN.value,
    sliding_window=_STRIDE.value,
  )
  seconds = time.process_time() - start
  wall = time.monotonic() - wall
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  longppl = result["longppl"]
  print(
    json.dumps(
      {
        "load_s": load,
        "pass_s": seconds,
        "wall_s": wall,
        "peak_rss_mib": peak / 1024,
        "longppl": None if longppl is None else float(longppl),
        "ppl": float(result["ppl"]),
        "n_keys": result["n_key_token"] or 0,
        "n_ids": int(result["n_token"]),
        "mkl": torch.backends.mkl.is_available(),
        "versions": (
          f"torch {torch.__version__}, transformers "
          f"{transformers.__version__}, attention "
          f"{model.config._attn_implementation}"
        ),
      }
    )
  )


if __name__ == "__main__":
  app.run(main)
