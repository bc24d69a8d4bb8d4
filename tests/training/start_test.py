"""How a run goes on: elsewhere, longer, with a new optimizer, or not at all."""

import os
import pathlib
import re
import shutil
import signal

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import tiny_runs
from support.tiny_training import make_config, use_devices

from longctx_jax.checkpoints import convert, loading
from longctx_jax.model import parameters
from longctx_jax.runtime import files
from longctx_jax.scoring import run as score
from longctx_jax.training import data, metrics, program
from longctx_jax.training import run as train
from longctx_jax.training import step as step_lib

STEPS = 12  # Of configs/tiny.py; a checkpoint every 4, the last two are kept.


class Stopped(Exception):
  pass


def stop(monkeypatch, step, how=None):
  """Runs end before they take the batch of this step."""
  take = data.BatchIterator.__next__

  def taken(self):
    if self.get_state()["step"] == step - 1:
      if how is None:
        raise Stopped
      how()
    return take(self)

  monkeypatch.setattr(data.BatchIterator, "__next__", taken)


def fail_to_step(*arguments, **options):
  raise AssertionError("a step was made")


def values(model):
  return {
    name: np.asarray(x) for name, x in parameters.flatten(model.params).items()
  }


def assert_same(model, other):
  for name, array in values(model).items():
    np.testing.assert_array_equal(array, values(other)[name], err_msg=name)


