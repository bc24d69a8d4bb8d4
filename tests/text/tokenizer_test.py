"""Offsets against those of the tokenizers library, and its known faults."""

import json
import re
import types
import unicodedata

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_fallback import metaspace
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from longctx_jax.text import tokenizer_files
from longctx_jax.text.tokenizer import OffsetsUnusable, TextTokenizer

SENTENCES = [
  "The cat sat on the mat, and the cat's hat sat on the rat.",
  "How much wood would a woodchuck chuck? 1, 2, 3 or 42!",
] * 9


def byte_level(*, bos=False):
  """A trained byte-level BPE with a BOS token, which is put where asked."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=320,
    special_tokens=["<s>", "</s>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(SENTENCES, trainer)
  if bos:
    tokenizer.post_processor = template(tokenizer, "<s> $A")
  return tokenizer


def template(tokenizer, single):
  specials = [(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")]
  return processors.TemplateProcessing(single=single, special_tokens=specials)


def stand_ins():
  """Byte-level characters and the bytes that the library writes with them."""
  every_leading_byte = [*range(0x800), *range(0x800, 0xD800, 0x800)]
  every_leading_byte += range(0xE000, 0x110000, 0x1000)
  split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  text = "".join(map(chr, every_leading_byte))
  ((pieces, _),) = split.pre_tokenize_str(text)
  return dict(zip(pieces, text.encode(), strict=True))


STAND_INS = stand_ins()


class Slow:
  """A tokenizer without offsets, as Phi-3-small's (cases A1)."""

  def __init__(self, fast):
    self.fast = fast

  def encode(self, text, *, add_special_tokens):
    return self.fast.encode(text, add_special_tokens=add_special_tokens).ids

  def convert_ids_to_tokens(self, ids):
    return [self.fast.id_to_token(i) for i in ids]

  def get_vocab(self):
    return self.fast.get_vocab()

  @property
  def added_tokens_decoder(self):
    return self.fast.get_added_tokens_decoder()

  def decode(self, ids, *, skip_special_tokens, clean_up_tokenization_spaces):
    assert not clean_up_tokenization_spaces
    return self.fast.decode(ids, skip_special_tokens=skip_special_tokens)


class SlowBytes(Slow):
  """A tiktoken-type tokenizer, whose pieces are bytes."""

  def convert_ids_to_tokens(self, ids):
    pieces = super().convert_ids_to_tokens(ids)
    return [bytes(STAND_INS[c] for c in piece) for piece in pieces]


class CleaningUp(Slow):
  """Its decoding drops spaces, whatever it is asked (cases A9)."""

  def decode(self, ids, **options):
    return super().decode(ids, **options).replace(" !", "!")


class Misreporting:
  """A fast tokenizer with a fault in its offsets."""

  def __init__(self, fast, fault):
    self.fast = fast
    self.fault = fault

  def __getattr__(self, name):
    return getattr(self.fast, name)

  def encode(self, text, *, add_special_tokens):
    encoded = self.fast.encode(text, add_special_tokens=add_special_tokens)
    return types.SimpleNamespace(
      ids=encoded.ids,
      special_tokens_mask=encoded.special_tokens_mask,
      offsets=[self.fault(a, b) for a, b in encoded.offsets],
    )


def encode(backend, text, *, add_special_tokens=False):
  tokenizer = TextTokenizer(backend, name="test")
  return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def spans(backend, text):
  """Each token and the text it is said to cover."""
  encoding = encode(backend, text)
  return [
    (backend.id_to_token(int(i)), text[a:b])
    for i, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
  ]


TRAINED = byte_level(bos=True)


@settings(deadline=None)
@given(st.text(max_size=40))
@pytest.mark.parametrize("kind", [Slow, SlowBytes, lambda fast: fast])
def test_offsets_equal_those_of_the_tokenizers_library(kind, text):
  """Slow and fast agree (cases A1, A2), also where bytes share a character."""
  expected = TRAINED.encode(text)
  found = encode(kind(TRAINED), text, add_special_tokens=True)
  assert found.ids.dtype == np.int32 and found.offsets.dtype == np.int64
  assert found.ids.tolist() == expected.ids
  assert found.offsets.tolist() == [list(span) for span in expected.offsets]


