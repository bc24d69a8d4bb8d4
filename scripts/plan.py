r"""Plans a config on TPUs that are not there: does it fit, how long is it.

  python scripts/plan.py --config configs/llama2_7b.py --topology v5p:2x2x2
  python scripts/plan.py --config configs/longppl.py --model Qwen/Qwen3-8B \
    --topology v5e:2x4 --program eval
  python scripts/plan.py --config configs/govreport_llama31_8b.py \
    --topology v5e:2x2 --analytic

Compiles the real programs, and reads no weights; needs libtpu (pip install
libtpu), and no TPU. --analytic, or no libtpu: the analytic model alone. The
status is 2 where it does not fit.
"""

from absl import flags
from ml_collections import config_flags

from longctx_jax import commands
from longctx_jax.experiments.plan import run, table, workloads
from longctx_jax.runtime import chips

_CONFIG = commands.define_config("")
_TOPOLOGY = flags.DEFINE_string(
  "topology", None, "CHIP:SHAPE, e.g. v5p:2x2x2", required=True
)
_PROGRAM = flags.DEFINE_enum(
  "program", "", ("", *workloads.KINDS), "default: what the config is made for"
)
_MODEL = flags.DEFINE_string("model", "", "folder, hub id or .gguf file")
_MFU = flags.DEFINE_float("mfu", 0.4, "share of the peak, for the time")
_ANALYTIC = flags.DEFINE_bool("analytic", False, "compile nothing")
_FORMAT = flags.DEFINE_enum(
  "format", "text", ("text", "markdown"), "of the table"
)


def main():
  """Prints the plan; ValueError where it does not fit."""
  place = chips.parse(_TOPOLOGY.value)
  workload = workloads.read(
    _CONFIG.value, kind=_PROGRAM.value, model=_MODEL.value
  )
  plan = run.make(workload, place, mfu=_MFU.value, compiles=not _ANALYTIC.value)
  if _FORMAT.value == "markdown":
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    print(f"{table.header()}\n{table.row(plan, file, _MODEL.value)}")
  else:
    print(table.text(plan))
  run.require_fit(plan)


if __name__ == "__main__":
  commands.run(main, needs=("config", "topology"), platform="cpu")