def steps_of(workdir):
  return [row["step"] for row in metrics.read_metrics(workdir)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("start")


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
  use_devices(monkeypatch, 1)


@pytest.fixture(scope="module")
def finished(folder):
  """(model, workdir) of a finished run; tests copy the workdir."""
  with pytest.MonkeyPatch.context() as patch:
    use_devices(patch, 1)
    model = train.train(make_config(folder), workdir=folder / "whole")
  return model, folder / "whole"


@pytest.fixture
def workdir(finished, tmp_path):
  shutil.copytree(finished[1], tmp_path / "run")
  return tmp_path / "run"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_is_a_model(finished, tmp_path, mesh, dtype):
  """It loads as the export does, with the same identity."""
  last = finished[1] / "checkpoints" / str(STEPS)
  exported, model = (
    loading.load_model(path, mesh=mesh, dtype=dtype)
    for path in (finished[1] / "export", last)
  )
  assert_same(model, exported)
  assert model.checksum == exported.checksum and model.config == exported.config
  assert model.tokenizer.fingerprint == exported.tokenizer.fingerprint


def test_a_checkpoint_in_the_middle_becomes_a_folder(finished, tmp_path):
  middle = finished[1] / "checkpoints" / "8"
  convert.convert(str(middle), str(tmp_path / "hf"), fmt="hf")
  names = sorted(path.name for path in (tmp_path / "hf").iterdir())
  assert names == sorted(p.name for p in (finished[1] / "export").iterdir())
  ours, last = (
    load_file(path / "model.safetensors")
    for path in (tmp_path / "hf", finished[1] / "export")
  )
  assert ours.keys() == last.keys()
  assert any((ours[name] != last[name]).any() for name in ours)


def test_a_checkpoint_alone_says_what_it_needs(finished, tmp_path):
  shutil.copytree(finished[1] / "checkpoints" / "8", tmp_path / "a" / "b" / "8")
  with pytest.raises(FileNotFoundError, match="needs .*/a/model beside it"):
    loading.load_model(tmp_path / "a" / "b" / "8")


def test_inputs_may_lie_elsewhere(finished, folder, workdir, tmp_path):
  """The same texts and weights under another path, spelled relatively."""
  shutil.copytree(folder / "model", tmp_path / "m")
  shutil.copy(folder / "text.txt", tmp_path / "renamed.txt")
  config = make_config(
    folder,
    data__sources=(os.path.relpath(tmp_path / "renamed.txt"),),
    model__path=os.path.relpath(tmp_path / "m"),
  )
  assert_same(train.train(config, workdir=workdir), finished[0])


def test_other_texts_are_refused(folder, workdir, tmp_path):
  text = (folder / "text.txt").read_text()
  (tmp_path / "text.txt").write_text(text.swapcase())
  config = make_config(folder, data__sources=(str(tmp_path / "text.txt"),))
  with pytest.raises(ValueError, match="other data: content was '"):
    train.train(config, workdir=workdir)


def test_other_weights_are_refused_and_overwrite_says_what_goes(
  folder, workdir, tmp_path
):
  shutil.copytree(folder / "model", tmp_path / "m")
  weights = tmp_path / "m" / "model.safetensors"
  raw = bytearray(weights.read_bytes())
  raw[-3] ^= 1
  weights.write_bytes(raw)
  config = make_config(folder, model__path=str(tmp_path / "m"))
  with pytest.raises(
    ValueError,
    match=r"model.facts.checksum was .* --overwrite, which removes checkpoints "
    r"\(steps 8, 12\), export, model, tensorboard, metrics.jsonl \(12 rows\)",
  ):
    train.train(config, workdir=workdir)


def test_what_overwrite_removes_is_said(folder, workdir, monkeypatch, caplog):
  monkeypatch.setattr(program, "compile_step", fail_to_step)
  (workdir / "mine.txt").write_text("keep")
  with pytest.raises(AssertionError, match="a step was made"):
    train.train(make_config(folder), workdir=workdir, overwrite=True)
  assert "removes of" in caplog.text and "(steps 8, 12), export" in caplog.text
  assert not (workdir / "export").exists() and (workdir / "mine.txt").exists()


def test_more_steps_go_on_from_the_end(folder, workdir, caplog):
  """The schedule is that of a run of so many steps, and is said."""
  with caplog.at_level("INFO"):
    train.train(make_config(folder, optimizer__steps=14), workdir=workdir)
  assert "going on after step 12 of 12 with 14 steps in all" in caplog.text
  assert "schedule=linear from step 0 to 14 and is 0.0005 at" in caplog.text
  rows = metrics.read_metrics(workdir)
  assert [row["step"] for row in rows] == list(range(1, 15))
  assert rows[12]["learning_rate"] == pytest.approx(0.0005, rel=1e-5)
  assert (workdir / "export").is_dir() and (workdir / "export_12").is_dir()


def diverge(monkeypatch, rate):
  """The loss is no number from step 7 on, unless the rate is below this."""
  make, optimizer = step_lib.make_train_step, program.optimizer
  make_optimizer, rates = optimizer.make_optimizer, []

  def noted(config, total):
    rates.append(config.learning_rate)
    return make_optimizer(config, total)

  def make_bad(*arguments, **options):
    step, bad = make(*arguments, **options), rates[-1] >= rate

    def run(state, batch):
      after, sums = step(state, batch)
      nan = jax.numpy.where(bad & (state.step >= 6), jax.numpy.nan, 0.0)
      return after, sums | {"weighted_nll": sums["weighted_nll"] + nan}

    return run

  monkeypatch.setattr(optimizer, "make_optimizer", noted)
  monkeypatch.setattr(step_lib, "make_train_step", make_bad)


def test_the_advice_after_a_divergence_is_a_command_that_runs(
  folder, tmp_path, monkeypatch, caplog
):
  diverge(monkeypatch, rate=3e-3)
  with pytest.raises(metrics.Diverged) as caught:
    train.train(make_config(folder, loss__weights="none"), workdir=tmp_path)
  found = re.search(
    r"add to the command: --restart_at=(\d+) "
    r"--config.optimizer.learning_rate=(\S+) ",
    str(caught.value),
  )
  assert found[1] == "4" and float(found[2]) == pytest.approx(3e-4)
  config = make_config(
    folder, loss__weights="none", optimizer__learning_rate=float(found[2])
  )
  with pytest.raises(ValueError, match="learning_rate was 0.003 and is 0.0003"):
    train.train(config, workdir=tmp_path)
  with monkeypatch.context() as patch:
    stop(patch, 10)
    with pytest.raises(Stopped):
      train.train(config, workdir=tmp_path, restart_at=4)
  caplog.clear()
  with caplog.at_level("INFO"):
    # The command once more goes on with what it began.
    train.train(config, workdir=tmp_path, restart_at=4)
  assert "going on after step 8" in caplog.text
  rows = metrics.read_metrics(tmp_path)
  assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
  # Warm-up of two steps, anew from step 4.
  rates = [row["learning_rate"] for row in rows[4:7]]
  assert rates == pytest.approx([0, 1.5e-4, 3e-4], rel=1e-5)
  assert (tmp_path / "export").is_dir()


def test_without_a_good_checkpoint_the_advice_is_to_start_anew(
  folder, tmp_path, monkeypatch
):
  """What step 6 left gave the loss of step 7."""
  diverge(monkeypatch, rate=3e-3)
  config = make_config(folder, loss__weights="none", checkpoint__every=6)
  with pytest.raises(
    metrics.Diverged, match="start anew .*: --overwrite --con"
  ):
    train.train(config, workdir=tmp_path)


@pytest.mark.parametrize(
  ("step", "message"),
  [(7, "checkpoints of steps 8, 12"), (12, "leaves none of 12 steps")],
)
def test_a_restart_needs_a_checkpoint(folder, workdir, step, message):
  with pytest.raises(ValueError, match=message):
    train.train(make_config(folder), workdir=workdir, restart_at=step)
  with pytest.raises(ValueError, match="no checkpoint yet"):
    train.train(make_config(folder), workdir=workdir / "new", restart_at=step)


def test_two_runs_in_one_workdir_are_refused(folder, tmp_path, monkeypatch):
  """The second one, while the first is at work."""

  def second():
    with pytest.raises(files.InUse, match="another process is training in"):
      train.train(make_config(folder), workdir=tmp_path)
    raise Stopped

  stop(monkeypatch, 2, second)
  with pytest.raises(Stopped):
    train.train(make_config(folder), workdir=tmp_path)
  assert steps_of(tmp_path) in ([], [1])


def test_ctrl_c_saves_and_ends_with_130(folder, tmp_path, monkeypatch, caplog):
  before = signal.getsignal(signal.SIGINT)
  stop(monkeypatch, 6, lambda: signal.raise_signal(signal.SIGINT))
  with pytest.raises(SystemExit) as caught:
    train.train(make_config(folder), workdir=tmp_path)
  assert caught.value.code == 130
  assert "saved after step 6; the same command goes on" in caplog.text
  assert (tmp_path / "checkpoints" / "6").is_dir()
  assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_at_once(folder, tmp_path, monkeypatch):
  def twice():
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)

  stop(monkeypatch, 2, twice)
  with pytest.raises(KeyboardInterrupt):
    train.train(make_config(folder), workdir=tmp_path)


