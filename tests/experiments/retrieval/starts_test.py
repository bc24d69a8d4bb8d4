"""What the experiment starts from: trained once, and the same documents."""

import jax
import numpy as np
import pytest

from longctx_jax.experiments.retrieval import starts as starts_lib


def test_documents_are_the_same_for_every_arm_and_new_for_every_seed(
  small, tmp_path
):
  starts = starts_lib.Starts(small, tmp_path)
  one, same, other = (starts.far_documents(s, 4, 2).ids for s in (1, 1, 2))
  np.testing.assert_array_equal(one, same)
  assert (one != other).any()


def test_a_model_is_trained_once_and_read_by_later_runs(
  small, tmp_path, monkeypatch
):
  steps = []

  def train(self, model):
    steps.append(self)
    return 7, jax.tree.map(lambda leaf: leaf + 1, model.params)

  monkeypatch.setattr(starts_lib.Starts, "_pretrain", train)
  first = starts_lib.Starts(small, tmp_path)
  trained = first.get("retrieves")
  assert first.get("retrieves") is trained
  again = starts_lib.Starts(small, tmp_path).get("retrieves")
  assert len(steps) == 1 and again.config == trained.config
  jax.tree.map(np.testing.assert_array_equal, again.params, trained.params)


def test_pretraining_that_never_succeeds_says_what_to_change(
  small, tmp_path, monkeypatch
):
  class NoPasses:
    def step(self, *arguments, **options):
      return lambda state, batch: (state, None)

  monkeypatch.setattr(starts_lib.Starts, "passes", lambda *_: NoPasses())
  config = small.copy_and_resolve_references()
  config.pretraining.update(most_steps=2, check_every=9)
  with pytest.raises(ValueError, match="most_steps=2 of pretraining: try more"):
    starts_lib.Starts(config, tmp_path).get("retrieves")
