"""One LongPPL measurement of this project, in a process of its own.

Prints one line of JSON: CPU seconds, peak memory, results.
"""

from __future__ import annotations

import json
import pathlib
import resource
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

import longctx_jax as lc
from longctx_jax import longppl
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import scorer as scorer_lib

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DOCUMENT = flags.DEFINE_string("document", None, "Text file.", required=True)
_SHORT_LEN = flags.DEFINE_integer("short_len", None, "K.", required=True)
_STRIDE = flags.DEFINE_integer("stride", None, "d.", required=True)
_DTYPE = flags.DEFINE_enum(
  "dtype", "float32", ["float32", "bfloat16"], "Of weights and activations."
)


class Timed:
  """A jitted function that counts the CPU seconds of its compilations."""

  def __init__(self, function: Any):
    self.function = function
    self.seconds = 0.0

  def lower(self, *args: Any) -> Any:
    """Lowers and compiles at once; `.compile()` of the result hands it out."""
    start = time.process_time()
    compiled = self.function.lower(*args).compile()
    self.seconds += time.process_time() - start
    return types.SimpleNamespace(compile=lambda: compiled)


def main(argv):
  """Loads, measures LongPPL, then a plain PPL pass."""
  del argv
  text = pathlib.Path(_DOCUMENT.value).read_bytes().decode()
  windows = dict(short_len=_SHORT_LEN.value, stride=_STRIDE.value)
  start = time.process_time()
  model = lc.load_model(_MODEL.value, dtype=jnp.dtype(_DTYPE.value))
  load = time.process_time() - start

  # The scorer that the public functions below will use.
  scorer = longppl._scorer(model, Windows(**windows))
  scorer.long_pass = Timed(scorer.long_pass)
  scorer.window_pass = Timed(scorer.window_pass)
  wall, start = time.monotonic(), time.process_time()
  keys = lc.find_key_tokens(text, model, **windows)
  result = lc.compute_longppl(text, model, keys)
  both = time.process_time() - start
  wall = time.monotonic() - wall
  compilation = scorer.long_pass.seconds + scorer.window_pass.seconds
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

  ids = model.tokenizer.encode(text, add_special_tokens=False).ids
  compiled = scorer.usage.compilations
  start = time.process_time()
  list(scorer.score_long([scorer_lib.Job("plain", ids)]))
  plain = time.process_time() - start
  if not compilation or scorer.usage.compilations > compiled:
    raise AssertionError("the passes measured are not the scorer's")
  print(
    json.dumps(
      {
        "load_s": load,
        "compile_s": compilation,
        "pass_s": both - compilation,
        "plain_s": plain,
        "wall_s": wall,
        "peak_rss_mib": peak / 1024,
        "longppl": result.longppl,
        "ppl": result.ppl,
        "n_keys": result.n_key_tokens,
        "n_ids": len(ids),
        "versions": f"jax {jax.__version__}",
      }
    )
  )


if __name__ == "__main__":
  app.run(main)
