"""The files of a tokenizer, and which of them hold the vocabulary."""

from __future__ import annotations

import pathlib
from importlib.util import find_spec

import tokenizers
from absl import logging

from longctx_jax.runtime import foreign_files

# One of these is a tokenizer; by the strength of what it states.
VOCABULARIES = (
  "tokenizer.json",
  "tokenizer.model",
  "vocab.json",
  "vocab.txt",
  "spiece.model",
  "tekken.json",
  "*.tiktoken",
)
# What else reads a vocabulary, where there is no tokenizer.json: its module,
# and the package that brings it.
_READERS = {
  "tokenizer.model": ("sentencepiece", "sentencepiece"),
  "spiece.model": ("sentencepiece", "sentencepiece"),
  "tekken.json": ("mistral_common", "mistral-common"),
  ".tiktoken": ("tiktoken", "tiktoken"),
}
# All that may go with it, too.
PATTERNS = (
  *VOCABULARIES,
  "tokenizer*",
  "vocab*",
  "merges.txt",
  "special_tokens_map.json",
  "added_tokens.json",
  "chat_template*",
  "tokenization_*.py",
)


def find(
  folder: pathlib.Path, patterns: tuple[str, ...] = PATTERNS
) -> list[pathlib.Path]:
  """The files of a folder's tokenizer, each once, in the order of patterns."""
  found = (path for name in patterns for path in sorted(folder.glob(name)))
  return [path for path in dict.fromkeys(found) if path.is_file()]


def vocabularies(folder: pathlib.Path) -> list[pathlib.Path]:
  """The files that hold a vocabulary; none: the folder has no tokenizer."""
  return find(folder, VOCABULARIES)


def read(path: pathlib.Path) -> tokenizers.Tokenizer:
  """The tokenizer of a tokenizer.json.

  Raises:
    ValueError: for a damaged file, or a pointer in place of it.
  """
  foreign_files.require_content(path)
  try:
    return tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # The library raises nothing narrower.
    raise ValueError(f"{path} cannot be read: {error}") from error


def require_reader(folder: pathlib.Path) -> None:
  """Checks that something installed reads a folder without tokenizer.json.

  Raises:
    FileNotFoundError: naming the files of which none is there.
    ValueError: naming the file that is there and the package that reads it.
  """
  found = vocabularies(folder)
  if not found:
    raise FileNotFoundError(
      f"{folder} holds no tokenizer: none of {', '.join(VOCABULARIES)} is "
      "there; copy them from the model's repository"
    )
  readers = [
    (path.name, *_READERS[name])
    for path in found
    for name in (path.name, path.suffix)
    if name in _READERS
  ]
  lacking = [reader for reader in readers if find_spec(reader[1]) is None]
  if readers and len(lacking) == len(readers) == len(found):
    file, _, package = lacking[0]
    raise ValueError(
      f"{folder} holds no tokenizer.json, and {file} is read by a package that "
      f"is not installed: pip install {package}, or copy the tokenizer.json "
      "of the model"
    )


def compare_bos(folder: pathlib.Path, added: str) -> None:
  """Says where tokenizer_config.json and the post-processor disagree.

  Args:
    folder: of the tokenizer.
    added: the BOS that the post-processor puts first; "" is none.

  Raises:
    ValueError: for a tokenizer_config.json that cannot be read.
  """
  path = folder / "tokenizer_config.json"
  fields = foreign_files.read_json(path) if path.is_file() else {}
  stated = fields.get("add_bos_token")
  if stated is None or bool(stated) == bool(added):
    return
  if added or fields.get("bos_token"):
    logging.warning(
      "%s says add_bos_token=%s, and the post-processor of tokenizer.json adds "
      "%s: it is followed, as transformers 5 does. For the other, change its "
      "post_processor",
      path,
      str(bool(stated)).lower(),
      repr(added) if added else "no BOS",
    )
