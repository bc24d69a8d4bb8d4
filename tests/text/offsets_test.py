"""Places of pieces in a text, against byte-by-byte oracles."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.text import offsets as offsets_lib
from longctx_jax.text.offsets import BYTE_LEVEL, METASPACE


def characters_of_bytes(data):
  """Character of byte k: how many begin within the first k + 1 bytes."""
  return [
    len(data[: k + 1].decode("utf-8", "replace")) - 1 for k in range(len(data))
  ]


def cut(data, places):
  bounds = sorted(
    {0, len(data), *(place % (len(data) + 1) for place in places)}
  )
  return [data[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]


texts = st.text(st.sampled_from("aé🙂中 \n▁\ufffd"), max_size=20)
cuts = st.lists(st.integers(0, 1000), max_size=30)


@settings(deadline=None)
@given(texts, cuts, st.integers(0, 3), st.integers(0, 3))
def test_spelled_offsets_are_the_characters_of_each_piece(
  text, places, first, last
):
  """Also where characters are cut in two, at both ends too (cases A5)."""
  data = text.encode()
  data = data[first : max(len(data) - last, first)]
  split = cut(data, places)
  offsets = offsets_lib.spell(
    data.decode("utf-8", "replace"), split, BYTE_LEVEL
  )
  character = characters_of_bytes(data)
  ends = np.cumsum([0, *map(len, split)]).tolist()
  assert offsets.tolist() == [
    [character[a], character[b - 1] + 1]
    for a, b in zip(ends, ends[1:], strict=False)
  ]


@settings(deadline=None)
@given(texts, cuts, st.booleans())
def test_walking_agrees_with_spelling(text, places, lenient):
  for alphabet in (BYTE_LEVEL, METASPACE):
    split = cut(alphabet.view(text).encode(), places)
    walked, count = offsets_lib.walk(text, split, alphabet, lenient=lenient)
    np.testing.assert_array_equal(
      walked, offsets_lib.spell(text, split, alphabet), strict=True
    )
    assert count == len(split)


@pytest.mark.parametrize("alphabet", [BYTE_LEVEL, METASPACE])
def test_a_prefix_that_the_text_lacks_covers_nothing(alphabet):
  """Cases A6."""
  split = [alphabet.view(piece).encode() for piece in (" ", "中", " x")]
  offsets = offsets_lib.spell("中 x", split, alphabet)
  assert offsets.tolist() == [[0, 0], [0, 1], [1, 3]]


def test_walking_takes_missing_white_space_only_where_lenient():
  split = [b"<s>", b" cat", b"<s>", b" sat"]
  text = "<s>cat <s>\n sat \n"
  offsets, _ = offsets_lib.walk(text, split, BYTE_LEVEL, lenient=True)
  assert [text[a:b] for a, b in offsets] == ["<s>", "cat", "<s>", " sat"]
  assert offsets_lib.walk(text, split, BYTE_LEVEL, lenient=False) == (None, 1)
  for text in ("cat  sat", "cat sat "):
    split = [b"cat", b" sat"]
    offsets, _ = offsets_lib.walk(text, split, BYTE_LEVEL, lenient=True)
    assert [text[a:b] for a, b in offsets] == ["cat", " sat"]
    assert offsets_lib.walk(text, split, BYTE_LEVEL, lenient=False) == (None, 1)


@pytest.mark.parametrize(
  "text, bad", [("cat hat", 1), ("cat sat down", 1), ("the cat sat", 0)]
)
def test_walking_names_the_piece_without_a_place(text, bad):
  split = [b"cat", b" sat"]
  assert offsets_lib.walk(text, split, BYTE_LEVEL, lenient=True) == (None, bad)


def test_a_byte_decoded_to_a_replacement_has_its_own_character():
  """SentencePiece's decoder replaces each byte of a broken character."""
  split = [b"a", *(bytes([byte]) for byte in "🙂".encode()[:3])]
  offsets, _ = offsets_lib.walk(
    "a\ufffd\ufffd\ufffd", split, METASPACE, lenient=False
  )
  assert offsets.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]


def check(text, split, reported, normalize=str):
  offsets, confirmed = offsets_lib.check(
    text, split, np.array(reported, np.int64).reshape(-1, 2), normalize
  )
  return None if offsets is None else offsets.tolist(), confirmed.tolist()


@pytest.mark.parametrize(
  "reported, fault",
  [
    ([(0, 3), (3, 3)], [True, False]),
    ([(3, 7), (0, 3)], [True, False]),
    ([(0, 3), (3, 9)], [True, False]),
    ([(-1, 3), (3, 7)], [False, True]),
    ([(1, 3), (3, 7)], [False, True]),
  ],
)
def test_offsets_that_cannot_be_right_are_refused(reported, fault):
  """Empty, out of order, outside the text, a character left out."""
  offsets, confirmed = check("cat sat", [b"cat", b" sat"], reported)
  assert offsets is None
  assert confirmed == fault


def test_offsets_that_disagree_with_their_piece_become_zero_width():
  offsets, confirmed = check("cat sat", [b"cat", b" mat"], [(0, 3), (3, 7)])
  assert offsets == [[0, 3], [3, 3]]
  assert confirmed == [True, False]


def test_a_lone_prefix_does_not_borrow_a_word():
  """Cases A6."""
  split = ["▁".encode(), "中".encode()]
  offsets, confirmed = check("中", split, [(0, 1), (0, 1)])
  assert offsets == [[0, 0], [0, 1]]
  assert confirmed == [True, True]
