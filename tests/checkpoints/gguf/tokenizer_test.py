"""The tokenizers of GGUF files written here, and of SmolLM2."""

import functools
import itertools
import json
import tempfile
import time

import gguf
import hypothesis
import numpy as np
import pytest
from absl import logging
from hypothesis import strategies as st
from support import gguf_files
from support.checks import refuses
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from longctx_jax.checkpoints import loading
from longctx_jax.checkpoints.gguf import tokenizer as tokenizer_lib
from longctx_jax.checkpoints.gguf.tensors import GgufSource
from longctx_jax.checkpoints.gguf.tokenizer import load_tokenizer
from longctx_jax.text.tokenizer import TextTokenizer

SPECIALS = ["<|bos|>", "<|eos|>", "<tool>"]
SPECIAL_KINDS = [
  gguf.TokenType.CONTROL,
  gguf.TokenType.CONTROL,
  gguf.TokenType.USER_DEFINED,
]


def write_byte_level(path, rng, pre, *, facts=(), words=()):
  """A file with a trained byte-level BPE; returns the path."""
  trained = Tokenizer(models.BPE())
  trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=320,
    special_tokens=SPECIALS,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  trained.train_from_iterator(9 * ["the cat sat on the mat"], trainer)
  vocab = trained.get_vocab()
  tokens = [*sorted(vocab, key=vocab.get), *words]
  kinds = SPECIAL_KINDS + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
  merges = [
    f"{token[:i]} {token[i:]}"
    for token in tokens[3 + 256 :]
    for i in range(1, len(token))
    if token[:i] in vocab and token[i:] in vocab and token not in words
  ]
  facts = [
    ("add_tokenizer_model", "gpt2"),
    ("add_tokenizer_pre", pre),
    ("add_token_list", tokens),
    ("add_token_types", kinds),
    ("add_token_merges", merges),
    ("add_bos_token_id", 0),
    ("add_eos_token_id", 1),
    *facts,
  ]
  return gguf_files.write(path, gguf_files.hf_weights(rng), facts=facts)


def load(path, name="test"):
  return TextTokenizer(load_tokenizer(GgufSource(path)), name=name)


@pytest.mark.parametrize(
  "pre, splits",
  [
    ("smollm", "I|'|LL| pay| |1|2|3|4|5|\n\n|9|!\n"),
    ("gpt-2", "I|'|LL| pay| 12345|\n|\n|9|!|\n"),
    ("llama-bpe", "I|'LL| pay| |123|45|\n\n|9|!\n"),
    ("qwen2", "I|'LL| pay| |1|2|3|4|5|\n\n|9|!\n"),
  ],
)
def test_each_pre_tokenizer_splits_as_its_model_does(
  tmp_path, rng, pre, splits
):
  if pre == "smollm":
    splits = splits.replace("!\n", "!|\n")
  path = write_byte_level(tmp_path / "m.gguf", rng, pre)
  tokenizer = load_tokenizer(GgufSource(path))
  text = splits.replace("|", "")
  pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
  assert [text[a:b] for _, (a, b) in pieces] == splits.split("|")


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_byte_level_text_survives(tmp_path, rng, pre):
  tokenizer = load(write_byte_level(tmp_path / "m.gguf", rng, pre))
  text = "the cat's 🙂 é\n\n中文 <|eos|> 12 <tool>sat"
  encoding = tokenizer.encode(text, add_special_tokens=False)
  assert tokenizer.decode(encoding.ids) == text
  ids = encoding.ids.tolist()
  assert ids.count(1) == 1 and ids.count(2) == 1
  assert text[slice(*encoding.offsets[ids.index(1)])] == "<|eos|>"


def test_qwen_composes_characters(tmp_path, rng):
  for pre, equal in (("qwen2", True), ("smollm", False)):
    tokenizer = load(write_byte_level(tmp_path / "m.gguf", rng, pre))
    found, composed = (
      tokenizer.encode(text, add_special_tokens=False).ids.tolist()
      for text in ("e\u0301", "\u00e9")
    )
    assert (found == composed) == equal


def test_llama_3_takes_whole_words_from_its_vocabulary(tmp_path, rng):
  for pre, whole in (("llama-bpe", True), ("smollm", False)):
    path = write_byte_level(tmp_path / "m.gguf", rng, pre, words=["xyz"])
    tokenizer = load(path)
    ids = tokenizer.encode("xyz", add_special_tokens=False).ids
    assert (len(ids) == 1) == whole


