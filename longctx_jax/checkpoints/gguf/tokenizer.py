"""The tokenizer inside a GGUF file."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import tokenizers
from absl import logging
from gguf.constants import TokenType
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from longctx_jax.checkpoints.gguf.facts import Fields
from longctx_jax.checkpoints.gguf.tensors import GgufSource
from longctx_jax.text import tokenizer_files

_PREFIX = "tokenizer.ggml."
# How Llama 3 and Qwen 2 split words; they differ in the length of numbers.
_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)


_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


_PRE_TOKENIZERS = {
  "smollm": [pre_tokenizers.Digits(individual_digits=True), _GPT2],
  "llama-bpe": [
    pre_tokenizers.Split(tokenizers.Regex(_WORDS % "{1,3}"), "isolated"),
    _BYTES,
  ],
  "qwen2": [
    pre_tokenizers.Split(tokenizers.Regex(_WORDS % ""), "isolated"),
    _BYTES,
  ],
  "gpt-2": [_GPT2],
  "default": [_GPT2],
}


def load_tokenizer(source: GgufSource) -> tokenizers.Tokenizer:
  """The tokenizer inside a GGUF file.

  Raises:
    ValueError: naming the tokenizer model or pre-tokenizer, where it cannot be
      rebuilt faithfully.
  """
  fields = _fields(source)
  try:
    tokens = _need(fields, "tokens")
    match _need(fields, "model"):
      case "gpt2":
        tokenizer = _byte_level(fields, tokens)
      case "llama":
        tokenizer = _sentencepiece(fields, tokens)
      case model:
        raise ValueError(
          f"tokenizer model {model!r} is not supported (supported: gpt2, llama)"
        )
    _add_specials(tokenizer, fields, tokens)
  except ValueError as error:
    raise ValueError(
      f"{source.path}: {error}. Put tokenizer.json, one of the model's "
      "tokenizer files, beside it"
    ) from error
  return tokenizer


def find_tokenizer(source: GgufSource) -> tokenizers.Tokenizer:
  """The tokenizer inside a GGUF file, else the tokenizer.json beside it.

  Raises:
    ValueError: where the first cannot be rebuilt faithfully, and there is none
      beside it or one of another vocabulary.
  """
  try:
    return load_tokenizer(source)
  except ValueError as error:
    path = pathlib.Path(source.path).with_name("tokenizer.json")
    if not path.is_file():
      raise
    beside = tokenizer_files.read(path)
    for i, token in enumerate(_need(_fields(source), "tokens")):
      # Rows that pad the embedding have a name in one of the two alone.
      if beside.id_to_token(i) not in (token, None):
        raise ValueError(
          f"{path} is not the tokenizer of {source.path}: id {i} is "
          f"{beside.id_to_token(i)!r} there and {token!r} in the file"
        ) from error
    logging.warning("%s: its tokenizer is read from %s", source.path, path)
    return beside


def save_tokenizer(source: GgufSource, folder: pathlib.Path) -> None:
  """Writes the tokenizer as the files that transformers' AutoTokenizer reads.

  Raises:
    ValueError: see `find_tokenizer`.
  """
  find_tokenizer(source).save(str(folder / "tokenizer.json"))
  fields, settings = _fields(source), {}
  for name in ("bos", "eos", "unknown", "padding"):
    number = fields.get(f"{name}_token_id")
    if number is not None:
      short = {"unknown": "unk", "padding": "pad"}.get(name, name)
      settings[f"{short}_token"] = fields["tokens"][number]
  if "tokenizer.chat_template" in source.fields:
    settings["chat_template"] = source.fields["tokenizer.chat_template"]
  (folder / "tokenizer_config.json").write_text(
    json.dumps(
      settings
      | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
      },
      indent=2,
    )
  )


def _fields(source: GgufSource) -> dict[str, Any]:
  return {
    key.removeprefix(_PREFIX): value
    for key, value in source.fields.items()
    if key.startswith(_PREFIX)
  }


def _need(fields: Fields, key: str) -> Any:
  if key not in fields:
    raise ValueError(f"{key} is missing")
  return fields[key]


def _byte_level(fields: Fields, tokens: list[str]) -> tokenizers.Tokenizer:
  """GPT-2's kind of BPE."""
  pre = fields.get("pre")
  if pre not in _PRE_TOKENIZERS:
    raise ValueError(
      f"pre-tokenizer {pre!r} is not supported (supported: "
      f"{', '.join(_PRE_TOKENIZERS)})"
    )
  if pre == "default":
    logging.warning("the file records no pre-tokenizer: GPT-2's is assumed")
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)},
      merges=[tuple(pair.split(" ")) for pair in _need(fields, "merges")],
      ignore_merges=pre == "llama-bpe",
    )
  )
  if pre == "qwen2":
    tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre])
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _sentencepiece(fields: Fields, tokens: list[str]) -> tokenizers.Tokenizer:
  """SentencePiece's BPE: the pair of the best-scored result merges first."""
  kinds, scores = _need(fields, "token_type"), _need(fields, "scores")
  normal = np.flatnonzero(kinds == TokenType.NORMAL)
  if (scores[normal] % 1).any():
    raise ValueError("the scores are those of a unigram model")
  for key in ("remove_extra_whitespaces", "precompiled_charsmap"):
    if np.any(fields.get(key)):
      raise ValueError(f"tokenizer.ggml.{key} is not supported")
  vocab = {token: i for i, token in enumerate(tokens)}
  mergeable = {tokens[i]: scores[i] for i in normal}
  merges = [
    (-score, vocab[piece[:i]], vocab[piece[i:]])
    for piece, score in mergeable.items()
    for i in range(1, len(piece))
    if piece[:i] in mergeable and piece[i:] in mergeable
  ]
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      vocab=vocab,
      merges=[(tokens[a], tokens[b]) for _, a, b in sorted(merges)],
      unk_token=tokens[_need(fields, "unknown_token_id")],
      fuse_unk=True,
      byte_fallback=True,
    )
  )
  spaces = [normalizers.Replace(" ", "\u2581")]
  decoding = [
    decoders.Replace("\u2581", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if fields.get("add_space_prefix") is not False:
    spaces.insert(0, normalizers.Prepend("\u2581"))
    decoding.append(decoders.Strip(" ", 1, 0))
  tokenizer.normalizer = normalizers.Sequence(spaces)
  tokenizer.decoder = decoders.Sequence(decoding)
  return tokenizer


def _add_specials(
  tokenizer: tokenizers.Tokenizer, fields: Fields, tokens: list[str]
) -> None:
  """Registers control and user-defined tokens; puts BOS and EOS as stated."""
  kinds = _need(fields, "token_type")
  special = np.isin(kinds, [TokenType.CONTROL, TokenType.UNKNOWN])
  for i in np.flatnonzero(special | (kinds == TokenType.USER_DEFINED)):
    added = tokenizers.AddedToken(
      tokens[i], special=bool(special[i]), normalized=False
    )
    tokenizer.add_tokens([added])
  if tokenizer.get_vocab_size() != len(tokens):
    raise ValueError("some tokens occur twice")
  add_bos = fields.get("add_bos_token")
  if add_bos is None:  # What llama.cpp does where the file says nothing.
    add_bos = fields["model"] == "llama" or fields["pre"] == "llama-bpe"
  bos = [_need(fields, "bos_token_id")] if add_bos else []
  eos = [_need(fields, "eos_token_id")] if fields.get("add_eos_token") else []
  if bos or eos:
    tokenizer.post_processor = processors.TemplateProcessing(
      single=[*(tokens[i] for i in bos), "$A", *(tokens[i] for i in eos)],
      special_tokens=[(tokens[i], i) for i in bos + eos],
    )
