r"""Does LongCE learn retrieval faster than CE? From scratch, on a laptop.

  python scripts/retrieval.py --workdir runs/retrieval

The same command goes on where a run was stopped.
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.experiments.retrieval import experiment

_CONFIG = commands.define_config("retrieval.py")
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "holds all output", required=True
)
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start the run anew")


def main():
  """Runs all arms, then says where the report is."""
  experiment.run(
    _CONFIG.value, workdir=_WORKDIR.value, overwrite=_OVERWRITE.value
  )
  print(f"next: open {_WORKDIR.value}/report.html")


if __name__ == "__main__":
  commands.run(main, needs=("workdir",))