@pytest.mark.parametrize(
  "pre, facts, expected",
  [
    ("smollm", [], []),
    ("llama-bpe", [], [0]),
    ("llama-bpe", [("add_add_bos_token", False)], []),
    ("smollm", [("add_add_bos_token", True)], [0]),
    (
      "qwen2",
      [("add_add_bos_token", True), ("add_add_eos_token", True)],
      [0, 1],
    ),
  ],
)
def test_bos_and_eos_are_put_as_the_file_says(
  tmp_path, rng, pre, facts, expected
):
  """Cases A11, A12: once, and only where the tokenizer itself does."""
  path = write_byte_level(tmp_path / "m.gguf", rng, pre, facts=facts)
  tokenizer = load(path)
  ids = tokenizer.encode("sat", add_special_tokens=True).ids.tolist()
  bare = tokenizer.encode("sat", add_special_tokens=False).ids.tolist()
  assert ids == expected[:1] + bare + expected[1:]
  assert tokenizer.leading_bos == (0 if expected else None)


def test_an_unrecorded_pre_tokenizer_is_warned_of(tmp_path, rng, monkeypatch):
  said = []
  monkeypatch.setattr(logging, "warning", said.append)
  load(write_byte_level(tmp_path / "m.gguf", rng, "default"))
  assert "GPT-2's is assumed" in said[0]


def test_an_unknown_pre_tokenizer_is_refused(tmp_path, rng):
  path = write_byte_level(tmp_path / "m.gguf", rng, "tekken")
  with refuses("'tekken' is not supported.*smollm.*tokenizer files"):
    load(path)


