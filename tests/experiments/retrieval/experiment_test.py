"""The laptop experiment: what its arms are, and what it shows."""

import json

import pytest
from support.retrieval_config import make_config

from longctx_jax.experiments.retrieval import experiment, report


@pytest.mark.slow
def test_a_run_has_all_arms_and_goes_on_arm_by_arm(
  small, tmp_path, monkeypatch
):
  small.arms = ("ce", "longce")
  experiment.run(small, workdir=tmp_path)
  small.arms = tuple(experiment.ARMS)
  taken = []
  fine_tune = experiment._Lab._fine_tune

  def counted(self, model, arm, seed):
    taken.append(arm)
    return fine_tune(self, model, arm, seed)

  monkeypatch.setattr(experiment._Lab, "_fine_tune", counted)
  records = experiment.run(small, workdir=tmp_path)
  assert sorted(taken) == ["floor", "hard", "oracle", "shuffled"]
  assert records == json.loads((tmp_path / "results.json").read_text())
  by_arm = {r["arm"]: r for r in records if r["start"] == "retrieves"}
  assert set(by_arm) == set(experiment.ARMS)
  for one in by_arm.values():
    assert [row["step"] for row in one["rows"]] == [0, 2, 4]
    # Step 0 is before any training: the same for all.
    assert one["rows"][0]["nll"] == by_arm["ce"]["rows"][0]["nll"]
  ends = {arm: one["rows"][-1]["nll"] for arm, one in by_arm.items()}
  assert len(set(ends.values())) >= 4, ends
  # The same weights at other places: of the same mean.
  assert by_arm["shuffled"]["mean_weight"] == pytest.approx(
    by_arm["longce"]["mean_weight"], rel=0.02
  )
  # 2 of 64 targets carry 5.
  assert by_arm["oracle"]["mean_weight"] == pytest.approx(1 + 4 * 2 / 64)
  assert by_arm["floor"]["mean_weight"] >= 1
  small.optimizer.learning_rate = 0.5
  with pytest.raises(ValueError, match="optimizer.learning_rate was 0.001"):
    experiment.run(small, workdir=tmp_path)
  small.optimizer.learning_rate = 1e-3


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"arms": ("ce", "longcd")}, "arms among ce, longce"),
    ({"seeds": ()}, "at least one of each"),
    ({"eval__steps": (50, 300)}, "go past the last step, 200"),
    ({"loss__gamma": -1.0}, "gamma > 0"),
  ],
)
def test_settings_that_no_run_can_have_are_refused(tmp_path, fields, message):
  with pytest.raises(ValueError, match=message):
    experiment.run(make_config(**fields), workdir=tmp_path)


@pytest.mark.slow
def test_longce_learns_retrieval_faster_than_ce(tmp_path):
  """experiments.md A1, one seed: at least 15 points at step 50."""
  config = make_config(
    arms=("ce", "longce"),
    seeds=(0,),
    blind__arms=(),
    optimizer__steps=50,
    eval__steps=(50,),
  )
  records = experiment.run(config, workdir=tmp_path)
  gap = report.gaps(records, 50)[0]
  assert gap > report.LEAST_GAP
