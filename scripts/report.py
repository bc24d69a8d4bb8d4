r"""Tables, pictures and correlations of what scripts/eval.py wrote.

python scripts/report.py compare runs/a runs/b --format markdown --baseline A
python scripts/report.py html runs/eval --data my.txt
python scripts/report.py correlate runs/eval --benchmarks scores.csv
python scripts/report.py sweep runs/eval --alpha 1,2,4 --beta=-1,-2,-4
"""

from absl import flags

from longctx_jax import commands, fields
from longctx_jax.evaluation import files
from longctx_jax.report import comparison, correlation, run_page, tables
from longctx_jax.report import sweep_plot as sweep_lib

_FORMAT = flags.DEFINE_enum("format", "text", tables.FORMATS, "of tables")
_BASELINE = flags.DEFINE_string("baseline", "", "model to divide by")
_FORCE = flags.DEFINE_bool("force", False, "compare unlike runs all the same")
_BENCHMARKS = flags.DEFINE_string("benchmarks", "", "CSV: model, benchmarks")
_OUTPUT = flags.DEFINE_string("output", "", "default: in the workdir")
_KEYS = flags.DEFINE_multi_string("keys", [], "store; of a sweep also several")
_SWEPT = fields.define_thresholds()
_DATA = flags.DEFINE_multi_string("data", [], "texts of the heat maps")
_TEXT = flags.DEFINE_string("text_column", "", "column of the text")
_ID = flags.DEFINE_string("id_column", "", "column of document ids")
_DOCUMENTS = flags.DEFINE_integer("documents", 3, "heat maps at most")


def main(verb: str, workdir: str, *others: str):
  """Prints or writes what the verb asks for."""
  force, fmt = _FORCE.value, _FORMAT.value
  if verb == "sweep":
    options = dict(keys=_KEYS.value, output=_OUTPUT.value, force=force)
    print(sweep_lib.write(workdir, fmt=fmt, **options, **_SWEPT()))
    return
  results = files.load_all([workdir, *others])
  options = dict(baseline=_BASELINE.value, force=force)
  if verb == "compare":
    print(comparison.compare_table(results, fmt=fmt, **options))
  elif verb == "correlate":
    found = correlation.correlate(results, _BENCHMARKS.value, force=force)
    print(correlation.correlation_table(found, fmt=fmt))
  else:
    shown = dict(text_column=_TEXT.value, id_column=_ID.value, data=_DATA.value)
    shown |= dict(keys=(_KEYS.value or [""])[-1], documents=_DOCUMENTS.value)
    print(f"wrote {run_page.write(workdir, _OUTPUT.value, **shown, **options)}")


if __name__ == "__main__":
  verbs = ("compare", "html", "correlate", "sweep")
  options = dict(many=("compare", "correlate"), platform="cpu")
  commands.run(main, verbs=verbs, words=("a workdir",), **options)
