"""A training run: rows, resume, other meshes, evaluation, its end."""

import json
import signal

import jax
import numpy as np
import pytest
from support import tiny_runs
from support.tiny_training import make_config, use_devices

from longctx_jax.checkpoints import hub, loading
from longctx_jax.evaluation import run
from longctx_jax.model import parameters
from longctx_jax.scoring import run as run_lib
from longctx_jax.training import data, metrics, program
from longctx_jax.training import metrics as metrics_lib
from longctx_jax.training import run as train
from longctx_jax.training import step as step_lib

STEPS = 12  # Of configs/tiny.py; a checkpoint every 4.


class Preempted(Exception):
  pass


def interrupt(monkeypatch, step):
  """Runs end before they take the batch of this step."""
  take = data.BatchIterator.__next__

  def taken(self):
    if self.get_state()["step"] == step - 1:
      raise Preempted
    return take(self)

  monkeypatch.setattr(data.BatchIterator, "__next__", taken)


def values(model):
  return {
    name: np.asarray(x) for name, x in parameters.flatten(model.params).items()
  }


def rows_of(workdir):
  """Rows without what a clock says."""
  timed = ("tokens_per_second", "mfu")
  return [
    {name: row[name] for name in row if name not in timed}
    for row in metrics.read_metrics(workdir)
  ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  made = tmp_path_factory.mktemp("train")
  make_config(made)  # A model and a document, whichever test comes first.
  return made


@pytest.fixture(scope="module")
def whole(folder):
  """(model, workdir) of an uninterrupted run on one device."""
  with pytest.MonkeyPatch.context() as patch:
    use_devices(patch, 1)
    workdir = folder / "whole"
    return train.train(make_config(folder), workdir=workdir), workdir


def test_the_loss_falls_and_every_step_is_a_row(whole):
  rows = metrics.read_metrics(whole[1])
  assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
  assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
  assert rows[-1]["nll"] < 0.8 * rows[0]["nll"]
  names = "loss nll weighted_nll mean_weight clipped_share key_share key_nll "
  names += "grad_norm learning_rate tokens tokens_per_second mfu"
  assert all(set(names.split()) < set(row) for row in rows)
  assert rows[0]["mfu"] is None  # No peak is known of a CPU.


def test_events_for_tensorboard_are_written(whole):
  (path,) = (whole[1] / "tensorboard").iterdir()
  assert b"grad_norm" in path.read_bytes()


def test_a_resumed_run_is_the_uninterrupted_one_bit_by_bit(
  folder, whole, tmp_path, monkeypatch
):
  """Cases H5 and H6: two steps after a checkpoint are lost and run again."""
  use_devices(monkeypatch, 1)
  with monkeypatch.context() as patch:
    interrupt(patch, 7)
    with pytest.raises(Preempted):
      train.train(make_config(folder), workdir=tmp_path)
  assert rows_of(tmp_path)[-1]["step"] >= 4
  model = train.train(make_config(folder), workdir=tmp_path)
  for name, array in values(model).items():
    np.testing.assert_array_equal(array, values(whole[0])[name], err_msg=name)
  assert rows_of(tmp_path) == rows_of(whole[1])


def test_a_run_that_is_told_to_end_saves_first(
  folder, whole, tmp_path, monkeypatch
):
  """At a step between two checkpoints; nothing is run again."""
  use_devices(monkeypatch, 1)
  before = signal.getsignal(signal.SIGTERM)
  take = data.BatchIterator.__next__

  def taken(self):
    if self.get_state()["step"] == 5:
      signal.raise_signal(signal.SIGTERM)
    return take(self)

  with monkeypatch.context() as patch:
    patch.setattr(data.BatchIterator, "__next__", taken)
    with pytest.raises(SystemExit) as caught:
      train.train(make_config(folder), workdir=tmp_path)
  assert caught.value.code == 143
  assert signal.getsignal(signal.SIGTERM) is before
  assert (tmp_path / "checkpoints" / "6").is_dir()
  assert not (tmp_path / "export").exists()
  assert rows_of(tmp_path)[-1]["step"] == 6
  model = train.train(make_config(folder), workdir=tmp_path)
  for name, array in values(model).items():
    np.testing.assert_array_equal(array, values(whole[0])[name], err_msg=name)
  assert rows_of(tmp_path) == rows_of(whole[1])


@pytest.mark.parametrize(
  ("devices", "mesh"), [(2, {"fsdp": 2}), (4, {"fsdp": 2, "tensor": 2})]
)
def test_a_run_that_goes_on_elsewhere_ends_alike(
  folder, whole, tmp_path, monkeypatch, devices, mesh
):
  with monkeypatch.context() as patch:
    use_devices(patch, 1)
    interrupt(patch, 9)
    with pytest.raises(Preempted):
      train.train(make_config(folder), workdir=tmp_path)
  use_devices(monkeypatch, devices)
  sizes = {f"mesh__{axis}": size for axis, size in mesh.items()}
  model = train.train(make_config(folder, **sizes), workdir=tmp_path)
  for row, expected in zip(rows_of(tmp_path), rows_of(whole[1]), strict=True):
    assert row["loss"] == pytest.approx(expected["loss"], rel=1e-5)
  for name, array in values(model).items():
    difference = np.abs(array - values(whole[0])[name]).max()
    assert difference < 1e-5 * max(1.0, np.abs(array).max()), name


def test_a_finished_run_does_nothing_more(folder, whole, monkeypatch):
  use_devices(monkeypatch, 1)
  written = (whole[1] / "export" / "model.safetensors").stat().st_mtime_ns
  model = train.train(make_config(folder), workdir=whole[1])
  after = (whole[1] / "export" / "model.safetensors").stat().st_mtime_ns
  assert after == written
  np.testing.assert_array_equal(
    values(model)["embedding"], values(whole[0])["embedding"]
  )


def test_other_settings_are_refused_by_name(folder, whole, monkeypatch):
  use_devices(monkeypatch, 1)
  config = make_config(folder, loss__gamma=4.0, data__seed=1)
  with pytest.raises(
    ValueError, match=r"data.seed was 0 and is 1; loss.gamma was 5.0 and is 4"
  ):
    train.train(config, workdir=whole[1])


def test_the_layout_of_the_computation_may_change(folder, whole, monkeypatch):
  use_devices(monkeypatch, 1)
  config = make_config(folder, optimizer__accumulate=2, loss__chunk=32)
  train.train(config, workdir=whole[1])


def test_the_export_is_the_trained_model(whole, mesh):
  """Case G6's other half: our reader gives the parameters back bit by bit."""
  model = loading.load_model(
    whole[1] / "export", mesh=mesh, dtype=jax.numpy.float32
  )
  assert values(model).keys() == values(whole[0]).keys()
  for name, array in values(model).items():
    np.testing.assert_array_equal(array, values(whole[0])[name], err_msg=name)
  assert model.tokenizer is not None


def test_an_extended_table_is_in_the_export(folder, tmp_path, monkeypatch):
  use_devices(monkeypatch, 1)
  config = make_config(
    folder,
    model__rope__rope_type="linear",
    model__rope__factor=2.0,
    model__rope__max_position=8192,
    optimizer__steps=2,
    optimizer__warmup_steps=1,
  )
  model = train.train(config, workdir=tmp_path)
  stated = json.loads((tmp_path / "export" / "config.json").read_text())
  assert stated["rope_scaling"]["factor"] == 2.0
  assert stated["max_position_embeddings"] == 8192
  assert model.config.describe_rope() == "linear(theta 10000, factor 2)"


def fail_to_step(*arguments, **options):
  raise AssertionError("a step was made")


@pytest.mark.parametrize(
  ("fields", "message"),
  [
    ({"checkpoint__export_dtype": "int8"}, "int8"),
    ({"data__seq_len": 5000}, "more than the 4096 positions"),
    ({"optimizer__accumulate": 3}, "accumulate must divide batch_size=8"),
    ({"data__epochs": 1}, r"epochs=1 are \d steps of the 12"),
    ({"eval__every": 2}, "needs eval.key_tokens"),
    ({"loss__weights": "stored"}, "come from the key tokens"),
    ({"optimizer__schedule": "cosin"}, "not one of constant"),
  ],
)
def test_a_run_that_would_fail_fails_at_once(
  folder, tmp_path, monkeypatch, fields, message
):
  """Case G6: what the end needs is tried before the first step."""
  use_devices(monkeypatch, 1)
  monkeypatch.setattr(program, "compile_step", fail_to_step)
  with pytest.raises((ValueError, TypeError), match=message):
    train.train(make_config(folder, **fields), workdir=tmp_path)


@pytest.mark.parametrize(
  ("source", "message"),
  [
    ("tfds:pg19/train", "not prepared .*python scripts/data.py pg19"),
    ("nothing/*.txt", "matches no file"),
  ],
)
def test_data_that_is_missing_is_said_before_weights_are_read(
  folder, tmp_path, monkeypatch, source, message
):
  loaded = tiny_runs.count_loads(monkeypatch)
  config = make_config(folder, data__sources=(source,))
  with pytest.raises(FileNotFoundError, match=message):
    train.train(config, workdir=tmp_path)
  assert not loaded


def test_the_export_is_rehearsed(folder, tmp_path, monkeypatch):
  """Case G6: a folder in the way, found before the first step."""
  use_devices(monkeypatch, 1)
  monkeypatch.setattr(program, "compile_step", fail_to_step)
  (tmp_path / "export").mkdir()
  (tmp_path / "export" / "mine.txt").write_text("keep")
  with pytest.raises(FileExistsError, match="export exists"):
    train.train(make_config(folder), workdir=tmp_path)


def test_the_export_does_not_depend_on_the_hub(folder, tmp_path, monkeypatch):
  """Which may be gone, or hold something newer, when a long run ends."""
  use_devices(monkeypatch, 1)
  loop = train._loop

  def refuse(name, **options):
    raise FileNotFoundError(name)

  def then_offline(*arguments):
    loop(*arguments)
    monkeypatch.setattr(hub, "resolve", refuse)

  monkeypatch.setattr(train, "_loop", then_offline)
  train.train(make_config(folder), workdir=tmp_path)
  assert (tmp_path / "export" / "tokenizer.json").is_file()


def test_a_loss_that_is_not_finite_stops_the_run(folder, tmp_path, monkeypatch):
  """The step is named and the last good checkpoint stays."""
  use_devices(monkeypatch, 1)
  make = step_lib.make_train_step

  def make_bad(*arguments, **options):
    step = make(*arguments, **options)

    def bad(state, batch):
      after, sums = step(state, batch)
      nan = jax.numpy.where(state.step == 6, jax.numpy.nan, 0.0)
      return after, sums | {"weighted_nll": sums["weighted_nll"] + nan}

    return bad

  monkeypatch.setattr(step_lib, "make_train_step", make_bad)
  config = make_config(folder, eval__log_every=3)
  with pytest.raises(metrics_lib.Diverged, match=r"at step 7 \(steps 5 to 7"):
    train.train(config, workdir=tmp_path)
  steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
  assert steps == ["4"]
  assert not (tmp_path / "export").exists()


@pytest.fixture(scope="module")
def held_out(folder):
  """(workdir, file) of documents that an evaluator scored."""
  texts = tiny_runs.make_texts(2)
  path = tiny_runs.write_jsonl(folder / "held_out.jsonl", texts)
  tiny_runs.save_models(folder, ["evaluator3"])
  config = tiny_runs.make_config(
    data__sources=(path,), evaluator=str(folder / "evaluator3")
  )
  with pytest.MonkeyPatch.context() as patch:
    use_devices(patch, 1)
    run_lib.score_corpus(config, workdir=folder / "keys")
  return folder / "keys", path


def test_evaluation_in_training_is_that_of_the_export(
  folder, held_out, tmp_path, monkeypatch
):
  use_devices(monkeypatch, 1)
  keys, documents = held_out
  config = make_config(
    folder,
    optimizer__steps=4,
    eval__every=3,
    eval__key_tokens=str(keys),
    eval__sources=(documents,),
    eval__alpha=tiny_runs.ALPHA,
    eval__beta=tiny_runs.BETA,
  )
  train.train(config, workdir=tmp_path / "run")
  rows = [
    row for row in metrics.read_metrics(tmp_path / "run") if "eval_ppl" in row
  ]
  assert [row["step"] for row in rows] == [0, 3, 4]
  assert len({row["eval_longppl"] for row in rows}) == 3
  (result,) = run.evaluate(
    tiny_runs.make_config(
      models=(str(tmp_path / "run" / "export"),),
      key_tokens=str(keys),
      data__sources=(documents,),
    ),
    workdir=tmp_path / "eval",
  )
  assert result.ppl == pytest.approx(rows[-1]["eval_ppl"], rel=1e-6)
  assert result.longppl == pytest.approx(rows[-1]["eval_longppl"], rel=1e-6)
  assert result.n_key_tokens == rows[-1]["eval_key_tokens"] > 0


def test_stored_weights_come_from_a_scored_workdir(
  folder, tmp_path, monkeypatch
):
  use_devices(monkeypatch, 1)
  text = str(folder / "text.txt")
  scored = tiny_runs.make_config(
    data__sources=(text,),
    data__chunk_len=96,
    evaluator=str(folder / "model"),
  )
  store = run_lib.score_corpus(scored, workdir=tmp_path / "keys")
  share = sum(row.key_mask.sum() for row in store) / sum(
    len(row.key_mask) for row in store
  )
  config = make_config(
    folder,
    optimizer__steps=13,
    data__key_tokens=str(tmp_path / "keys"),
    loss__weights="stored",
    loss__alpha=tiny_runs.ALPHA,
    loss__beta=tiny_runs.BETA,
  )
  train.train(config, workdir=tmp_path / "run")
  rows = metrics.read_metrics(tmp_path / "run")
  found = np.mean([row["key_share"] for row in rows])
  assert found == pytest.approx(share, rel=0.2) and share > 0
  for row in rows:
    assert row["mean_weight"] == pytest.approx(1 + 4 * row["key_share"])
