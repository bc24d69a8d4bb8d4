r"""Scores a corpus with an evaluator: key tokens and long-context scores.

  python scripts/score.py --evaluator Qwen/Qwen3-8B --data 'docs/*.parquet' \
    --text_column text --workdir runs/keys
  python scripts/score.py --evaluator E --data corpus/ --workdir runs/keys \
    --shard auto
  python scripts/score.py --evaluator E --data my.jsonl --workdir runs/try \
    --limit 20 --config.longppl.short_len=1024
  python scripts/score.py --evaluator NAME --data D --log_probs L.parquet \
    --workdir runs/keys

The same command goes on where a run was stopped. --shard auto shares the work
of a job array; --distributed runs a model that is too large for one host.
"""

import os

from absl import flags

from longctx_jax import commands, fields
from longctx_jax.evaluation import foreign_keys
from longctx_jax.runtime import shards
from longctx_jax.scoring import setup

_CONFIG = commands.define_config("longppl.py", fields.METRIC)
_FIELDS = fields.define_data()
_WORKDIR = flags.DEFINE_string("workdir", None, "all output", required=True)
_EVALUATOR = flags.DEFINE_string("evaluator", None, "finds the key tokens")
_COLUMNS = flags.DEFINE_list("columns", None, "columns that pass through")
_CHUNK = flags.DEFINE_integer("chunk_len", None, "cut as training cuts: T")
_CUTTER = flags.DEFINE_string("chunk_tokenizer", None, "whose ids T counts")
_DETAIL = flags.DEFINE_string("detail", None, "tokens, keys or scores")
_LOG_PROBS = flags.DEFINE_string("log_probs", "", "Parquet from elsewhere")
_SHARD = flags.DEFINE_string("shard", "0/1", "of the documents: i/n, auto")
_PRUNE = flags.DEFINE_bool("prune", False, "remove what --data lacks")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start the store anew")
_JOIN = commands.define_distributed()


def main():
  """Scores, then says what to do next."""
  values = {
    "evaluator": _EVALUATOR.value,
    "data.columns": _COLUMNS.value,
    "data.chunk_len": _CHUNK.value,
    "data.chunk_tokenizer": _CUTTER.value,
    "scoring.detail": _DETAIL.value,
  }
  config = fields.override(_CONFIG.value, _FIELDS() | values)
  shard = shards.parse(_SHARD.value, os.environ)
  options = dict(overwrite=_OVERWRITE.value, shard=shard, prune=_PRUNE.value)
  with setup.together(config, **options | {"shard": str(shard)}) as leads:
    if leads:
      _score(config, options)


def _score(config, options):
  workdir, options["log_probs"] = _WORKDIR.value, _LOG_PROBS.value
  store = foreign_keys.score_corpus(config, workdir=workdir, **options)
  print(f"{len(store):,} documents in {workdir}/key_tokens")
  same = fields.given(*fields.OF_DOCUMENTS)
  command = f"eval.py --keys {workdir} {same} --model MODEL --workdir runs/eval"
  if config.data.chunk_len:
    command = f"train.py --config CONFIG --keys {workdir} --workdir runs/train"
  print(f"next: python scripts/{command}")


if __name__ == "__main__":
  commands.run(main, spread=True, needs=("evaluator", "data", "workdir"))
