r"""Fine-tunes a model with LongCE, or CE, to a longer context.

  python scripts/train.py --config configs/llama2_7b.py --workdir runs/llama2
  python scripts/train.py --config configs/smollm2_135m.py:train \
    --data my.txt --workdir runs/smollm2

The same command goes on where a run was stopped; with --restart_at STEP, from
that checkpoint with a new optimizer. Weights from an evaluator:
score the documents with scripts/score.py --chunk_len SEQ_LEN, and name its
workdir by --key_tokens.
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.runtime import processes
from longctx_jax.training import run

_CONFIG = commands.define_config("llama2_7b.py")
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "holds all output", required=True
)
_MODEL = flags.DEFINE_string("model", None, "folder, hub id or .gguf file")
_DATA = flags.DEFINE_multi_string("data", None, "file, folder, glob or URL")
_TEXT = flags.DEFINE_string("text_column", None, "column of the text")
_KEYS = flags.DEFINE_string("key_tokens", None, "scored workdir: weights")
_JOIN = commands.define_distributed()
_RESTART = flags.DEFINE_integer("restart_at", None, "step of a checkpoint")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start the run anew")


def main():
  """Trains, then says what to do next."""
  values = {
    "model.path": _MODEL.value,
    "data.sources": _DATA.value,
    "data.text_column": _TEXT.value,
    "data.key_tokens": _KEYS.value,
    "loss.weights": "stored" if _KEYS.value else None,
  }
  config = commands.override(_CONFIG.value, values)
  workdir = _WORKDIR.value
  run.train(
    config,
    workdir=workdir,
    overwrite=_OVERWRITE.value,
    restart_at=_RESTART.value,
  )
  print(
    f"next: python scripts/eval.py --model {workdir}/export --keys KEYS "
    "--data DOCUMENTS"
  )


if __name__ == "__main__":
  commands.run(main, before=lambda: processes.join(_JOIN.value))
