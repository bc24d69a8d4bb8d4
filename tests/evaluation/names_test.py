"""Names of models: stated, or from their paths."""

import pytest

from longctx_jax.evaluation import names


@pytest.mark.parametrize(
  ("word", "name", "path"),
  [
    ("runs/a/export", "a", "runs/a/export"),
    ("runs/lr1/checkpoint-500", "lr1--checkpoint-500", None),
    ("runs/lr1/checkpoints/100", "lr1--100", None),
    ("runs/a/model.gguf", "model.gguf", None),
    ("Qwen/Qwen3-8B", "Qwen--Qwen3-8B", None),
    ("./Qwen3-8B", "Qwen3-8B", None),
    ("base=Qwen/Qwen3-8B", "base", "Qwen/Qwen3-8B"),
    ("a.1=/x/y=z", "a.1", "/x/y=z"),
  ],
)
def test_a_name_tells_runs_apart(word, name, path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert names.read([word]) == {name: path or word}


def test_hub_ids_and_paths_have_names_without_a_slash(tmp_path):
  (tmp_path / "x").mkdir()
  paths = ["Qwen/Qwen3-8B", f"{tmp_path}/x/", "runs/a/model.gguf"]
  assert list(names.read(paths)) == ["Qwen--Qwen3-8B", "x", "model.gguf"]


def test_rounded_weights_have_a_row_beside_the_stored():
  words = ["runs/a/export", "mine=runs/b/export"]
  # A stated name stays what it is.
  assert list(names.read(words, form="int8")) == ["a-int8", "mine"]


def test_two_finetuned_runs_are_compared_in_one_command():
  assert names.read(["runs/a/export", "runs/b/export"]) == {
    "a": "runs/a/export",
    "b": "runs/b/export",
  }


def test_a_file_that_is_there_is_no_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a=b").mkdir()
  assert names.read(["a=b"]) == {"a=b": "a=b"}


def test_the_folder_one_is_in_has_a_name(tmp_path, monkeypatch):
  (tmp_path / "x" / "y").mkdir(parents=True)
  monkeypatch.chdir(tmp_path / "x")
  assert list(names.read([".", "y/../.."])) == ["x", tmp_path.name]
  with pytest.raises(ValueError, match="--model / has no name"):
    names.read(["/"])


def test_two_of_one_name_say_how_to_name_them():
  with pytest.raises(ValueError, match="called 'a', .*write --model NAME=q/a/"):
    names.read(["p/a/export", "q/a/export"])
