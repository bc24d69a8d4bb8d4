"""What a run leaves in its folder, and what goes when it starts anew."""

import pytest

from longctx_jax.runtime import files
from longctx_jax.training import workdir as workdir_lib

STEPS = (4, 12, 8)


@pytest.fixture
def workdir(tmp_path):
  """Of a run, with tokens and a file that are not the run's."""
  for step in STEPS:
    (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
  for name in ("export", "model", "tensorboard", "tokens"):
    (tmp_path / name).mkdir()
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
  (tmp_path / "mine.txt").write_text("keep")
  return tmp_path


def test_all_that_goes_is_named_and_nothing_else_goes(workdir, caplog):
  said = (
    "checkpoints (steps 4, 8, 12), export, model, tensorboard, "
    "metrics.jsonl (2 rows)"
  )
  assert workdir_lib.describe(workdir) == said
  workdir_lib.clear(workdir)
  assert said in caplog.text
  assert {path.name for path in workdir.iterdir()} == {"tokens", "mine.txt"}
  assert workdir_lib.describe(workdir) == ""
  caplog.clear()
  workdir_lib.clear(workdir)
  assert not caplog.text


def test_an_export_is_set_aside_and_none_is_lost(workdir):
  for n in range(3):
    (workdir / "export").mkdir(exist_ok=True)
    (workdir / "export" / "n").write_text(str(n))
    workdir_lib.set_export_aside(workdir, 12)
  workdir_lib.set_export_aside(workdir, 12)  # There is none.
  kept = {path.name: (path / "n").read_text() for path in workdir.glob("exp*")}
  assert kept == {"export_12": "0", "export_12.2": "1", "export_12.3": "2"}


def test_one_run_at_a_time(tmp_path):
  with workdir_lib.locked(tmp_path):
    with (
      pytest.raises(files.InUse, match="training in"),
      workdir_lib.locked(tmp_path),
    ):
      pass
  with workdir_lib.locked(tmp_path):
    pass
