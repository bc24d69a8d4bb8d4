r"""Makes the paper's data, checks published key tokens, merges stores.

  python scripts/data.py pg19
  python scripts/data.py govreport --output govreport.parquet
  python scripts/data.py check_slices --slices S --data D --tokenizer E
  python scripts/data.py merge runs/a runs/b --output runs/both
  python scripts/data.py select runs/keys --data D --top 20% \
    --by key_token_ratio --within_length_buckets --output kept.parquet
PG-19 goes where configs/llama2_7b.py finds it, by --source tfds or hub.
"""

from absl import flags

from longctx_jax import commands, fields
from longctx_jax.experiments import govreport, pg19, slice_check
from longctx_jax.key_tokens import merging, selection
from longctx_jax.text import corpus

_OUTPUT = flags.DEFINE_string("output", "", "Parquet, or workdir, to write")
_SOURCE = flags.DEFINE_string("source", "", "tokenized set; tfds or hub")
_TOKENIZER = flags.DEFINE_string("tokenizer", "", "Llama 2's; the evaluator's")
_LIMITS = fields.define_reports(
  govreport.MIN_IDS, govreport.DOCUMENTS, govreport.MAX_IDS
)
_SLICES = flags.DEFINE_string("slices", "", "folder of slice_<i>.txt")
_DATA = flags.DEFINE_multi_string("data", [], "texts: file, folder or glob")
_TOP = fields.define_selection()
_READ = fields.define_columns()


def main(verb, *words):
  """Does what the verb says, then says what to do next."""
  output, tokenizer, following = _OUTPUT.value, _TOKENIZER.value, ""
  match verb:
    case "pg19":
      print(f"{pg19.prepare(way=_SOURCE.value):,} books in tfds:pg19/train")
      following = "train.py --config configs/llama2_7b.py --workdir runs/llama2"
    case "govreport":
      output = output or "govreport.parquet"
      options = dict(source=_SOURCE.value, **_LIMITS())
      options |= dict(tokenizer=tokenizer or govreport.TOKENIZER)
      count = govreport.make(output, **options).num_rows
      print(f"{count} documents in {output}")
      following = f"data.py check_slices --slices S --data {output}"
    case "check_slices":
      texts = corpus.open_corpus(_DATA.value, **_READ())
      found = govreport.load_tokenizer(tokenizer)[0] if tokenizer else None
      report = slice_check.check_slices(_SLICES.value, texts, found)
      print(slice_check.format_report(report))
      if report.problem:
        raise ValueError(report.problem)
      following = f"eval.py --keys slices:{_SLICES.value} ..."
    case "merge":
      store = merging.merge(words, output)
      print(f"{len(store):,} documents in {output}/key_tokens")
    case "select":
      texts = corpus.open_corpus(_DATA.value, **_READ())
      print(selection.select(*words, texts, output, **_TOP()))
  if following:
    print(f"next: python scripts/{following}")


if __name__ == "__main__":
  verbs = ("pg19", "govreport", "check_slices", "merge", "select")
  commands.run(main, verbs=verbs, many=("merge", "select"), platform="cpu")
