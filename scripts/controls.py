r"""Controls of the metric on the demo's documents; see docs/results.md.

python scripts/controls.py --workdir runs/controls
python scripts/controls.py --workdir runs/int8 --weights int8
"""

import json

from absl import flags

from longctx_jax import commands
from longctx_jax.experiments import controls, demo, rounding
from longctx_jax.scoring import run

_CONFIG = commands.define_config("demo.py")
_WORKDIR = flags.DEFINE_string("workdir", "runs/controls", "holds all output")
_WEIGHTS = flags.DEFINE_string("weights", "", "int8: beside the stored ones")


def main():
  """Scores the demo's chapters three ways and prints the numbers as JSON.

  With --weights two ways: with those, and with the stored ones.
  """
  if _WEIGHTS.value:
    found = rounding.run_rounding(
      _CONFIG.value, workdir=_WORKDIR.value, weights=_WEIGHTS.value
    )
    print(json.dumps(found, indent=2))
    return
  config = demo.with_chapters(_CONFIG.value, _WORKDIR.value)
  model = demo.load_evaluator(config)
  store = run.score_corpus(config, workdir=_WORKDIR.value, evaluator=model)
  found = controls.run_controls(config, store, model, workdir=_WORKDIR.value)
  print(json.dumps(found, indent=2))


if __name__ == "__main__":
  commands.run(main)
