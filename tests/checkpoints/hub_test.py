"""Hub ids, with a hub that is faked."""

import threading
import time
import types

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from longctx_jax.checkpoints import hub, loading


def refusal(kind, status):
  response = types.SimpleNamespace(status_code=status, headers={}, request=None)
  return kind("no", response=response)


def answer(monkeypatch, result):
  def model_info(self, name, *, revision, timeout):
    if isinstance(result, Exception):
      raise result
    return result

  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


@pytest.fixture
def cache(tmp_path, monkeypatch):
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
  return tmp_path


def test_a_missing_one_says_what_to_copy_where(cache, tmp_path):
  """Cases L1: offline."""
  start = time.monotonic()
  with pytest.raises(FileNotFoundError, match="Copy its config.json") as caught:
    loading.load_model("nobody/nothing")
  assert time.monotonic() - start < 5
  assert str(cache) in str(caught.value)
  with pytest.raises(FileNotFoundError, match="no such file or folder"):
    loading.load_model(tmp_path / "absent")
  with pytest.raises(FileNotFoundError, match="no such file or folder"):
    loading.load_model("a/b.gguf")
  (tmp_path / "empty").mkdir()
  with pytest.raises(FileNotFoundError, match="no config.json"):
    loading.load_model(tmp_path / "empty")


def test_a_hub_that_never_answers_is_not_waited_for(cache, monkeypatch):
  """Cases L1: a look-up that hangs, as behind a firewall."""
  assert hub._ASK_SECONDS + 1 < 5
  monkeypatch.setattr(hub, "_ASK_SECONDS", -0.9)
  released = threading.Event()

  def hang(self, name, *, revision, timeout):
    released.wait(60)
    raise OSError

  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", hang)
  start = time.monotonic()
  with pytest.raises(FileNotFoundError, match=r"not answer \(TimeoutError\)"):
    hub.resolve("nobody/nothing")
  released.set()
  assert time.monotonic() - start < 3


@pytest.mark.parametrize(
  "kind,status,message",
  [
    (errors.GatedRepoError, 403, "a/b is gated: accept its licence.*log in"),
    (errors.GatedRepoError, 401, "path of a folder.*--keys slices:FOLDER"),
    (
      errors.RepositoryNotFoundError,
      401,
      r"refuses a/b \(401\): it is gated, private, or does not exist.*log in",
    ),
    (errors.RepositoryNotFoundError, 404, "no such model or data set"),
  ],
)
def test_a_refusal_says_what_to_do(cache, monkeypatch, kind, status, message):
  answer(monkeypatch, refusal(kind, status))
  with pytest.raises(FileNotFoundError, match=message):
    hub.resolve("a/b")


def test_a_refused_download_says_what_to_do(cache, monkeypatch):
  # The page of a gated model is public; its files are not.
  info = huggingface_hub.ModelInfo(id="a/b", sha="c" * 40)
  answer(monkeypatch, info)

  def download(name, *, revision, **_):
    assert revision == "c" * 40
    raise refusal(errors.GatedRepoError, 403)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
  with pytest.raises(FileNotFoundError, match="a/b is gated"):
    hub.resolve("a/b")


def test_a_revision_is_pinned_by_its_name(cache, monkeypatch, tmp_path):
  """A branch, a tag or a commit; without one, what the hub says is newest."""
  commits = {None: "c" * 40, "v1": "d" * 40, "e" * 40: "e" * 40}
  asked = []

  def model_info(self, name, *, revision, timeout):
    assert name == "a/b"
    return huggingface_hub.ModelInfo(id=name, sha=commits[revision])

  def download(name, *, revision, local_files_only, **_):
    assert name == "a/b" and not local_files_only
    asked.append(revision)
    return str(tmp_path / revision)

  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
  monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
  for revision, commit in commits.items():
    name = f"a/b@{revision}" if revision else "a/b"
    assert hub.resolve(name) == (tmp_path / commit, commit)
  assert asked == list(commits.values())


