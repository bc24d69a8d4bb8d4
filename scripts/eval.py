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

from longctx_jax import commands, fields
from longctx_jax.evaluation import files, run
from longctx_jax.evaluation import foreign as foreign_lib
from longctx_jax.report import comparison
from longctx_jax.scoring import setup

_CONFIG = commands.define_config("longppl.py", fields.METRIC)
_FIELDS = fields.define_data()
_EVALUATOR = flags.DEFINE_string("evaluator", None, "finds the key tokens")
_KEYS = flags.DEFINE_string("keys", None, "scored workdir, or slices:FOLDER")
_WORKDIR = flags.DEFINE_string("workdir", "runs/eval", "holds all output")
_MODEL = flags.DEFINE_multi_string("model", None, "model under test")
_FILE = flags.DEFINE_string("models_file", "", "more models, one a line")
_TOKENS = flags.DEFINE_bool("per_token", None, "write a row per target")
_SUMS = flags.DEFINE_bool("sums_only", None, "sum losses on the devices")
_LOG_PROBS = flags.DEFINE_string("log_probs", "", "Parquet from elsewhere")
_NAME = flags.DEFINE_string("name", "", "of the model of --log_probs")
_SHARED = flags.DEFINE_bool("intersection", False, "what keys and data share")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start anew")
_JOIN = commands.define_distributed()


def main():
  """Evaluates, prints the table, says what to do next."""
  values = _FIELDS() | {
    "models": fields.read_models(_MODEL.value, _FILE.value),
    "evaluator": _EVALUATOR.value,
    "key_tokens": _KEYS.value,
    "eval.per_token": _TOKENS.value,
    "eval.sums_only": _SUMS.value,
  }
  config = fields.override(_CONFIG.value, values)
  options = dict(overwrite=_OVERWRITE.value, intersection=_SHARED.value)
  with setup.together(config, **options) as leads:
    if leads:
      _evaluate(config, fields.named_fields(_CONFIG, values), options)


def _evaluate(config, named, options):
  foreign = []
  if _LOG_PROBS.value:
    foreign = [foreign_lib.open_log_probs(_LOG_PROBS.value, _NAME.value)]
  options = options | dict(workdir=_WORKDIR.value, foreign=foreign, named=named)
  found = run.evaluate(config, **options)
  print(comparison.run_table(found, files.load_results(_WORKDIR.value)))
  if any(result.has_numbers for result in found):
    print(f"next: python scripts/report.py html {_WORKDIR.value}")
  run.check_finished(found)


if __name__ == "__main__":
  commands.run(main, spread=True, needs=("model", "data"))
