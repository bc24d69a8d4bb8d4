r"""Scores a corpus with an evaluator: key tokens and long-context scores.

  python scripts/score.py --model Qwen/Qwen3-8B --data 'docs/*.parquet' \
    --text_column text --workdir runs/keys

The same command goes on where a run was stopped.
"""

from absl import flags

from longctx_jax import commands, score

_CONFIG = commands.define_config("longppl.py")
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "holds all output", required=True
)
_MODEL = flags.DEFINE_string("model", None, "folder, hub id or .gguf file")
_DATA = flags.DEFINE_multi_string("data", None, "file, folder, glob or URL")
_TEXT = flags.DEFINE_string("text_column", None, "column of the text")
_IDS = flags.DEFINE_string("ids_column", None, "column of token ids")
_IDS_OF = flags.DEFINE_string("ids_tokenizer", None, "whose ids they are")
_ID = flags.DEFINE_string("id_column", None, "column of document ids")
_COLUMNS = flags.DEFINE_list("columns", None, "columns that pass through")
_ROWS = flags.DEFINE_string("row_range", None, "rows a:b, half-open")
_LENGTH = flags.DEFINE_integer("max_length", None, "ids read of a document")
_OVER = flags.DEFINE_string("over_length", None, "truncate_end, skip or error")
_DETAIL = flags.DEFINE_string("detail", None, "tokens, keys or scores")
_PROTOCOL = flags.DEFINE_string("protocol", None, "paper or strict")
_OVERWRITE = flags.DEFINE_bool("overwrite", False, "start the store anew")


def main():
  """Scores, then says what to do next."""
  config = commands.override(
    _CONFIG.value,
    {
      "evaluator": _MODEL.value,
      "data.sources": _DATA.value,
      "data.text_column": _TEXT.value,
      "data.ids_column": _IDS.value,
      "data.ids_tokenizer": _IDS_OF.value,
      "data.id_column": _ID.value,
      "data.columns": _COLUMNS.value,
      "data.row_range": commands.row_range(_ROWS.value),
      "data.max_length": _LENGTH.value,
      "data.over_length": _OVER.value,
      "scoring.detail": _DETAIL.value,
      "longppl.protocol": _PROTOCOL.value,
    },
  )
  store = score.score_corpus(
    config, workdir=_WORKDIR.value, overwrite=_OVERWRITE.value
  )
  print(f"{len(store):,} documents in {_WORKDIR.value}/key_tokens")
  print(
    f"next: python scripts/eval.py --keys {_WORKDIR.value} --data "
    f"{' --data '.join(config.data.sources)} --model MODEL --workdir runs/eval"
  )


if __name__ == "__main__":
  commands.run(main)