def test_every_byte_of_a_character_has_the_character():
  """Cases A1 and A5: five characters end at 5."""
  offsets = encode(Slow(TRAINED), "a🙂é b").offsets.tolist()
  assert offsets == [[0, 1]] + 4 * [[1, 2]] + 2 * [[2, 3]] + [[3, 4], [4, 5]]


@pytest.mark.parametrize("kind", [Slow, lambda fast: fast])
def test_offsets_do_not_drift_over_a_thousand_emoji(kind):
  """Cases A2."""
  text = "🙂" * 1000 + " cat"
  assert text[slice(*encode(kind(TRAINED), text).offsets[-1])] == " cat"


def empty_words(a, b):
  return (b, b)


def borrowed(a, b):
  return (a + 1, b + 1)


@pytest.mark.parametrize("fault", [empty_words, borrowed])
@pytest.mark.parametrize("backend", [byte_level(), metaspace()])
def test_wrong_offsets_are_rebuilt_with_one_warning(backend, fault, warnings):
  """Cases A3, A4: as Llama 3's (6, 6), which would leave no key token."""
  tokenizer = TextTokenizer(Misreporting(backend, fault), name="broken")
  right = TextTokenizer(backend, name="right")
  for text in ("the cat sat", "the hat"):
    found = tokenizer.encode(text, add_special_tokens=False)
    expected = right.encode(text, add_special_tokens=False)
    np.testing.assert_array_equal(found.offsets, expected.offsets)
  (warning,) = warnings
  assert "broken (Misreporting): offsets rebuilt" in warning


def test_offsets_that_nothing_proves_are_an_error():
  """Cases A1, A3: named, never guessed."""
  lower = byte_level()
  lower.normalizer = normalizers.Lowercase()
  assert encode(lower, "THE Cat").offsets[-1].tolist() == [3, 7]
  with pytest.raises(OffsetsUnusable, match=r"test \(Misreporting\): token 0"):
    encode(Misreporting(lower, empty_words), "THE cat")
  with pytest.raises(OffsetsUnusable, match=r"test \(Slow\): token 1 of .*cat"):
    encode(Slow(lower), "the Cat")


def test_dropped_characters_are_an_error():
  tokenizer = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1}, []))
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
  assert spans(tokenizer, "a a") == [
    ("▁", ""),
    ("a", "a"),
    ("▁", " "),
    ("a", "a"),
  ]
  with pytest.raises(OffsetsUnusable, match="token 1 of 2"):
    encode(tokenizer, "a中")


@pytest.mark.parametrize("by_normalizer", [False, True])
def test_a_prefix_covers_only_what_the_text_has(by_normalizer, warnings):
  """Cases A6, A10: a lone prefix never covers the character behind it."""
  tokenizer = metaspace(by_normalizer=by_normalizer)
  assert spans(tokenizer, "中a")[:4] == [
    ("▁", ""),
    ("<0xE4>", "中"),
    ("<0xB8>", "中"),
    ("<0xAD>", "中"),
  ]
  assert spans(tokenizer, "the cat") == [
    ("▁the", "the"),
    ("▁", " "),
    ("cat", "cat"),
  ]
  assert spans(tokenizer, "  the")[-1] == ("▁the", " the")
  assert not warnings


def test_special_tokens_in_a_text_have_their_own_span():
  text = "<s>the cat</s> the cat"
  assert spans(byte_level(), text)[0] == ("<s>", "<s>")
  for by_normalizer in (False, True):
    found = spans(metaspace(by_normalizer=by_normalizer), text)
    assert [("<s>", "<s>"), ("</s>", "</s>"), ("cat", "cat")] == [
      found[0],
      *(pair for pair in found if pair[0] == "</s>"),
      found[-1],
    ]


