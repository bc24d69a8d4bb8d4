r"""LongPPL and PPL of one or many models.

  python scripts/eval.py --model A --evaluator B --data my.txt
  python scripts/eval.py --keys runs/keys --data D --model A --model B
  python scripts/eval.py --keys slices:key_text/Meta-Llama-3.1-8B \
    --data govreport.parquet --model A
  python scripts/eval.py --keys runs/keys --data D --log_probs L --name A

The same command goes on where a run was stopped.
"""

from absl import flags

from longctx_jax import commands, evaluate, foreign_log_probs, report

_CONFIG = commands.define_config("longppl.py")
_WORKDIR = flags.DEFINE_string("workdir", "runs/eval", "holds all output")
_MODEL = flags.DEFINE_multi_string("model", None, "model under test")
_FILE = flags.DEFINE_string("models_file", "", "more models, one a line")
_EVALUATOR = flags.DEFINE_string("evaluator", None, "finds the key tokens")
_KEYS = flags.DEFINE_string("keys", None, "scored workdir, or slices:FOLDER")
_DATA = flags.DEFINE_multi_string("data", None, "file, folder, glob or URL")
_TEXT = flags.DEFINE_string("text_column", None, "column of the text")
_ID = flags.DEFINE_string("id_column", None, "column of document ids")
_ROWS = flags.DEFINE_string("row_range", None, "rows a:b, half-open")
_LENGTH = flags.DEFINE_integer("max_length", None, "ids read of a document")
_PROTOCOL = flags.DEFINE_string("protocol", None, "paper or strict")
_TOKENS = flags.DEFINE_bool("per_token", None, "write a row per target")
_LOG_PROBS = flags.DEFINE_string("log_probs", "", "Parquet from elsewhere")
_NAME = flags.DEFINE_string("name", "", "of the model of --log_probs")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start anew")


def main():
  """Evaluates, prints the table, says what to do next."""
  models = commands.read_models(_MODEL.value, _FILE.value)
  foreign = []
  if _LOG_PROBS.value:
    foreign = [foreign_log_probs.open_log_probs(_LOG_PROBS.value, _NAME.value)]
  config = commands.override(
    _CONFIG.value,
    {
      "models": models,
      "evaluator": _EVALUATOR.value,
      "key_tokens": _KEYS.value,
      "data.sources": _DATA.value,
      "data.text_column": _TEXT.value,
      "data.id_column": _ID.value,
      "data.row_range": commands.row_range(_ROWS.value),
      "data.max_length": _LENGTH.value,
      "longppl.protocol": _PROTOCOL.value,
      "eval.per_token": _TOKENS.value,
    },
  )
  evaluate.evaluate(
    config,
    workdir=_WORKDIR.value,
    overwrite=_OVERWRITE.value,
    foreign=foreign,
  )
  results = report.load_results(_WORKDIR.value)
  print(report.compare_table(results, fmt="text", force=True))
  print(f"next: python scripts/report.py html {_WORKDIR.value}")


if __name__ == "__main__":
  commands.run(main)
