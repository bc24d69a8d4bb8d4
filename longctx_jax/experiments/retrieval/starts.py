"""The models that the retrieval experiment starts from: trained once, kept."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging
from flax import nnx
from ml_collections import ConfigDict

from longctx_jax.experiments.retrieval import data as data_lib
from longctx_jax.experiments.retrieval import model as model_lib
from longctx_jax.experiments.retrieval.data import Documents
from longctx_jax.experiments.retrieval.language import Language
from longctx_jax.experiments.retrieval.passes import Passes
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.training import checkpoint, optimizer
from longctx_jax.training import state as state_lib
from longctx_jax.training.losses import LossConfig
from longctx_jax.training.optimizer import OptimizerConfig

_TEST_SEED = 77
_PRETRAINING_TEST_SEED = 99
_PRETRAINING_TEST_DOCUMENTS = 64


class Starts:
  """Models by name: "retrieves", "blind" and the "evaluator".

  Attributes:
    test: far documents that nothing is trained on.
  """

  def __init__(self, config: ConfigDict, folder: pathlib.Path):
    """Trains nothing yet.

    Args:
      config: as configs/retrieval.py.
      folder: gets a checkpoint per model.
    """
    self._config = config
    self._folder = folder
    words = dict(config.language)
    # `values` is a method of a ConfigDict.
    self._language = Language(values=words.pop("value_words"), **words)
    self._models: dict[str, LoadedModel] = {}
    self._passes: dict[float, Passes] = {}
    self.test = self.far_documents(
      _TEST_SEED, config.eval.documents, config.eval.questions
    )

  def get(self, name: str) -> LoadedModel:
    """A model: trained on the first call, or read where an earlier run was."""
    if name not in self._models:
      self._models[name] = self._read_or_train(name)
    return self._models[name]

  def passes(self, model: LoadedModel) -> Passes:
    """The compiled programs for a model; they depend on its RoPE base alone."""
    theta = model.config.rope.theta
    if theta not in self._passes:
      self._passes[theta] = Passes(model)
    return self._passes[theta]

  def far_documents(self, seed: int, count: int, questions: int) -> Documents:
    """Documents whose definitions lie far before their questions."""
    data = self._config.data
    return data_lib.make_documents(
      self._language,
      np.random.default_rng(seed),
      count=count,
      seq_len=data.seq_len,
      definitions=(data.definitions,) * 2,
      questions=(questions,) * 2,
      layout="far",
    )

  def rule(self) -> OptimizerConfig:
    """The optimizer of the fine-tuning."""
    fields = dict(self._config.optimizer)
    del fields["steps"]
    return OptimizerConfig(**fields)

  def _read_or_train(self, name: str) -> LoadedModel:
    config = self._config
    facts = model_lib.make_config(
      vocab_size=self._language.vocab_size,
      max_position=config.data.seq_len,
      **config.model,
    )
    model = model_lib.make_model(facts, seed=config.pretraining.seed)
    if name == "evaluator":
      model = model_lib.with_theta(model, config.evaluator.theta)
    saved = checkpoint.Checkpoints(self._folder / name, keep=1)
    if saved.steps:
      like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
          leaf.shape, leaf.dtype, sharding=leaf.sharding
        ),
        model.params,
      )
      params = saved.restore(saved.steps[-1], like)
    else:
      train = {
        "retrieves": self._pretrain,
        "blind": self._pretrain_blind,
        "evaluator": self._train_evaluator,
      }[name]
      step, params = train(model)
      saved.save(step, params, data=None, identity={})
    saved.close()
    return dataclasses.replace(model, params=params)

  def _pretrain(self, model: LoadedModel) -> tuple[int, nnx.State]:
    """At the short context, until it retrieves there."""
    pretraining = self._config.pretraining
    rng = np.random.default_rng(pretraining.seed)
    kinds = dict(
      seq_len=pretraining.seq_len,
      definitions=tuple(pretraining.definitions),
      questions=tuple(pretraining.questions),
      layout="natural",
    )
    half = pretraining.batch_size // 2

    def batches():
      while True:
        yield data_lib.interleave(
          self._make(rng, count=half, **kinds),
          data_lib.make_copies(
            self._language, rng, count=half, seq_len=pretraining.seq_len
          ),
        ).batch()

    test = self._make(
      np.random.default_rng(_PRETRAINING_TEST_SEED),
      count=_PRETRAINING_TEST_DOCUMENTS,
      **kinds,
    )

    def is_done(step: int, params: nnx.State) -> bool:
      if step % pretraining.check_every:
        return False
      _, right = self.passes(model).predict(params, test)
      found = test.exact_match(right).mean()
      logging.info("pretraining, step %d: exact match %.3f", step, found)
      return found > pretraining.enough

    return self._train_plain(model, batches(), is_done)

  def _pretrain_blind(self, model: LoadedModel) -> tuple[int, nnx.State]:
    """Without copies and with single questions: retrieval does not form."""
    pretraining = self._config.pretraining
    rng = np.random.default_rng(pretraining.seed)

    def batches():
      while True:
        yield self._make(
          rng,
          count=pretraining.batch_size,
          seq_len=pretraining.seq_len,
          definitions=tuple(pretraining.definitions),
          questions=(1, 1),
          layout="natural",
        ).batch()

    last = self._config.blind.pretraining_steps
    return self._train_plain(
      model, batches(), lambda step, params: step == last
    )

  def _train_plain(
    self,
    model: LoadedModel,
    batches: Iterator[dict[str, np.ndarray]],
    is_done: Callable[[int, nnx.State], bool],
  ) -> tuple[int, nnx.State]:
    """CE until it is done; (last step, parameters)."""
    pretraining = self._config.pretraining
    rule = OptimizerConfig(
      learning_rate=pretraining.learning_rate,
      schedule="constant",
      warmup_steps=pretraining.warmup_steps,
      weight_decay=pretraining.weight_decay,
      clip_norm=self._config.optimizer.clip_norm,
    )
    options = dict(
      loss=LossConfig(weights="none", **self._config.loss),
      rule=rule,
      total=pretraining.most_steps,
    )
    state = state_lib.create(
      model, optimizer.make_optimizer(rule, pretraining.most_steps)
    )
    passes = self.passes(model)
    for step in range(1, pretraining.most_steps + 1):
      batch = next(batches)
      state, _ = passes.step(state, batch, **options)(state, batch)
      if is_done(step, state.params):
        return step, state.params
    raise ValueError(
      f"retrieval did not form in most_steps={pretraining.most_steps} of "
      "pretraining: try more, or another pretraining.seed"
    )

  def _train_evaluator(self, model: LoadedModel) -> tuple[int, nnx.State]:
    """LongCE on a wider RoPE base, far and natural documents in turn."""
    evaluator, data = self._config.evaluator, self._config.data
    model = dataclasses.replace(model, params=self.get("retrieves").params)
    rng, rule = np.random.default_rng(evaluator.seed), self.rule()
    far = dict(
      definitions=(data.definitions,) * 2,
      questions=(data.questions,) * 2,
      layout="far",
    )
    natural = dict(definitions=(2, 8), questions=(1, 6), layout="natural")
    loss = LossConfig(weights="live", **self._config.loss)
    state = state_lib.create(
      model, optimizer.make_optimizer(rule, evaluator.steps)
    )
    passes = self.passes(model)
    for _, kinds in zip(
      range(evaluator.steps), itertools.cycle([far, natural]), strict=False
    ):
      documents = self._make(
        rng, count=data.batch_size, seq_len=data.seq_len, **kinds
      )
      batch = documents.batch(windows=loss.windows)
      step = passes.step(
        state, batch, loss=loss, rule=rule, total=evaluator.steps
      )
      state, _ = step(state, batch)
    _, right = passes.predict(state.params, self.test)
    found = self.test.exact_match(right).mean()
    logging.info("evaluator: exact match %.3f", found)
    return evaluator.steps, state.params

  def _make(self, rng: np.random.Generator, **kinds: Any) -> Documents:
    return data_lib.make_documents(self._language, rng, **kinds)
