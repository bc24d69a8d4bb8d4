"""Evaluates models on a key-token store; one failed model does not stop it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from longctx_jax.evaluation import caveats, files, passes, results
from longctx_jax.evaluation import matched as matched_lib
from longctx_jax.evaluation.foreign import ForeignLogProbs, evaluate_log_probs
from longctx_jax.evaluation.matched import Matched
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens import slices
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime import settings
from longctx_jax.runtime.progress import Progress
from longctx_jax.scoring import finder, setup
from longctx_jax.scoring import run as run_lib
from longctx_jax.text.corpus import Corpus

_SLICES = "slices:"


@dataclasses.dataclass(frozen=True)
class Candidate:
  """A model under test: its name in the results and how to load it."""

  name: str
  load: Callable[[], LoadedModel]


def open_keys(
  config: ConfigDict, corpus: Corpus, named: Mapping[str, Any]
) -> KeyTokenStore:
  """The key tokens that the config names, under its thresholds.

  `config.key_tokens` is a workdir that was scored, its key_tokens folder, or
  "slices:FOLDER" for the reference's slice files. Windows, protocol and
  evaluator are the store's.

  Args:
    config: as configs/longppl.py.
    corpus: the documents.
    named: manifest fields that the user named, and that must agree.

  Raises:
    ValueError: thresholds that the store cannot be read with, or a manifest
      that differs from `named`; the fields are given with both values.
    FileNotFoundError: no store there.
  """
  if config.key_tokens.startswith(_SLICES):
    folder = config.key_tokens.removeprefix(_SLICES)
    store = slices.read_slice_store(folder, corpus)
  else:
    store = store_lib.read_store(config.key_tokens)
  stated = {n: v for n, v in store.manifest.to_json().items() if n in named}
  different = [
    f"{name} is {there} there and {here} here"
    for name, there, here in settings.differences(
      stated, {name: named[name] for name in stated}
    )
  ]
  if different:
    raise ValueError(
      f"{config.key_tokens} was made with other settings: "
      f"{'; '.join(different)}. Leave them out, or score again"
    )
  return store.with_thresholds(config.longppl.alpha, config.longppl.beta)


def evaluate(
  config: ConfigDict,
  *,
  workdir: str | pathlib.Path,
  overwrite: bool = False,
  foreign: Sequence[ForeignLogProbs] = (),
  named: Mapping[str, Any] | None = None,
) -> list[ModelResult]:
  """Evaluates the config's models; scores first where there are no keys.

  Args:
    config: as configs/longppl.py.
    workdir: gets results/ and documents/, and key_tokens/ if scored here.
    overwrite: evaluate anew what other settings were used for.
    foreign: log-probs computed elsewhere, evaluated beside the models.
    named: what key tokens from elsewhere must agree with; see `open_keys`.

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
  candidates = [
    Candidate(name, lambda path=path: setup.load_model(config, path))
    for name, path in zip(
      model_names(config.models), config.models, strict=True
    )
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
    store = open_keys(config, corpus, named or {})
  else:
    store = run_lib.score_corpus(config, workdir=workdir, overwrite=overwrite)
    corpus = setup.open_corpus(config)
  # Raises before any model is loaded.
  matched = matched_lib.match(store, corpus)
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


def model_names(paths: Sequence[str]) -> list[str]:
  """Names of results: the hub id with "--" for "/", or the last path part.

  Raises:
    ValueError: two models of one name.
  """
  names = []
  for path in paths:
    is_hub_id = not pathlib.Path(path).exists() and path.count("/") == 1
    # The absolute path: "." has no name of its own.
    own = pathlib.Path(os.path.abspath(pathlib.Path(path).expanduser())).name
    name = path.replace("/", "--") if is_hub_id else own
    if not name:
      raise ValueError(f"--model {path} has no name: name a folder of its own")
    if name in names:
      raise ValueError(
        f"two models are called {name!r}: evaluate them into two workdirs"
      )
    names.append(name)
  return names


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
  try:
    result = run()
    files.write_result(workdir, result)
  except settings.OtherSettings:
    # A row would take the place of the results that are there.
    raise
  except Exception as error:  # noqa: BLE001  whatever a model does, go on
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
  """Raises ValueError where a model failed, after all have had their turn."""
  failed = [result.name for result in found if result.failed]
  if failed:
    raise ValueError(
      f"{len(failed)} of {len(found)} models failed: {', '.join(failed)}"
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
  run = passes.Evaluation(
    scorer,
    manifest,
    max_length=setup.max_length_of(config, model),
    over_length=config.data.over_length,
  )
  identity = finder.identity(model)
  identity = {"name": identity.pop("evaluator")} | identity
  made_with = {
    "model": identity,
    "keys": manifest.to_json(),
    "max_length": config.data.max_length,
    "over_length": config.data.over_length,
    "per_token": config.eval.per_token,
  }
  ledger = files.open_ledger(
    workdir, candidate.name, made_with, overwrite=overwrite
  )
  progress = Progress(candidate.name, len(matched), scorer.usage)
  progress.skip(len(ledger.done))
  scores = []
  checked = False

  def pairs() -> Iterator[tuple[KeyTokens, str]]:
    nonlocal checked
    for keys, document in matched:
      scores.append(keys.scores)
      if keys.doc_id in ledger.done:
        continue
      text = document.text or ""
      if not checked:
        run.check_bos(document.text or "" for document in corpus)
        checked = True
      yield keys, text

  with contextlib.closing(ledger):
    for done in run.evaluate(pairs()):
      if config.eval.per_token and done.log_probs is not None:
        files.write_tokens(workdir, candidate.name, done)
      ledger.append(done.result)
      progress.advance()
  progress.finish()
  documents = sorted(ledger.done.values(), key=lambda one: one.doc_index)
  longest = max((one.n_tokens for one in documents), default=0) + 1
  lengths = {"long": longest, "short": caveats.window_length(manifest)}
  return results.summarise(
    documents,
    protocol_name=run.protocol,
    self_evaluated=run.self_evaluated,
    scores=scores,
    name=candidate.name,
    keys=manifest,
    model=identity,
    n_reused=run.reused,
    seconds=progress.seconds,
    # None where the model did not run: everything was done, or reused.
    tokens_per_second=progress.tokens_per_second or None,
    padding_share=scorer.usage.padding_share,
    rope_tables={
      name: model.config.describe_rope(length)
      for name, length in lengths.items()
    },
  )
