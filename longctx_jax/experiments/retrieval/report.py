"""The retrieval experiment as tables, two plots and a page."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np
from absl import logging

from longctx_jax.experiments.retrieval import plot as plot_lib

# The gap between LongCE and CE that every seed must show, in exact match.
LEAST_GAP = 0.15
TITLES = {
  "ce": "CE",
  "longce": "LongCE",
  "floor": "LongCE, weight_floor 1",
  "shuffled": "LongCE weights, shuffled",
  "oracle": "oracle weights",
  "hard": "stored hard weights",
}


_CLASSES = {
  "answer": "answers",
  "filler": "filler",
  "line": "LINE",
  "question_name": "names asked for",
  "definition_name": "new names",
  "definition_value": "new values",
  "end": "END",
}


_CSS = """
:root { --ink: #1d2433; --soft: #5b6577; --rule: #d9dee7; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa4b5;
  --rule: #343c4b; --paper: #14181f; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60em;
  background: var(--paper); margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { padding: .25em .7em; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }
small { color: var(--soft); }
div { overflow-x: auto; }
"""


def curves(
  records: Sequence[dict[str, Any]], value: str
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Arm -> (x, one x per row, mean over seeds; y [seeds, rows]).

  Args:
    records: of one starting point.
    value: "step" or "cpu_seconds": what x is; y is the exact match.
  """
  found = {}
  for arm in dict.fromkeys(record["arm"] for record in records):
    own = [record["rows"] for record in records if record["arm"] == arm]
    x = np.array([[row[value] for row in rows] for rows in own], float)
    y = np.array([[row["exact_match"] for row in rows] for rows in own])
    found[arm] = x.mean(0), y
  return found


def gaps(
  records: Sequence[dict[str, Any]], step: int, *, arm: str = "longce"
) -> dict[int, float]:
  """Seed -> exact match of an arm minus CE's at a step."""

  def at(arm: str) -> dict[int, float]:
    return {
      record["seed"]: row["exact_match"]
      for record in records
      for row in record["rows"]
      if record["arm"] == arm and row["step"] == step
    }

  ours, baseline = at(arm), at("ce")
  return {
    seed: ours[seed] - baseline[seed] for seed in sorted({*ours} & {*baseline})
  }


def write_report(
  workdir: pathlib.Path, records: Sequence[dict[str, Any]], headline_step: int
) -> None:
  """Writes report.html and the plots; logs the table and the verdict.

  Args:
    workdir: exists.
    records: start ("retrieves", "blind"), arm, seed, `rows` of step,
      cpu_seconds, exact_match, nll and nll_by_class, `flat_weights`,
      `mean_weight` of the first steps, `scoring_seconds`.
    headline_step: where LongCE and CE are compared.
  """
  able = [record for record in records if record["start"] == "retrieves"]
  blind = [record for record in records if record["start"] == "blind"]
  plots = {}
  for value, label in (
    ("step", "fine-tuning steps"),
    ("cpu_seconds", "CPU seconds of fine-tuning"),
  ):
    series = {TITLES[arm]: pair for arm, pair in curves(able, value).items()}
    plot = plot_lib.curve_plot(series, x_label=label, y_label="exact match")
    plots[value] = plot
    path = workdir / f"exact_match_by_{value}.svg"
    path.write_text(plot)
  verdict = _verdict(able, headline_step)
  for line in (*_text_table(able), verdict):
    logging.info("%s", line)
  page = [
    "<!doctype html><meta charset='utf-8'><title>LongCE and retrieval</title>",
    f"<style>{_CSS}</style><h1>Does LongCE learn retrieval faster?</h1>",
    "<p>A model of two layers that retrieves at 64 tokens, fine-tuned at 256, "
    "where its retrieval is broken. Only the weights of the targets differ: "
    f"documents and their order are the same.</p><p><b>{escape(verdict)}</b>",
    f"</p>{plots['step']}{plots['cpu_seconds']}",
    "<h2>Exact match</h2><p>Mean, and each seed.</p>",
    _match_table(able),
    "<h2>At equal CPU time</h2><p>Exact match by linear interpolation; the "
    "scoring of stored weights is not counted, but stands in the last column; "
    "nor is the finding of the weights that are shuffled.</p>",
    _time_table(able),
    "<h2>NLL by class of target, nats, at the last step</h2><p>Weights that "
    "are ratios may cost local targets what they give to the answers.</p>",
    _class_table(able),
  ]
  if blind:
    page += [
      "<h2>Where LongCE does not help</h2><p>The same fine-tuning from a model "
      "that never learned to retrieve. No context makes its answers likelier, "
      "so their weights stay at 1: LongCE learns no retrieval either, and "
      "costs its short pass.</p>",
      _match_table(blind),
      _class_table(blind),
    ]
  (workdir / "report.html").write_text("\n".join(page) + "\n")


def _verdict(records: Sequence[dict[str, Any]], step: int) -> str:
  found = gaps(records, step)
  if not found:
    return "CE and LongCE were not both run: no comparison."
  listed = ", ".join(f"{100 * gap:.0f}" for gap in found.values())
  right = min(found.values()) >= LEAST_GAP
  return (
    f"At step {step} LongCE is above CE by {listed} points of exact match "
    f"(seeds {', '.join(map(str, found))}): {'at' if right else 'NOT at'} "
    f"least {100 * LEAST_GAP:.0f} in every seed."
  )


def _text_table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
  steps = [row["step"] for row in records[0]["rows"]] if records else []
  yield f"{'exact match at step':<26}" + "".join(f"{s:>7}" for s in steps)
  for arm, (_, y) in curves(records, "step").items():
    yield f"{TITLES[arm]:<26}" + "".join(f"{m:7.3f}" for m in y.mean(0))


def _table(head: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
  def line(cells: Sequence[Any], tag: str) -> str:
    return "".join(f"<{tag}>{cell}</{tag}>" for cell in cells)

  body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
  return f"<div><table><tr>{line(head, 'th')}</tr>{body}</table></div>"


def _match_table(records: Sequence[dict[str, Any]]) -> str:
  steps = [row["step"] for row in records[0]["rows"]]
  rows = []
  for arm, (_, y) in curves(records, "step").items():
    cells = [
      f"{column.mean():.3f}<br><small>"
      f"{' '.join(f'{v:.3f}'[1:] if v < 1 else '1' for v in column)}</small>"
      for column in y.T
    ]
    rows.append([TITLES[arm], *cells])
  return _table(["step", *steps], rows)


def _time_table(records: Sequence[dict[str, Any]]) -> str:
  found = curves(records, "cpu_seconds")
  shortest = min(x[-1] for x, _ in found.values())
  times = shortest * np.array([0.125, 0.25, 0.5, 0.75, 1.0])
  rows = []
  for arm, (x, y) in found.items():
    scoring = np.mean(
      [record["scoring_seconds"] for record in records if record["arm"] == arm]
    )
    cells = [f"{np.interp(t, x, y.mean(0)):.3f}" for t in times]
    rows.append([TITLES[arm], *cells, f"{scoring:.1f}" if scoring else ""])
  head = ["CPU seconds", *(f"{t:.1f}" for t in times), "scoring"]
  return _table(head, rows)


def _class_table(records: Sequence[dict[str, Any]]) -> str:
  rows = []
  for arm in dict.fromkeys(record["arm"] for record in records):
    own = [record for record in records if record["arm"] == arm]
    last = [record["rows"][-1] for record in own]
    weight = np.mean([record["mean_weight"] for record in own])
    flat = sum(record["flat_weights"] for record in own)
    rows.append(
      [
        TITLES[arm],
        f"{np.mean([row['nll'] for row in last]):.3f}",
        *(
          f"{np.mean([row['nll_by_class'][name] for row in last]):.3f}"
          for name in _CLASSES
        ),
        f"{weight:.2f}",
        f"{flat} of {len(own)}" if flat else "",
      ]
    )
  head = ["", "all", *_CLASSES.values(), "mean weight, first 20 steps"]
  return _table([*head, "said to stay at 1"], rows)
