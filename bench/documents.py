"""Scores eight documents, then one, whenever a line arrives.

On the cores that it is given, each a device with a copy of the weights, as
scripts/score.py does; a number that JAX_NUM_CPU_DEVICES sets stands. It says
how many there were and what the log-probs are, then wall seconds, a line of
JSON for each round; between rounds the process sleeps.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import sys
import time

import numpy as np
from absl import app, flags, logging

import longctx_jax as lc
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import device
from longctx_jax.scoring import scorer as scorer_lib

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DOCUMENT = flags.DEFINE_string("document", None, "Text file.", required=True)
_SHORT_LEN = flags.DEFINE_integer("short_len", None, "K.", required=True)
_STRIDE = flags.DEFINE_integer("stride", None, "d.", required=True)

_COUNT = 8
_WINDOWS = 3  # of a document, the first of which is its long pass


def cut(ids: np.ndarray, length: int) -> list[np.ndarray]:
  """Documents of one length, from all of a text; they overlap in a short one.

  Args:
    ids: of the text.
    length: of a document.
  """
  starts = np.linspace(0, len(ids) - length, _COUNT).astype(int)
  return [ids[start : start + length] for start in starts]


def main(argv):
  """Loads, compiles, says so, then measures a round per line of stdin."""
  del argv
  logging.set_verbosity(logging.ERROR)
  device.start("cpu", cache="", spread=True)
  model = lc.load_model(_MODEL.value)
  text = pathlib.Path(_DOCUMENT.value).read_bytes().decode()
  ids = model.tokenizer.encode(text, add_special_tokens=False).ids
  length = _SHORT_LEN.value + _WINDOWS * _STRIDE.value
  jobs = [
    scorer_lib.Job(number, part)
    for number, part in enumerate(cut(np.asarray(ids, np.int32), length))
  ]
  windows = Windows(_SHORT_LEN.value, _STRIDE.value)
  scorer = scorer_lib.make_scorer(model, windows)

  def score(jobs):
    return sorted(scorer.score(jobs), key=lambda scores: scores.job.key)

  def seconds(jobs):
    start = time.monotonic()
    score(jobs)
    return time.monotonic() - start

  found = score(jobs)
  digest = hashlib.sha256()
  for scores in found:
    digest.update(scores.long.tobytes() + scores.short.tobytes())
  score(jobs[:1])  # It may be compiled for fewer devices.
  said = {"devices": model.mesh.size, "log_probs": digest.hexdigest()}
  print(json.dumps(said), flush=True)
  for _ in sys.stdin:
    line = {"8 documents": seconds(jobs), "1 document": seconds(jobs[:1])}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
  app.run(main)
