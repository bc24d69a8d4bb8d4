r"""Shows that perplexity barely notices a lost long context; LongPPL does.

python scripts/demo.py --workdir runs/demo
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.experiments import demo

_CONFIG = commands.define_config("demo.py")
_WORKDIR = flags.DEFINE_string("workdir", "runs/demo", "holds all output")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start anew")


def main():
  """Prints the table and where the report is."""
  table = demo.run_demo(
    _CONFIG.value, workdir=_WORKDIR.value, overwrite=_OVERWRITE.value
  )
  print(f"\n{table}\n\nThe same in pictures: {_WORKDIR.value}/report.html")
  print("next: python scripts/eval.py --model A --evaluator B --data my.txt")


if __name__ == "__main__":
  commands.run(main)
