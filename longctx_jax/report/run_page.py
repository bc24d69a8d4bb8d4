"""The page of a workdir: what it shows is found there, and beside it."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging

from longctx_jax.evaluation import files, log_probs
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.report import difference, heatmap, page, positions
from longctx_jax.report import sweep as sweep_lib
from longctx_jax.report.positions import Curve

# What the sliders of a page offer, nats, beside the thresholds of the run.
_ALPHAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
_BETAS = (-4.0, -3.0, -2.5, -2.0, -1.5, -1.0)
# More documents take longer than a page is waited for.
_MOST_SWEPT = 256


def write(
  workdir: str,
  output: str = "",
  *,
  keys: str = "",
  data: Sequence[str] = (),
  text_column: str = "",
  id_column: str = "",
  documents: int = 3,
  baseline: str = "",
  force: bool = False,
) -> str:
  """Writes the page of an evaluation.

  Args:
    workdir: of the evaluation.
    output: the page; "" is `workdir`/report.html.
    keys: the key-token store; "" is the one that the results name.
    data: texts of the heat maps; none are those that the results name.
    text_column, id_column: of the data; "" as the results say.
    documents: heat maps at most.
    baseline, force: as `comparison.comparison_rows`.

  Returns:
    Where the page is.

  Raises:
    ValueError, NotComparable: see `page.render_report` and `heatmap`.
  """
  results = files.load_results(workdir)
  made = next((r.made for r in results if r.made), {})
  alpha, beta = page.thresholds(results)
  keys = keys or _existing(made.get("key_tokens") or "", workdir) or workdir
  sources = data or _there(made.get("data") or ())
  shown = heatmap.heatmap_documents(
    keys,
    sources,
    text_column or made.get("text_column") or "text",
    documents,
    id_column=id_column or made.get("id_column") or "",
    thresholds=(alpha, beta),
    results=() if force else results,
  )
  extras: dict[str, Any] = {}
  try:
    store = store_lib.read_store(keys)
  except FileNotFoundError:
    store = None
  if store and store.manifest.detail == "tokens":
    extras["curves"] = _curves(workdir, results, store)
    extras["grid"] = _grid(workdir, keys, results, (alpha, beta), force)
    extras["difference"] = _difference(
      workdir, results, store.with_thresholds(alpha, beta), shown
    )
  path = output or f"{workdir}/report.html"
  page.render_report(
    results,
    shown,
    path,
    alpha=alpha,
    beta=beta,
    baseline=baseline,
    force=force,
    **extras,
  )
  return path


def _existing(place: str, workdir: str) -> str:
  """A store that the results name, if it is there; else the log says so."""
  if not place or pathlib.Path(place).exists():
    return place
  logging.info("%s, which %s names, is not here: name it with --keys",
               place, workdir)  # fmt: skip
  return ""


def _there(sources: Sequence[str]) -> list[str]:
  """The sources, if the files are still there; URLs are not asked for."""
  local = [one for one in sources if "://" not in one]
  missing = [
    one
    for one in local
    if not (pathlib.Path(one).exists() or any(c in one for c in "*?["))
  ]
  if missing or len(local) < len(sources):
    logging.info(
      "no heat maps: %s, which was evaluated, is not on this disk; name the "
      "texts with --data",
      (missing or sources)[0],
    )
    return []
  return list(sources)


def _targets(
  workdir: str, results: Sequence[ModelResult]
) -> dict[str, pathlib.Path]:
  """Name -> the file of what each model gave to each target."""
  paths = {
    one.name: log_probs.path_of(workdir, one.name)
    for one in results
    if one.has_numbers
  }
  return {name: path for name, path in paths.items() if path.exists()}


def _curves(
  workdir: str, results: Sequence[ModelResult], store: KeyTokenStore
) -> dict[str, list[Curve]]:
  """Mean NLL of each model, and LSD of the evaluator, along the documents."""
  found = _targets(workdir, results)
  if not found:
    return {}
  rows = [keys for keys in store if keys.offsets is not None]
  edges = positions.edges_of(keys.n_chars for keys in rows)
  lsd = Curve("evaluator", edges)
  for keys in rows:
    lsd.add(keys.offsets, keys.long_log_probs - keys.short_log_probs)
  curves = []
  for name, path in found.items():
    curve = Curve(name, edges)
    for one in log_probs.read(path):
      curve.add(one.offsets, -one.log_probs)
    curves.append(curve)
  return {"nll": curves, "lsd": [lsd]}


def _grid(
  workdir: str,
  keys: str,
  results: Sequence[ModelResult],
  thresholds: tuple[float, float],
  force: bool,
) -> dict[str, Any]:
  """LongPPL at each pair of thresholds that the sliders offer."""
  if not _targets(workdir, results):
    return {}
  count = max((r.n_documents or 0 for r in results), default=0)
  if count > _MOST_SWEPT:
    logging.info(
      "no sliders for the thresholds: %d documents; scripts/report.py sweep "
      "reads any number",
      count,
    )
    return {}
  alphas, betas = (
    sorted({*offered, own})
    for offered, own in zip((_ALPHAS, _BETAS), thresholds, strict=True)
  )
  try:
    cells = sweep_lib.sweep(
      workdir, keys=[keys], alpha=alphas, beta=betas, force=force
    )
  except (ValueError, FileNotFoundError) as error:
    logging.info("no sliders for the thresholds: %s", error)
    return {}
  return {
    "alpha": alphas,
    "beta": betas,
    "at": [alphas.index(thresholds[0]), betas.index(thresholds[1])],
    "models": list(dict.fromkeys(cell.model for cell in cells)),
    "cells": [
      [alphas.index(c.alpha), betas.index(c.beta), c.model, c.longppl,
       c.n_key_tokens, c.rank]
      for c in cells
    ],
  }  # fmt: skip


def _difference(
  workdir: str,
  results: Sequence[ModelResult],
  store: KeyTokenStore,
  shown: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
  """Two models on the key spans of the documents shown; else nothing."""
  found = _targets(workdir, results)
  if len(found) != 2 or not shown:
    return {}
  wanted = {one["doc_id"] for one in shown}
  (first, mine), (second, theirs) = (
    (name, {t.doc_id: t for t in log_probs.read(path) if t.doc_id in wanted})
    for name, path in found.items()
  )
  documents = [
    difference.document(
      one,
      store.get(one["doc_id"]).spans,
      mine[one["doc_id"]],
      theirs[one["doc_id"]],
    )
    for one in shown
    if one["doc_id"] in mine and one["doc_id"] in theirs
  ]
  return {
    "first": first,
    "second": second,
    "documents": documents,
    **difference.summary(documents),
  }