@pytest.fixture(scope="module")
def held_out(folder):
  """(scored workdir, file) of the document that is trained on, and another."""
  make_config(folder)
  texts = [(folder / "text.txt").read_text(), *tiny_runs.make_texts(1)]
  path = tiny_runs.write_jsonl(folder / "held_out.jsonl", texts)
  tiny_runs.save_models(folder, ["evaluator3"])
  config = tiny_runs.make_config(
    data__sources=(path,), evaluator=str(folder / "evaluator3")
  )
  with pytest.MonkeyPatch.context() as patch:
    use_devices(patch, 1)
    score.score_corpus(config, workdir=folder / "keys")
  return folder / "keys", path


def test_a_start_is_evaluated_once_and_known_documents_are_counted(
  folder, held_out, tmp_path, monkeypatch, caplog
):
  """Killed before the first checkpoint, twice."""
  config = make_config(
    folder,
    eval__every=12,
    eval__key_tokens=str(held_out[0]),
    eval__sources=(held_out[1],),
    eval__alpha=tiny_runs.ALPHA,
    eval__beta=tiny_runs.BETA,
  )
  for _ in range(2):
    with monkeypatch.context() as patch:
      stop(patch, 1)
      with pytest.raises(Stopped):
        train.train(config, workdir=tmp_path)
  assert steps_of(tmp_path) == [0]
  assert "1 of 2 held-out documents are in the training data" in caplog.text


def test_a_batch_that_devices_cannot_share_is_refused_first(
  folder, tmp_path, monkeypatch
):
  use_devices(monkeypatch, 4)
  loaded = tiny_runs.count_loads(monkeypatch)
  with pytest.raises(
    ValueError, match="batch_size=6 .* 4 shards .*take 4 or 8"
  ):
    train.train(make_config(folder, data__batch_size=6), workdir=tmp_path)
  assert not loaded


def test_a_window_longer_than_a_row_is_refused(folder, tmp_path):
  config = make_config(folder, loss__short_len=90, loss__stride=16)
  with pytest.raises(ValueError, match="beyond a row of 97 ids"):
    train.train(config, workdir=tmp_path)
  assert not list(pathlib.Path(tmp_path).iterdir())