def test_an_unknown_pre_tokenizer_is_read_from_beside(tmp_path, rng, caplog):
  """Where the vocabulary is the file's own."""
  known = write_byte_level(tmp_path / "known.gguf", rng, "qwen2")
  own = load_tokenizer(GgufSource(known))
  rng = np.random.default_rng(0)
  path = write_byte_level(tmp_path / "m.gguf", rng, "tekken")
  own.save(str(tmp_path / "tokenizer.json"))
  found = loading.load_tokenizer(path)
  text = "the cat's 12345\n"
  ids = found.encode(text, add_special_tokens=False).ids.tolist()
  assert ids == own.encode(text, add_special_tokens=False).ids
  assert "its tokenizer is read from" in caplog.text
  assert loading.load_model(path).tokenizer.fingerprint == found.fingerprint
  facts = json.loads(own.to_str())
  vocab = facts["model"]["vocab"]
  vocab["Ga"], vocab["Gb"] = vocab.pop("a"), vocab.pop("b")
  facts["model"]["merges"] = []
  (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
  with refuses("tokenizer.json is not the tokenizer of .*m.gguf: id .* 'Ga'"):
    loading.load_tokenizer(path)


def test_a_token_that_occurs_twice_is_refused(tmp_path, rng):
  path = write_byte_level(tmp_path / "m.gguf", rng, "gpt-2", words=["a"])
  with refuses("occur twice"):
    load(path)


PIECES = {"▁": -5.0, "a": -6.0, "b": -7.0, "c": -8.0}
PIECES |= {"ab": -2.0, "bc": -1.0, "▁a": -3.0, "abc": -4.0}


def write_sentencepiece(path, rng, *, facts=(), scores=None, **fields):
  pieces = PIECES
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
  kinds = [2, 3, 3] + 256 * [6] + len(pieces) * [1]
  facts = [
    ("add_tokenizer_model", fields.get("model", "llama")),
    ("add_token_list", [*tokens, *pieces]),
    ("add_token_types", kinds),
    ("add_token_scores", 259 * [0.0] + (scores or list(pieces.values()))),
    ("add_bos_token_id", 1),
    ("add_unk_token_id", 0),
    *facts,
  ]
  return gguf_files.write(path, gguf_files.hf_weights(rng), facts=facts)


def test_sentencepiece_merges_the_best_score_first(tmp_path, rng):
  """By hand: bc (-1), then ▁a (-3) before abc (-4); ab only where no bc is."""
  path = write_sentencepiece(tmp_path / "m.gguf", rng)
  tokenizer = load_tokenizer(GgufSource(path))
  assert tokenizer.encode("abc ab").tokens == ["<s>", "▁a", "bc", "▁", "ab"]
  assert tokenizer.encode("ab</s>c").tokens[-3:] == ["</s>", "▁", "c"]
  wrapped = TextTokenizer(tokenizer, name="test")
  assert wrapped.leading_bos == 1
  text = "abc é\n ab🙂"
  encoding = wrapped.encode(text, add_special_tokens=False)
  assert wrapped.align(encoding.ids)[0] == text
  assert encoding.offsets[0].tolist() == [0, 1]
  assert encoding.offsets[-1].tolist() == [len(text) - 1, len(text)]


def merged_by_hand(text, scores):
  """SentencePiece: the pair whose result scores best, the first of equals."""
  pieces = list("▁" + text.replace(" ", "▁"))
  while True:
    pairs = [
      (-scores[a + b], i)
      for i, (a, b) in enumerate(itertools.pairwise(pieces))
      if a + b in scores
    ]
    if not pairs:
      return pieces
    _, i = min(pairs)
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(text=st.text(" abc", min_size=1, max_size=12))
def test_sentencepiece_merges_as_by_hand(text):
  tokenizer = sentencepiece_tokenizer()
  found = tokenizer.encode(text, add_special_tokens=False).tokens
  assert found == merged_by_hand(text, PIECES)


@functools.cache
def sentencepiece_tokenizer():
  with tempfile.TemporaryDirectory() as folder:
    path = write_sentencepiece(f"{folder}/m.gguf", np.random.default_rng(0))
    return load_tokenizer(GgufSource(path))


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_the_tokenizer_can_be_written_as_files(tmp_path, rng, kind):
  """Cases G9: transformers reads them; ids, BOS and template are the same."""
  facts = [("add_chat_template", "{{ messages }}"), ("add_eos_token_id", 2)]
  path = tmp_path / "m.gguf"
  if kind == "bpe":
    write_byte_level(path, rng, "llama-bpe", facts=facts[:1])
  else:
    write_sentencepiece(path, rng, facts=facts)
  source = GgufSource(path)
  tokenizer_lib.save_tokenizer(source, tmp_path)
  tokenizer = load(path)
  again = TextTokenizer.from_folder(tmp_path)
  for text in ("abc ab the cat", "  é🙂\n", "a<|eos|></s> sat"):
    np.testing.assert_array_equal(
      again.encode(text, add_special_tokens=True).ids,
      tokenizer.encode(text, add_special_tokens=True).ids,
    )
  assert again.leading_bos == tokenizer.leading_bos
  settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert settings["chat_template"] == "{{ messages }}"
  assert settings["eos_token"] == ("<|eos|>" if kind == "bpe" else "</s>")
  assert kind == "bpe" or settings["unk_token"] == "<unk>"


def test_sentencepiece_without_a_prefix(tmp_path, rng):
  facts = [("add_add_space_prefix", False), ("add_add_bos_token", False)]
  path = write_sentencepiece(tmp_path / "m.gguf", rng, facts=facts)
  tokenizer = load_tokenizer(GgufSource(path))
  assert tokenizer.encode("abc a").tokens == ["abc", "▁a"]
  assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"


@pytest.mark.parametrize(
  "options, message",
  [
    ({"scores": [-0.5] * 8}, "unigram"),
    ({"model": "rwkv"}, "'rwkv' is not supported"),
    (
      {"facts": [("add_remove_extra_whitespaces", True)]},
      "remove_extra_whitespaces is not supported",
    ),
  ],
)
def test_other_sentencepiece_kinds_are_refused(tmp_path, rng, options, message):
  path = write_sentencepiece(tmp_path / "m.gguf", rng, **options)
  with refuses(f"{message}.*tokenizer files"):
    load(path)


@pytest.fixture(scope="module")
def smollm2():
  return gguf_files.smollm2()


def test_smollm2_tokenizes(smollm2):
  tokenizer = TextTokenizer(load_tokenizer(smollm2), name="SmolLM2")
  assert tokenizer.vocab_size == 49152
  assert len(smollm2.fields["tokenizer.ggml.merges"]) == 48900
  assert tokenizer.leading_bos is None
  text = "The capital of France is"
  encoding = tokenizer.encode(text, add_special_tokens=True)
  assert encoding.ids.tolist() == [504, 3575, 282, 4649, 314]
  assert tokenizer.decode(encoding.ids) == text
  assert [text[a:b] for a, b in encoding.offsets] == [
    "The",
    " capital",
    " of",
    " France",
    " is",
  ]


def test_a_long_run_of_one_letter_tokenizes_in_time(smollm2):
  """Cases C8."""
  tokenizer = TextTokenizer(load_tokenizer(smollm2), name="SmolLM2")
  begin = time.monotonic()
  encoding = tokenizer.encode("Z" * 131072, add_special_tokens=False)
  assert time.monotonic() - begin < 10
  assert encoding.offsets[-1, 1] == 131072