def test_added_tokens_are_what_they_say():
  """Not byte-level characters, but bytes where they are byte tokens."""
  for tokenizer, added in ((byte_level(), "éĠ!"), (metaspace(), "c h▁é!")):
    tokenizer.add_tokens([added])
    text = f"a {added} a"
    encoding = encode(Slow(tokenizer), text)
    assert added in [text[a:b] for a, b in encoding.offsets]
  tokenizer = metaspace()
  tokenizer.add_tokens(["<0xE4>", "<0xB8>", "<0xAD>"])
  offsets = encode(Slow(tokenizer), "a 中").offsets.tolist()
  assert offsets[-3:] == [[2, 3], [2, 3], [2, 3]]


@pytest.mark.parametrize(
  "text",
  ["a\u0010b", "a\u202fb", "x…y", "a 👨\u200d👩\u200d👧 b", "a\r\nb", "ﬁt ½"],
)
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_normalized_characters_are_confirmed_or_never_key(
  make, form, text, warnings
):
  """Cases C7: what a token covers, normalized again, is its piece."""
  tokenizer = make()
  tokenizer.normalizer = getattr(normalizers, form)()
  text = f"the cat sat {text} the e\u0301"
  encoding = encode(tokenizer, text)
  covered = {tuple(span) for span in encoding.offsets.tolist()}
  for a, b in covered:
    ids = [
      int(i)
      for i, span in zip(encoding.ids, encoding.offsets, strict=True)
      if tuple(span) == (a, b) and a < b
    ]
    piece = tokenizer.decode(ids)
    assert piece.strip() == unicodedata.normalize(form, text[a:b]).strip()
  # Composed of two characters, both of which its bytes cover.
  assert (len(text) - 2, len(text)) in covered
  lost = [a for a, b in encoding.offsets.tolist() if a == b and a > 0]
  if form == "NFKC" and any(character in text for character in "…ﬁ½"):
    assert f": {len(lost)} of {len(encoding.ids)} tokens cannot" in warnings[0]
  else:
    assert not lost and not warnings


def test_unknown_characters_are_never_key(warnings):
  tokenizer = tokenizers.Tokenizer(
    models.BPE({"<unk>": 0, "▁": 1, "a": 2}, [], unk_token="<unk>")
  )
  tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
  assert spans(tokenizer, "a 中 a a")[3:5] == [("<unk>", ""), ("▁", " ")]
  assert "1 of 8 tokens cannot be traced" in warnings[0]
  with pytest.raises(OffsetsUnusable, match="<unk>"):
    encode(tokenizer, "中文中文 中文")


def test_special_tokens_that_are_added_cover_nothing():
  for kind in (Slow, lambda fast: fast):
    bare = encode(kind(TRAINED), "the cat")
    both = encode(kind(TRAINED), "the cat", add_special_tokens=True)
    assert both.ids.tolist() == [0, *bare.ids]
    assert both.offsets.tolist() == [[0, 0], *bare.offsets.tolist()]


def test_leading_bos_is_what_a_default_call_puts_first():
  """Cases A11 to A13: read off the ids, not off a declared token."""
  tokenizer = byte_level()
  assert TextTokenizer(tokenizer, name="none").leading_bos is None
  tokenizer.post_processor = template(tokenizer, "$A </s>")
  assert TextTokenizer(tokenizer, name="eos").leading_bos is None
  tokenizer.post_processor = template(tokenizer, "<s> $A </s>")
  assert TextTokenizer(tokenizer, name="bos").leading_bos == 0
  assert TextTokenizer(Slow(tokenizer), name="bos").leading_bos == 0


def test_vocab_size_counts_added_tokens():
  tokenizer = byte_level()
  size = TextTokenizer(tokenizer, name="test").vocab_size
  tokenizer.add_tokens(["woodchuck"])
  assert TextTokenizer(tokenizer, name="test").vocab_size == size + 1
  assert TextTokenizer(Slow(tokenizer), name="test").vocab_size == size + 1


