"""Places with a scheme: read through a package, never written."""

import pathlib

import fsspec
import pytest
from support.checks import refuses

from longctx_jax.runtime import urls


@pytest.mark.parametrize("place", ["gs://b/k", "file:///a", "S3A://x"])
def test_nothing_is_written_to_a_url(place):
  with refuses(f"--workdir {place} is a URL: .* local or mounted"):
    urls.require_local(place, flag="workdir")


@pytest.mark.parametrize("place", ["", "a", "/a/b", "c:/a", "a:b", "tfds:x/y"])
def test_paths_are_local(place):
  urls.require_local(place, flag="workdir")
  assert urls.scheme(place) == ""


def test_errors_of_a_path_stay_what_they_are(tmp_path):
  with refuses("reason", KeyError), urls.reaching(tmp_path):
    raise KeyError("reason")
  with refuses("gs://b can't be read: KeyError: 'reason'. Check", OSError):
    with urls.reaching("gs://b"):
      raise KeyError("reason")
  with refuses("no file", FileNotFoundError), urls.reaching("gs://b"):
    raise FileNotFoundError("no file")


@pytest.fixture
def remote(monkeypatch, tmp_path):
  """A file system in memory, and a folder of copies."""
  monkeypatch.setattr(urls, "_COPIES", str(tmp_path / "copies"))
  fs = fsspec.filesystem("memory")
  fs.store.clear()
  for name in ("w/a/1.parquet", "w/a/2.parquet", "w/a.json", "w/other.bin"):
    fs.pipe_file(f"/{name}", name.encode())
  yield fs
  fs.store.clear()


def names(folder):
  return sorted(
    str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()
  )


def test_a_path_is_its_own_copy(tmp_path):
  assert urls.fetched(str(tmp_path)) == tmp_path
  assert urls.fetched("not/there") == pathlib.Path("not/there")


def test_what_is_wanted_of_a_folder_is_copied_once(remote, monkeypatch):
  wanted = ("a/*.parquet", "a.json")
  copy = urls.fetched("memory://w", files=wanted)
  assert names(copy) == ["a.json", "a/1.parquet", "a/2.parquet"]
  assert (copy / "a" / "2.parquet").read_text() == "w/a/2.parquet"
  assert copy.name == "w"
  assert len(names(urls.fetched("memory://w"))) == 4
  monkeypatch.setattr(urls, "_copy", None)
  assert urls.fetched("memory://w/", files=wanted).exists()


def test_a_file_is_copied_under_its_name(remote):
  copy = urls.fetched("memory://w/a.json")
  assert copy.name == "a.json" and copy.read_text() == "w/a.json"


def test_what_changed_is_copied_anew(remote):
  before = urls.fetched("memory://w/a.json")
  remote.pipe_file("/w/a.json", b"longer than before")
  after = urls.fetched("memory://w/a.json")
  assert after != before and after.read_text() == "longer than before"


def test_a_copy_that_breaks_off_is_none(remote, monkeypatch, tmp_path):
  get_file = type(remote).get_file

  def breaks(self, path, target, **_):
    if path.endswith("2.parquet"):
      raise ConnectionError("cut")
    get_file(self, path, target)

  with monkeypatch.context() as patch:
    patch.setattr(type(remote), "get_file", breaks)
    with refuses("memory://w can't be read: ConnectionError: cut", OSError):
      urls.fetched("memory://w")
  assert list((tmp_path / "copies").iterdir()) == []
  assert len(names(urls.fetched("memory://w"))) == 4


def test_a_place_that_is_not_there_is_named(remote):
  with refuses("memory://nothing does not exist: check", FileNotFoundError):
    urls.fetched("memory://nothing")
  with refuses("memory://w holds no x/\\*: check", FileNotFoundError):
    urls.fetched("memory://w", files=("x/*",))
