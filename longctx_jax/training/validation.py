"""PPL and LongPPL on held-out key tokens, while a model is in training."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from longctx_jax.evaluation import passes, results
from longctx_jax.evaluation.results import LongPplResult
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.model import parameters
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.scoring import eval_step
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.text.corpus import Corpus


class HeldOut:
  """Documents with key tokens that the run never trains on.

  The numbers are those of scripts/eval.py --sums_only on an export of the same
  step in the same dtype. Of several processes each reads the documents; all
  get the result.
  """

  def __init__(
    self,
    store: KeyTokenStore,
    corpus: Corpus,
    *,
    max_length: int = 0,
    dtype: jnp.dtype,
    backend: str = "auto",
  ):
    """Matches store and documents.

    Args:
      store: key tokens, under the thresholds to evaluate with.
      corpus: their documents.
      max_length: ids that are read of a document; 0 is the model's limit.
      dtype: of the parameters while they are evaluated.
      backend: attention backend.

    Raises:
      ValueError: documents that are not those of the key tokens.
    """
    self._pairs = [
      (keys, document.text or "")
      for keys, document in store_lib.match_documents(store, corpus)
    ]
    self._manifest = store.manifest
    self._max_length = max_length
    self._dtype = jnp.dtype(dtype)
    self._backend = backend
    self._scorer: scorer_lib.Scorer | None = None
    self._summer: eval_step.Summer | None = None

  def evaluate(self, model: LoadedModel) -> LongPplResult:
    """The pooled result of a model; programs are compiled once per run.

    Args:
      model: its checksum is that of no stored weights.
    """
    params = jax.tree.map(lambda leaf: leaf.astype(self._dtype), model.params)
    graphdef, _ = parameters.abstract_model(model.config, self._dtype)
    model = dataclasses.replace(
      model, graphdef=graphdef, params=params, checksum=""
    )
    if self._scorer is None:
      self._scorer = scorer_lib.make_scorer(
        model, self._manifest.windows, backend=self._backend
      )
      self._summer = eval_step.make_summer(model, backend=self._backend)
    run = passes.Evaluation(
      dataclasses.replace(self._scorer, model=model),
      self._manifest,
      max_length=self._max_length,
      summer=dataclasses.replace(self._summer, model=model),
    )
    documents = [done.result for done in run.evaluate(self._pairs)]
    return results.summarise(
      sorted(documents, key=lambda document: document.doc_index),
      protocol_name=run.protocol,
      self_evaluated=run.self_evaluated,
    )
