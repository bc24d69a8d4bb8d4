"""Measures LongPPL of one tree of the project whenever a line arrives.

The tree is the one on PYTHONPATH: only names that every version offers are
used. Each round prints one line of JSON; between rounds the process sleeps.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

from absl import app, flags, logging

import longctx_jax as lc

_MODEL = flags.DEFINE_string("model", None, "Model folder.", required=True)
_DOCUMENT = flags.DEFINE_string("document", None, "Text file.", required=True)
_SHORT_LEN = flags.DEFINE_integer("short_len", None, "K.", required=True)
_STRIDE = flags.DEFINE_integer("stride", None, "d.", required=True)
_N = flags.DEFINE_integer("n", None, "Ids of the document.", required=True)


def main(argv):
  """Loads, compiles, says so, then measures a round per line of stdin."""
  del argv
  logging.set_verbosity(logging.ERROR)
  text = pathlib.Path(_DOCUMENT.value).read_bytes().decode()
  model = lc.load_model(_MODEL.value)

  def find(**windows):
    # The other protocol would add a comparison with and without a BOS.
    return lc.find_key_tokens(text, model, protocol="strict", **windows)

  def plain():
    # Windows as long as the document: there is none but the first.
    find(short_len=_N.value, stride=_N.value)

  def longppl():
    keys = find(short_len=_SHORT_LEN.value, stride=_STRIDE.value)
    return lc.compute_longppl(text, model, keys).ppl

  plain()
  print(json.dumps({"tree": lc.__file__, "ppl": longppl()}), flush=True)
  for _ in sys.stdin:
    wall, start = time.monotonic(), time.process_time()
    ppl = longppl()
    both = time.process_time() - start
    wall = time.monotonic() - wall
    start = time.process_time()
    plain()
    alone = time.process_time() - start
    print(
      json.dumps(
        {
          "LongPPL": both,
          "LongPPL, wall": wall,
          "long pass": alone,
          "windows": both - alone,
          "ppl": ppl,
        }
      ),
      flush=True,
    )


if __name__ == "__main__":
  app.run(main)
