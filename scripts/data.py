r"""Makes evaluation data, and checks published key tokens against it.

  python scripts/data.py govreport --output govreport.parquet
  python scripts/data.py check_slices --slices key_text/Meta-Llama-3.1-8B \
    --data govreport.parquet --tokenizer meta-llama/Llama-3.1-8B

The first needs a connection, or --source and --tokenizer; the second ends with
status 2 where the slices are not of these texts.
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.experiments import govreport, slice_check
from longctx_jax.text import corpus

_OUTPUT = flags.DEFINE_string("output", "govreport.parquet", "Parquet to write")
_SOURCE = flags.DEFINE_string("source", "", "tokenized set, not the hub's")
_TOKENIZER = flags.DEFINE_string(
  "tokenizer", "", "folder or hub id: Llama 2's, or the slices' evaluator's"
)
_MIN = flags.DEFINE_integer("min_ids", govreport.MIN_IDS, "ids of a report")
_COUNT = flags.DEFINE_integer("documents", govreport.DOCUMENTS, "reports")
_MAX = flags.DEFINE_integer("max_ids", govreport.MAX_IDS, "ids kept of each")
_SLICES = flags.DEFINE_string("slices", "", "folder of slice_<i>.txt")
_DATA = flags.DEFINE_multi_string("data", [], "texts: file, folder or glob")


def make_govreport():
  """Writes the paper's evaluation set."""
  table = govreport.make(
    _OUTPUT.value,
    source=_SOURCE.value,
    tokenizer=_TOKENIZER.value or govreport.TOKENIZER,
    min_ids=_MIN.value,
    documents=_COUNT.value,
    max_ids=_MAX.value,
  )
  print(f"{table.num_rows} documents in {_OUTPUT.value}")
  print(
    "next: python scripts/data.py check_slices --slices FOLDER --data "
    f"{_OUTPUT.value} --tokenizer EVALUATOR"
  )


def check_slices():
  """Prints how the slices fit; ValueError where they don't."""
  name, texts = _TOKENIZER.value, corpus.open_corpus(_DATA.value)
  tokenizer = govreport.load_tokenizer(name)[0] if name else None
  report = slice_check.check_slices(_SLICES.value, texts, tokenizer)
  print(slice_check.format_report(report))
  if report.problem:
    raise ValueError(report.problem)
  print(f"next: python scripts/eval.py --keys slices:{_SLICES.value} ...")


if __name__ == "__main__":
  verbs = {"govreport": make_govreport, "check_slices": check_slices}
  commands.run(lambda verb: verbs[verb](), verbs=verbs, platform="cpu")
