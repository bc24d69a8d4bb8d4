r"""Tables, pictures and correlations of what scripts/eval.py wrote.

python scripts/report.py compare runs/a runs/b --format markdown --baseline A
python scripts/report.py html runs/eval --data my.txt
python scripts/report.py correlate runs/eval --benchmarks scores.csv
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.evaluation import files
from longctx_jax.report import comparison, correlation, heatmap, page, tables

_FORMAT = flags.DEFINE_enum("format", "text", tables.FORMATS, "of tables")
_BASELINE = flags.DEFINE_string("baseline", "", "model to divide by")
_FORCE = flags.DEFINE_bool("force", False, "compare unlike runs all the same")
_BENCHMARKS = flags.DEFINE_string("benchmarks", "", "CSV: model, benchmarks")
_OUTPUT = flags.DEFINE_string("output", "", "default: <workdir>/report.html")
_KEYS = flags.DEFINE_string("keys", "", "store of the heat maps")
_DATA = flags.DEFINE_multi_string("data", [], "texts of the heat maps")
_TEXT = flags.DEFINE_string("text_column", "text", "column of the text")
_ID = flags.DEFINE_string("id_column", "", "column of document ids")
_DOCUMENTS = flags.DEFINE_integer("documents", 3, "heat maps at most")


def main(verb: str, workdir: str, *others: str):
  """Prints or writes what the verb asks for."""
  results = files.load_all([workdir, *others])
  options = {"baseline": _BASELINE.value, "force": _FORCE.value}
  if verb == "compare":
    print(comparison.compare_table(results, fmt=_FORMAT.value, **options))
  elif verb == "correlate":
    scores, force = _BENCHMARKS.value, _FORCE.value
    found = correlation.correlate(results, scores, force=force)
    print(correlation.correlation_table(found, fmt=_FORMAT.value))
  else:
    path = _OUTPUT.value or f"{workdir}/report.html"
    alpha, beta = page.thresholds(results)
    documents = heatmap.heatmap_documents(
      _KEYS.value or workdir,
      _DATA.value,
      _TEXT.value,
      _DOCUMENTS.value,
      id_column=_ID.value,
      thresholds=(alpha, beta),
      results=() if _FORCE.value else results,
    )
    page.render_report(
      results, documents, path, alpha=alpha, beta=beta, **options
    )
    print(f"wrote {path}")


if __name__ == "__main__":
  commands.run(
    main,
    verbs=("compare", "html", "correlate"),
    words=("a workdir",),
    many=("compare", "correlate"),
    platform="cpu",
  )