def test_the_cache_serves_a_pinned_commit_where_the_hub_does_not_answer(cache):
  commits = ["0" * 40, "1" * 40]
  for commit in commits:
    folder = cache / "models--a--b" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
  path, revision = hub.resolve(f"a/b@{commits[0]}")
  assert path.name == revision == commits[0]


def test_what_is_not_needed_is_not_downloaded(cache, monkeypatch, tmp_path):
  """Tokenizers come without weights; no weights come twice."""
  files = [
    "config.json", "model.safetensors", "tokenizer.model", "pytorch_model.bin",
    "consolidated.safetensors", "original/params.json", "onnx/model.json",
  ]  # fmt: skip
  answer(monkeypatch, huggingface_hub.ModelInfo(id="a/b", sha="c" * 40))
  taken = []

  def download(name, *, allow_patterns, ignore_patterns, **_):
    taken[:] = huggingface_hub.utils.filter_repo_objects(
      files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
    )
    return str(tmp_path)

  monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
  hub.resolve("a/b")
  assert taken == ["config.json", "model.safetensors", "tokenizer.model"]
  with pytest.raises(Exception):  # noqa: B017, PT011  an empty folder
    loading.load_tokenizer("a/b")
  assert taken == ["config.json", "tokenizer.model"]


def test_the_cache_serves_where_the_hub_does_not_answer(cache, monkeypatch):
  """Cases L1: and the commit is known."""
  commit = "0123456789abcdef0123456789abcdef01234567"
  root = cache / "models--a--b"
  (root / "snapshots" / commit).mkdir(parents=True)
  (root / "snapshots" / commit / "config.json").write_text("{}")
  (root / "refs").mkdir()
  (root / "refs" / "main").write_text(commit)
  path, revision = hub.resolve("a/b")
  assert path == root / "snapshots" / commit and revision == commit


def test_only_weights_that_are_not_here_are_to_come(
  cache, monkeypatch, tmp_path
):
  sizes = {
    "config.json": 7, "a.safetensors": 100, "b.safetensors": 20,
    "consolidated.safetensors": 5000, "original/c.safetensors": 6000,
  }  # fmt: skip
  info = huggingface_hub.ModelInfo(
    id="a/b",
    sha="c" * 40,
    siblings=[dict(rfilename=name, size=size) for name, size in sizes.items()],
  )
  asked = []

  def model_info(self, name, *, revision, timeout, files_metadata):
    asked.append((name, revision))
    return info

  monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
  assert hub.missing_bytes("a/b@v1") == 120 and asked == [("a/b", "v1")]
  folder = cache / "models--a--b" / "snapshots" / ("c" * 40)
  folder.mkdir(parents=True)
  (folder / "a.safetensors").write_text("")
  find = huggingface_hub.try_to_load_from_cache
  monkeypatch.setattr(
    huggingface_hub,
    "try_to_load_from_cache",
    lambda *names, **options: find(*names, cache_dir=cache, **options),
  )
  assert hub.missing_bytes("a/b") == 20
  assert hub.missing_bytes(str(tmp_path)) == 0


def test_of_a_hub_that_does_not_answer_nothing_is_to_come(cache):
  assert hub.missing_bytes("nobody/nothing") == 0


def test_a_data_set_that_can_not_be_had_says_why(monkeypatch):
  def dataset_info(self, name, **_):
    raise errors_of[name]

  errors_of = {
    "a/gone": refusal(errors.RepositoryNotFoundError, 404),
    "a/private": refusal(errors.RepositoryNotFoundError, 401),
    "a/mute": OSError("no route"),
  }
  monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
  for name, message in (
    ("a/gone", "no such model or data set"),
    ("a/private", r"refuses a/private \(401\).*log in"),
    ("a/mute", r"does not answer \(OSError\).*HF_ENDPOINT"),
  ):
    with pytest.raises(FileNotFoundError, match=message):
      hub.list_data(name)


def test_a_token_that_is_wrong_is_a_refusal(cache, monkeypatch):
  """And not a hub that is silent."""
  answer(monkeypatch, refusal(errors.HfHubHTTPError, 401))
  with pytest.raises(FileNotFoundError, match=r"refuses a/b \(401\)"):
    hub.resolve("a/b")
