"""Evaluates models on a key-token store; one failed model does not stop it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from longctx_jax.evaluation import (
  caveats,
  files,
  log_probs,
  names,
  passes,
  results,
)
from longctx_jax.evaluation import matched as matched_lib
from longctx_jax.evaluation.files import Line
from longctx_jax.evaluation.foreign import ForeignLogProbs, evaluate_log_probs
from longctx_jax.evaluation.matched import Matched
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens import manifest as manifest_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime import failures, settings, stamp, workers
from longctx_jax.runtime.progress import Progress
from longctx_jax.scoring import finder, look_ahead, setup
from longctx_jax.scoring import run as run_lib
from longctx_jax.text.corpus import Corpus

# Documents that are done and may wait to be written.
_LINES_AHEAD = 8


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A model under test: its name in the results and how to load it."""

  name: str
  load: Callable[[], LoadedModel]


def evaluate(
  config: ConfigDict,
  *,
  workdir: str | pathlib.Path,
  overwrite: bool = False,
  foreign: Sequence[ForeignLogProbs] = (),
  named: Mapping[str, Any] | None = None,
  intersection: bool = False,
) -> list[ModelResult]:
  """Evaluates the config's models; scores first where there are no keys.

  Args:
    config: as configs/longppl.py.
    workdir: gets results/ and documents/, and key_tokens/ if scored here.
    overwrite: evaluate anew what other settings were used for.
    foreign: log-probs computed elsewhere, evaluated beside the models.
    named: what the user said of key tokens; see `matched.open_keys`.
    intersection: evaluate on the documents that key tokens and corpus share,
      where they do not hold the same.

  Returns:
    The result of each model, as written to results/.

  Raises:
    ValueError: settings that no run can have, or documents that are not those
      of the key tokens; before any model is loaded.
  """
  setup.check_config(config)
  if config.data.chunk_len:
    raise ValueError(
      f"chunk_len={config.data.chunk_len}: documents are cut for training; "
      "models are evaluated on whole ones"
    )
  if config.eval.sums_only and config.eval.per_token:
    raise ValueError(
      "sums_only and per_token: with the first no log-prob of a target leaves "
      "the devices, so there is none to write; leave one of them out"
    )
  candidates = [
    Candidate(name, lambda path=path: setup.load_model(config, path))
    for name, path in names.read(
      config.models, form=config.scoring.weights
    ).items()
  ]
  models = {candidate.name for candidate in candidates}
  if twice := models & {one.name for one in foreign}:
    raise ValueError(
      f"{min(twice)!r} is the name of a model and of log-probs: take another"
    )
  if not candidates and not foreign:
    raise ValueError("no model is named: give at least one --model")
  if config.key_tokens:
    corpus = setup.open_corpus(config)
    store = matched_lib.open_keys(config, corpus, named)
  else:
    store = run_lib.score_corpus(config, workdir=workdir, overwrite=overwrite)
    corpus = setup.open_corpus(config)
  # Raises before any model is loaded.
  pair = matched_lib.intersect if intersection else matched_lib.match
  matched = pair(store, corpus)
  taken = dataclasses.asdict(store.manifest.thresholds)
  if any(config.longppl[name] != taken[name] for name in taken):
    logging.info(
      "thresholds of the key tokens: %s; others are named by "
      "--config.longppl.alpha and --config.longppl.beta",
      ", ".join(f"{name}={value:g}" for name, value in taken.items()),
    )
  found = _evaluate_candidates(config, candidates, matched, workdir, overwrite)
  for one in foreign:
    found.append(
      _guarded(
        one.name,
        lambda one=one: evaluate_log_probs(one, matched),
        store,
        workdir,
      )
    )
  return found


def evaluate_candidates(
  config: ConfigDict,
  candidates: Sequence[Candidate],
  store: KeyTokenStore,
  corpus: Corpus,
  *,
  workdir: str | pathlib.Path,
  overwrite: bool = False,
) -> list[ModelResult]:
  """Evaluates models one after the other; see `evaluate`."""
  matched = matched_lib.match(store, corpus)
  return _evaluate_candidates(config, candidates, matched, workdir, overwrite)


