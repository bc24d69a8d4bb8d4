r"""Makes evaluation data, checks published key tokens, merges stores.

  python scripts/data.py govreport --output govreport.parquet
  python scripts/data.py check_slices --slices key_text/Meta-Llama-3.1-8B \
    --data govreport.parquet --tokenizer meta-llama/Llama-3.1-8B
  python scripts/data.py merge runs/a runs/b --output runs/both
The first needs a connection, or --source and --tokenizer.
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.experiments import govreport, slice_check
from longctx_jax.key_tokens import merging
from longctx_jax.text import corpus

_OUTPUT = flags.DEFINE_string("output", "", "Parquet, or workdir, to write")
_SOURCE = flags.DEFINE_string("source", "", "tokenized set, not the hub's")
_TOKENIZER = flags.DEFINE_string("tokenizer", "", "Llama 2's; the evaluator's")
_MIN = flags.DEFINE_integer("min_ids", govreport.MIN_IDS, "ids of a report")
_COUNT = flags.DEFINE_integer("documents", govreport.DOCUMENTS, "reports")
_MAX = flags.DEFINE_integer("max_ids", govreport.MAX_IDS, "ids kept of each")
_SLICES = flags.DEFINE_string("slices", "", "folder of slice_<i>.txt")
_DATA = flags.DEFINE_multi_string("data", [], "texts: file, folder or glob")


def make_govreport():
  """Writes the paper's evaluation set."""
  output = _OUTPUT.value or "govreport.parquet"
  tokenizer = _TOKENIZER.value or govreport.TOKENIZER
  limits = dict(min_ids=_MIN.value, documents=_COUNT.value, max_ids=_MAX.value)
  table = govreport.make(
    output, source=_SOURCE.value, tokenizer=tokenizer, **limits
  )
  print(f"{table.num_rows} documents in {output}")
  command = f"check_slices --slices FOLDER --data {output} --tokenizer NAME"
  print(f"next: python scripts/data.py {command}")


def check_slices():
  """Prints how the slices fit; ValueError where they don't."""
  name, texts = _TOKENIZER.value, corpus.open_corpus(_DATA.value)
  tokenizer = govreport.load_tokenizer(name)[0] if name else None
  report = slice_check.check_slices(_SLICES.value, texts, tokenizer)
  print(slice_check.format_report(report))
  if report.problem:
    raise ValueError(report.problem)
  print(f"next: python scripts/eval.py --keys slices:{_SLICES.value} ...")


def merge(*folders):
  """Writes the documents of several stores into one."""
  store = merging.merge(folders, _OUTPUT.value)
  print(f"{len(store):,} documents in {_OUTPUT.value}/key_tokens")


if __name__ == "__main__":
  verbs = dict(govreport=make_govreport, check_slices=check_slices, merge=merge)
  options = dict(verbs=verbs, many=("merge",), platform="cpu")
  commands.run(lambda verb, *words: verbs[verb](*words), **options)
