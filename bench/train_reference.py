"""One training step of the paper's own code, in a process of its own.

Float32, one thread, transformers' default attention, gradient checkpointing
as in the reference, AdamW. Prints one line of JSON.
"""

from __future__ import annotations

import json
import pathlib
import resource
import time

import reference_loss
import torch
import transformers
from absl import app, flags

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DOCUMENT = flags.DEFINE_string("document", None, "Text file.", required=True)
_SHORT_LEN = flags.DEFINE_integer("short_len", None, "K.", required=True)
_STRIDE = flags.DEFINE_integer("stride", None, "d.", required=True)
_WEIGHTS = flags.DEFINE_enum("weights", None, ["none", "live"], "Which loss.")


def main(argv):
  """Loads, then takes one step."""
  del argv
  torch.set_num_threads(1)
  text = pathlib.Path(_DOCUMENT.value).read_bytes().decode()
  model = transformers.AutoModelForCausalLM.from_pretrained(
    _MODEL.value, dtype=torch.float32
  )
  tokenizer = transformers.AutoTokenizer.from_pretrained(_MODEL.value)
  ids = tokenizer(text, return_tensors="pt").input_ids
  model.gradient_checkpointing_enable()
  model.train()
  optimizer = torch.optim.AdamW(
    model.parameters(), lr=2e-5, betas=(0.9, 0.95), weight_decay=0.0
  )
  wall, start = time.monotonic(), time.process_time()
  if _WEIGHTS.value == "none":
    loss = reference_loss.cross_entropy(model, ids)
  else:
    loss = reference_loss.longce(
      model,
      ids,
      short_len=_SHORT_LEN.value,
      stride=_STRIDE.value,
      gamma=5.0,
    )
  loss.backward()
  optimizer.step()
  seconds = time.process_time() - start
  wall = time.monotonic() - wall
  squares = sum((p.grad**2).sum() for p in model.parameters())
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  print(
    json.dumps(
      {
        "pass_s": seconds,
        "wall_s": wall,
        "peak_rss_mib": peak / 1024,
        "loss": float(loss),
        "grad_norm": float(squares**0.5),
        "n_ids": ids.shape[1],
        "mkl": torch.backends.mkl.is_available(),
        "versions": (
          f"torch {torch.__version__}, transformers {transformers.__version__}"
        ),
      }
    )
  )


if __name__ == "__main__":
  app.run(main)