def _evaluate_candidates(
  config: ConfigDict,
  candidates: Sequence[Candidate],
  matched: Matched,
  workdir: str | pathlib.Path,
  overwrite: bool,
) -> list[ModelResult]:
  return [
    _guarded(
      candidate.name,
      lambda candidate=candidate: _evaluate_model(
        config, candidate, matched, workdir, overwrite
      ),
      matched.store,
      workdir,
    )
    for candidate in candidates
  ]


def _guarded(
  name: str,
  run: Callable[[], ModelResult],
  store: KeyTokenStore,
  workdir: str | pathlib.Path,
) -> ModelResult:
  """Runs one model; its failure becomes a row, and the others go on."""
  with files.locked(workdir, name):
    try:
      result = run()
      for warning in result.warnings:
        logging.warning("%s: %s", name, warning)
      files.write_result(workdir, result)
    except settings.OtherSettings:
      # A row would take the place of the results that are there.
      raise
    except Exception as error:  # noqa: BLE001  whatever a model does, go on
      if failures.is_full_disk(error):
        raise  # It was not the model, and the others have no space either.
      logging.error("%s failed: %s", name, error)
      logging.debug("%s", traceback.format_exc())
      result = ModelResult(
        name=name,
        reason=f"{results.FAILED}{type(error).__name__}: {error}",
        keys=store.manifest.to_json(),
      )
      if files.has_numbers(workdir, name):
        logging.warning("%s: the results of an earlier run are kept", name)
      else:
        files.write_result(workdir, result)
  return result


def check_finished(found: Sequence[ModelResult]) -> None:
  """Checks that models have numbers, after all have had their turn.

  Raises:
    ValueError: a model failed, or scored nothing of any document.
  """
  failed = [result.name for result in found if result.failed]
  if failed:
    raise ValueError(
      f"{len(failed)} of {len(found)} models failed: {', '.join(failed)}"
    )
  silent = [result for result in found if not result.n_tokens]
  if silent:
    reasons = (f"{n} {reason}" for reason, n in silent[0].null_reasons.items())
    raise ValueError(
      f"{silent[0].name} scored nothing: of {silent[0].n_documents} documents "
      f"{', '.join(reasons)}"
    )


def _evaluate_model(
  config: ConfigDict,
  candidate: Candidate,
  matched: Matched,
  workdir: str | pathlib.Path,
  overwrite: bool,
) -> ModelResult:
  manifest = matched.store.manifest
  model = candidate.load()
  scorer = setup.make_scorer(config, model)
  sums_only = config.eval.sums_only
  run = passes.Evaluation(
    scorer,
    manifest,
    max_length=setup.max_length_of(config, model),
    over_length=config.data.over_length,
    summer=setup.make_summer(config, scorer) if sums_only else None,
  )
  facts = finder.identity(model)
  facts = {"name": facts.pop("evaluator")} | facts
  made_with = {
    "model": facts,
    "keys": manifest.to_json(),
    "max_length": run.max_length,
    "over_length": config.data.over_length,
    "per_token": config.eval.per_token,
    "numerics": manifest_lib.NUMERICS,
  }
  with files.open_ledger(
    workdir, candidate.name, made_with, overwrite=overwrite
  ) as ledger:
    keeper = log_probs.Keeper(
      workdir, candidate.name, log_probs.facts_of(facts, run.max_length)
    )
    if not (ledger.done and config.eval.log_probs):
      keeper.start_anew()
    lines, scores = _evaluate_documents(
      run,
      candidate.name,
      matched,
      ledger,
      workdir,
      per_token=config.eval.per_token,
      keeper=keeper if config.eval.log_probs else None,
    )
  documents = [line.document for line in lines]
  longest = max((one.n_tokens for one in documents), default=0) + 1
  lengths = {"long": longest, "short": caveats.window_length(manifest)}
  seconds, tokens, fed, needed = (
    sum(getattr(line, name) for line in lines)
    for name in ("seconds", "tokens", "fed", "needed")
  )
  return results.summarise(
    documents,
    protocol_name=run.protocol,
    self_evaluated=run.self_evaluated,
    scores=scores,
    name=candidate.name,
    keys=manifest,
    model=facts,
    max_length=run.max_length,
    over_length=config.data.over_length,
    sums_only=sums_only,
    made=_made(config, workdir),
    n_reused=sum(line.reused for line in lines),
    seconds=seconds,
    # None where the model did not run: all log-probs were the evaluator's.
    tokens_per_second=tokens / seconds if tokens else None,
    padding_share=1 - needed / fed if fed else 0.0,
    rope_tables={
      name: model.config.describe_rope(length)
      for name, length in lengths.items()
    },
  )


