"""Which files of a folder are its tokenizer."""

import pytest

from longctx_jax.text import tokenizer_files


@pytest.fixture
def folder(tmp_path):
  names = (
    "config.json", "model.safetensors", "vocab.json", "merges.txt",
    "tokenizer.json", "tokenizer_config.json", "qwen.tiktoken",
  )  # fmt: skip
  for name in names:
    (tmp_path / name).touch()
  (tmp_path / "tokenizer").mkdir()
  return tmp_path


def test_the_strongest_vocabulary_comes_first(folder):
  found = [path.name for path in tokenizer_files.vocabularies(folder)]
  assert found == ["tokenizer.json", "vocab.json", "qwen.tiktoken"]


def test_each_file_is_found_once_and_no_folder(folder):
  found = [path.name for path in tokenizer_files.find(folder)]
  assert sorted(found) == [
    "merges.txt", "qwen.tiktoken", "tokenizer.json", "tokenizer_config.json",
    "vocab.json",
  ]  # fmt: skip


def test_a_folder_of_weights_has_no_tokenizer(tmp_path):
  (tmp_path / "model.safetensors").touch()
  assert tokenizer_files.vocabularies(tmp_path) == []
