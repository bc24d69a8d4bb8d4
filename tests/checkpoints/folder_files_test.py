"""A folder appears when all of it is written, and takes no other's place."""

import pytest

from longctx_jax.checkpoints import folder_files


def test_a_folder_appears_whole(tmp_path):
  folder = tmp_path / "deep" / "export"
  with folder_files.new_folder(folder) as part:
    (part / "config.json").write_text("{}")
    assert not folder.exists()
  assert [path.name for path in folder.iterdir()] == ["config.json"]
  assert [path.name for path in folder.parent.iterdir()] == ["export"]


def test_a_failure_leaves_nothing(tmp_path):
  with pytest.raises(KeyError), folder_files.new_folder(tmp_path / "e") as part:
    (part / "half").touch()
    raise KeyError
  assert not list(tmp_path.iterdir())


def test_what_is_there_stays(tmp_path):
  folder = tmp_path / "export"
  folder.mkdir()
  folder_files.require_free(folder)
  (folder / "mine").touch()
  with pytest.raises(FileExistsError, match="export exists"):
    with folder_files.new_folder(folder):
      pass
  assert (folder / "mine").exists()