def _made(config: ConfigDict, workdir: str | pathlib.Path) -> dict[str, Any]:
  """What a report needs to find texts and key tokens again, and says."""
  return stamp.stamp() | {
    "data": list(config.data.sources),
    "text_column": config.data.text_column,
    "id_column": config.data.id_column,
    "key_tokens": config.key_tokens or str(workdir),
  }


def _evaluate_documents(
  run: passes.Evaluation,
  name: str,
  matched: Matched,
  ledger: files.Ledger,
  workdir: str | pathlib.Path,
  *,
  per_token: bool,
  keeper: log_probs.Keeper | None,
) -> tuple[list[Line], list[Mapping[str, Any]]]:
  """The line of each document of this corpus, and its scores in the store.

  What the ledger has of these texts and key tokens is taken from there. A
  document that failed does not get into it, and so is tried again.
  """
  usage = run.scorer.usage
  progress = Progress(name, len(matched), usage)
  lines: list[Line] = []
  scores, tokens, identities = [], set(), []

  def pairs() -> Iterator[tuple[KeyTokens, str]]:
    for keys, document in matched:
      scores.append(keys.scores)
      identities.append(log_probs.identity_of(keys))
      path = files.tokens_path(workdir, name, keys)
      tokens.add(path)
      line = ledger.find(keys)
      if line and not (
        per_token and line.document.n_tokens and not path.exists()
      ):
        lines.append(line)
        progress.skip()
        continue
      yield keys, document.text or ""

  def spent() -> tuple[float, int, int, int]:
    return progress.seconds, usage.tokens, usage.fed, usage.needed

  def write(done: passes.Evaluated, line: Line) -> None:
    if per_token and done.log_probs is not None:
      files.write_tokens(workdir, name, done)
    if keeper and done.log_probs is not None:
      keeper.add(done)
    if done.result.reason != "failed":
      ledger.append(line)

  before = (0.0, 0, 0, 0)
  unread = pairs()
  first = next(unread, None)
  if first is not None:
    run.check_bos(document.text or "" for _, document in matched)
    unread = look_ahead.longest_first(
      itertools.chain([first], unread), size=lambda pair: len(pair[1])
    )
  with (
    contextlib.closing(run.evaluate(unread, ahead=True)) as evaluated,
    workers.Writer(write, limit=_LINES_AHEAD) as writing,
  ):
    for done in evaluated:
      now = spent()
      took = (b - a for a, b in zip(before, now, strict=True))
      line = Line(done.result, done.reused, *took)
      before = now
      writing.put(done, line)
      lines.append(line)
      progress.advance()
  progress.finish()
  if keeper:
    _log_kept(name, lines, *keeper.finish(identities))
  kept = tokens if per_token else ()
  removed = files.remove_other_tokens(workdir, name, kept)
  if removed:
    logging.info(
      "%s: removed %d files of tokens of other documents or key tokens",
      name,
      removed,
    )
  return sorted(lines, key=lambda line: line.document.doc_index), scores


def _log_kept(
  name: str, lines: Sequence[Line], n_rows: int, n_bytes: int
) -> None:
  scored = [line.document.n_tokens for line in lines if line.document.n_tokens]
  logging.info(
    "%s: log-probs of %d of %d documents kept for other thresholds, %.1f MB, "
    "%.1f bytes a target (--config.eval.log_probs=false keeps none)%s",
    name,
    n_rows,
    len(scored),
    n_bytes / 1e6,
    n_bytes / max(sum(scored), 1),
    ""
    if n_rows == len(scored)
    else "; the others were evaluated when none were kept: --overwrite",
  )
