r"""Fine-tunes a model with LongCE, or CE, to a longer context.

  python scripts/train.py --config configs/llama2_7b.py --workdir runs/llama2
  python scripts/train.py --config configs/smollm2_135m.py:train \
    --data my.txt --workdir runs/smollm2
  python scripts/train.py --config configs/tiny.py --model MODEL \
    --data my.txt --workdir runs/tiny --config.optimizer.steps=50

What is missing is said first. The same command goes on where a run was stopped;
with --restart_at STEP, from that checkpoint with a new optimizer. Weights from
an evaluator: scripts/score.py --chunk_len SEQ_LEN, and its workdir as --keys.
"""

import functools

import jax
from absl import flags

from longctx_jax import commands, fields
from longctx_jax.training import preflight, run

_CONFIG = commands.define_config("llama2_7b.py", fields.TRAINING)
_FIELDS = fields.define_training()
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "holds all output", required=True
)
_JOIN = commands.define_distributed()
_RESTART = flags.DEFINE_integer("restart_at", None, "step of a checkpoint")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start the run anew")


@functools.cache
def begin():
  """The config; looks for what is missing while the devices are found."""
  config = fields.override(_CONFIG.value, _FIELDS())
  return config, preflight.begin(config, workdir=_WORKDIR.value)


def main():
  """Trains, then says what to do next."""
  config, looking = begin()
  workdir, documents = _WORKDIR.value, looking.require(jax.devices())
  options = dict(overwrite=_OVERWRITE.value, restart_at=_RESTART.value)
  run.train(config, workdir=workdir, documents=documents, **options)
  command = f"scripts/eval.py --model {workdir}/export"
  print(f"next: python {command} --keys KEYS --data DOCUMENTS")


if __name__ == "__main__":
  commands.run(main, needs=("workdir",), before=begin)
