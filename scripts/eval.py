r"""LongPPL and PPL of one or many models.

  python scripts/eval.py --model A --evaluator B --data my.txt
  python scripts/eval.py --keys runs/keys --data D --model A --model B
  python scripts/eval.py --keys slices:key_text/Meta-Llama-3.1-8B \
    --data govreport.parquet --model A
  python scripts/eval.py --keys runs/keys --data D --log_probs L --name A

The same command goes on where a run was stopped. The status is 2 where a
model failed; the others are evaluated all the same.
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.evaluation import files, run
from longctx_jax.evaluation import foreign as foreign_lib
from longctx_jax.report import comparison

_CONFIG = commands.define_config("longppl.py")
_FIELDS = commands.define_data_flags()
_WORKDIR = flags.DEFINE_string("workdir", "runs/eval", "holds all output")
_MODEL = flags.DEFINE_multi_string("model", None, "model under test")
_FILE = flags.DEFINE_string("models_file", "", "more models, one a line")
_EVALUATOR = flags.DEFINE_string("evaluator", None, "finds the key tokens")
_KEYS = flags.DEFINE_string("keys", None, "scored workdir, or slices:FOLDER")
_TOKENS = flags.DEFINE_bool("per_token", None, "write a row per target")
_LOG_PROBS = flags.DEFINE_string("log_probs", "", "Parquet from elsewhere")
_NAME = flags.DEFINE_string("name", "", "of the model of --log_probs")
_SHARED = flags.DEFINE_bool("intersection", False, "what keys and data share")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start anew")


def main():
  """Evaluates, prints the table, says what to do next."""
  foreign = []
  if _LOG_PROBS.value:
    foreign = [foreign_lib.open_log_probs(_LOG_PROBS.value, _NAME.value)]
  values = _FIELDS() | {
    "models": commands.read_models(_MODEL.value, _FILE.value),
    "evaluator": _EVALUATOR.value,
    "key_tokens": _KEYS.value,
    "eval.per_token": _TOKENS.value,
  }
  found = run.evaluate(
    commands.override(_CONFIG.value, values),
    workdir=_WORKDIR.value,
    overwrite=_OVERWRITE.value,
    foreign=foreign,
    named=commands.named_fields(_CONFIG, values),
    intersection=_SHARED.value,
  )
  print(comparison.run_table(found, files.load_results(_WORKDIR.value)))
  if any(result.has_numbers for result in found):
    print(f"next: python scripts/report.py html {_WORKDIR.value}")
  run.check_finished(found)


if __name__ == "__main__":
  commands.run(main, spread=True)