def test_the_fingerprint_is_of_what_determines_ids():
  def fingerprint(backend, name="test"):
    return TextTokenizer(backend, name=name).fingerprint

  tokenizer = byte_level()
  copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
  copy.enable_truncation(7)
  assert fingerprint(tokenizer) == fingerprint(copy, "other name")
  kinds = {fingerprint(kind(tokenizer)) for kind in (Slow, SlowBytes)}
  copy.add_tokens(["woodchuck"])
  others = {fingerprint(copy), fingerprint(Slow(copy))}
  copy.normalizer = normalizers.NFC()
  others.add(fingerprint(copy))
  assert len({fingerprint(tokenizer), *kinds, *others}) == 6
  assert len(fingerprint(tokenizer)) == 64


def test_truncation_and_padding_are_switched_off():
  tokenizer = byte_level()
  expected = tokenizer.encode("the cat sat on the mat").ids
  tokenizer.enable_truncation(2)
  tokenizer.enable_padding(length=99)
  assert encode(tokenizer, "the cat sat on the mat").ids.tolist() == expected


def test_a_lone_surrogate_is_an_error_that_says_where():
  with pytest.raises(UnicodeEncodeError, match="position 3"):
    encode(byte_level(), "cat\ud800")


@pytest.mark.parametrize("kind", [Slow, lambda fast: fast])
@pytest.mark.parametrize(
  "backend", [byte_level(), metaspace(), metaspace(by_normalizer=True)]
)
@pytest.mark.parametrize(
  "text", ["a != h and a.b == c", "the cat ,  sat . \n", "a🙂é 中", ""]
)
def test_ids_survive_the_way_through_their_text(backend, kind, text):
  """Cases A9: byte for byte, no clean-up."""
  tokenizer = TextTokenizer(kind(backend), name="test")
  encoding = tokenizer.encode(text, add_special_tokens=False)
  decoded, aligned = tokenizer.align(encoding.ids)
  assert decoded == text
  np.testing.assert_array_equal(aligned.ids, encoding.ids)
  np.testing.assert_array_equal(aligned.offsets, encoding.offsets)


def test_a_space_that_decoding_loses_moves_no_offset():
  """Cases A10: each text is the one that its offsets index."""
  tokenizer = TextTokenizer(metaspace(), name="test")
  encoding = tokenizer.encode("  the cat", add_special_tokens=False)
  decoded, aligned = tokenizer.align(encoding.ids)
  assert decoded == " the cat"
  for text, found in (("  the cat", encoding), (decoded, aligned)):
    assert text[slice(*found.offsets[-1])] == "cat"


def test_ids_of_words_have_the_spans_of_their_encoded_text():
  """Pieces that do not spell the spaces between them."""
  words = tokenizers.Tokenizer(models.WordLevel({"the": 0, "cat": 1}))
  words.pre_tokenizer = pre_tokenizers.Whitespace()
  text, encoding = TextTokenizer(words, name="words").align([0, 1, 0])
  assert text == "the cat the"
  assert encoding.offsets.tolist() == [[0, 3], [4, 7], [8, 11]]


def test_special_tokens_among_ids_have_the_span_of_their_text():
  for backend in (byte_level(), metaspace()):
    tokenizer = TextTokenizer(backend, name="test")
    cat = tokenizer.encode("cat", add_special_tokens=False).ids
    bos, eos = (backend.token_to_id(token) for token in ("<s>", "</s>"))
    text, encoding = tokenizer.align([bos, *cat, eos])
    covered = [text[a:b] for a, b in encoding.offsets]
    assert [covered[0], covered[-1]] == ["<s>", "</s>"]
    assert "".join(covered) == text


@pytest.mark.parametrize(
  "backend, text",
  [(byte_level(), "\ufffdx \ufffd"), (metaspace(), 6 * "\ufffd")],
)
def test_ids_may_begin_and_end_within_a_character(backend, text):
  """A pre-tokenized document is cut at a number of ids."""
  tokenizer = TextTokenizer(backend, name="test")
  whole = "🙂x 🙂" if text[1] == "x" else "🙂🙂"
  ids = tokenizer.encode(whole, add_special_tokens=False).ids
  ids = ids[3:-2] if text[1] == "x" else ids[1:-2]
  decoded, encoding = tokenizer.align(ids)
  assert decoded == text
  assert encoding.offsets[-1].tolist() == [len(text) - 1, len(text)]
  assert encoding.offsets[0].tolist() == [0, 1]


