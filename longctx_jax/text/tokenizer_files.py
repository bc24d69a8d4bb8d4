"""The files of a tokenizer, and which of them hold the vocabulary."""

from __future__ import annotations

import pathlib

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