def test_ids_whose_text_was_cleaned_up_are_refused():
  """Cases A9: names the first character that differs."""
  tokenizer = TextTokenizer(CleaningUp(byte_level()), name="cleaner")
  ids = tokenizer.encode("the cat !", add_special_tokens=False).ids
  with pytest.raises(OffsetsUnusable, match="cleaner .* from character 7"):
    tokenizer.align(ids)


@pytest.mark.parametrize("bad", [-1, 5000])
def test_ids_outside_the_vocabulary_are_refused(bad):
  tokenizer = TextTokenizer(byte_level(), name="test")
  with pytest.raises(ValueError, match=f"id {bad} is not in its vocabulary"):
    tokenizer.align([5, bad])


def test_a_tokenizer_file_is_followed_to_the_letter(tmp_path):
  """Cases L1; transformers 5 splits a GPT2Tokenizer its own way."""
  tokenizer = byte_level(bos=True)
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Digits(individual_digits=True), tokenizer.pre_tokenizer]
  )
  tokenizer.save(str(tmp_path / "tokenizer.json"))
  config = {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": False}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  found = TextTokenizer.from_folder(tmp_path)
  assert found.name == str(tmp_path)
  assert found.leading_bos == 0
  text = "or 42\n\n42!"
  ids = found.encode(text, add_special_tokens=True).ids.tolist()
  assert ids == tokenizer.encode(text).ids != TRAINED.encode(text).ids
  assert found.fingerprint == TextTokenizer(tokenizer, name="").fingerprint


def test_other_tokenizer_files_are_read_by_transformers(tmp_path):
  model = json.loads(TRAINED.to_str())["model"]
  (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
  merges = "\n".join(" ".join(pair) for pair in model["merges"])
  (tmp_path / "merges.txt").write_text(merges)
  config = {"tokenizer_class": "GPT2Tokenizer"}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  found = TextTokenizer.from_folder(tmp_path)
  ids = found.encode("the cat 🙂", add_special_tokens=True).ids.tolist()
  assert ids == TRAINED.encode("the cat 🙂", add_special_tokens=False).ids


def test_a_damaged_tokenizer_file_is_named(tmp_path):
  (tmp_path / "tokenizer.json").write_text("{")
  with pytest.raises(ValueError, match="tokenizer.json cannot be read"):
    TextTokenizer.from_folder(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(FileNotFoundError, match="tokenizer.json"):
    TextTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(
  ("post", "stated", "said"),
  [
    (False, True, "add_bos_token=true, .* adds no BOS: it is followed"),
    (True, False, "add_bos_token=false, .* adds '<s>': it is followed"),
    (True, True, ""),
    (False, False, ""),
    (False, None, ""),
  ],
)
def test_files_that_disagree_on_the_bos_are_called_out(
  tmp_path, caplog, post, stated, said
):
  """transformers 5 follows the one, 4 (Llama, Gemma) the other."""
  byte_level(bos=post).save(str(tmp_path / "tokenizer.json"))
  config = {"bos_token": {"content": "<s>"}}
  config |= {} if stated is None else {"add_bos_token": stated}
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  found = TextTokenizer.from_folder(tmp_path)
  assert (found.leading_bos is not None) == post
  assert re.search(said, caplog.text) if said else not caplog.text


@pytest.mark.parametrize(
  ("file", "package"),
  [
    ("tokenizer.model", "sentencepiece"),
    ("tekken.json", "mistral-common"),
    ("qwen.tiktoken", "tiktoken"),
  ],
)
def test_the_package_that_reads_a_vocabulary_is_named(
  tmp_path, monkeypatch, file, package
):
  monkeypatch.setattr(tokenizer_files, "find_spec", lambda name: None)
  (tmp_path / file).write_bytes(b"")
  with pytest.raises(ValueError, match=f"{file} is read .*install {package},"):
    TextTokenizer.from_folder(tmp_path)
