"""Tokens' pieces: the bytes they stand for, and their places in a text.

Three ways to place pieces, by the strength of the evidence: `spell` where the
pieces, joined, are the text; `walk` where only white space differs; `check`
of offsets that a tokenizer reports, where it normalizes. Pieces are bytes,
offsets int64 [n, 2], half-open, in characters (code points) of the text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

_METASPACE = "\u2581"
_REPLACEMENT = "\ufffd".encode()


BYTE_PIECE = re.compile("<0x([0-9A-Fa-f]{2})>")


@dataclasses.dataclass(frozen=True)
class Alphabet:
  """How a vocabulary writes bytes as text.

  Attributes:
    space: its spelling of a space.
    decode: from a piece to its bytes.
  """

  space: str
  decode: Callable[[str], bytes]

  def view(self, text: str) -> str:
    """The text as pieces spell it, with as many characters."""
    return text.replace(" ", self.space)

  def to_bytes(self, piece: str | bytes, *, literal: bool) -> bytes:
    """Bytes of a piece; those of an added token (`literal`) are its text."""
    if isinstance(piece, bytes):
      return piece
    return self.view(piece).encode() if literal else self.decode(piece)


def _stand_ins() -> dict[str, int]:
  """GPT-2's printable bytes: a byte's own character, or one from 256 on."""
  own = [*range(33, 127), *range(161, 173), *range(174, 256)]
  moved = [byte for byte in range(256) if byte not in own]
  return {chr(byte): byte for byte in own} | {
    chr(256 + place): byte for place, byte in enumerate(moved)
  }


_STAND_INS = _stand_ins()


def _decode_byte_level(piece: str) -> bytes:
  if all(character in _STAND_INS for character in piece):
    return bytes(_STAND_INS[character] for character in piece)
  return piece.encode()


def _decode_metaspace(piece: str) -> bytes:
  match = BYTE_PIECE.fullmatch(piece)
  return bytes([int(match[1], 16)]) if match else piece.encode()


BYTE_LEVEL = Alphabet(" ", _decode_byte_level)


METASPACE = Alphabet(_METASPACE, _decode_metaspace)


def spell(
  text: str, pieces: Sequence[bytes], alphabet: Alphabet
) -> np.ndarray | None:
  """Offsets where the joined pieces are the text, else None.

  A first space that only the pieces have (SentencePiece's dummy prefix) covers
  nothing. Each byte piece of a character has the whole character.
  """
  text, joined = alphabet.view(text), b"".join(pieces)
  spelling = joined.decode("utf-8", "replace")
  if spelling not in (text, alphabet.space + text):
    return None
  lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
  ends = np.cumsum(lengths)
  character = _character_of_byte(joined)
  if character[-1] != len(spelling):
    return None
  offsets = _offsets(character, ends - lengths, ends)
  return np.maximum(offsets - (len(spelling) - len(text)), 0)


def walk(
  text: str, pieces: Sequence[bytes], alphabet: Alphabet, *, lenient: bool
) -> tuple[np.ndarray | None, int]:
  """Offsets from matching pieces one by one.

  Args:
    text: the text.
    pieces: bytes of its tokens.
    alphabet: how they were written.
    lenient: white space may be missing from either side, since tokenizers
      swallow it around special tokens and put a dummy prefix after them.

  Returns:
    offsets and len(pieces), or None and the first piece without a place.
  """
  data, space = alphabet.view(text).encode(), alphabet.space.encode()

  def skip_blank(place: int) -> int:
    if data.startswith(space, place):
      return place + len(space)
    character = data[place : place + 4].decode("utf-8", "replace")[:1]
    return place + len(character.encode()) * character.isspace()

  ends = np.zeros(len(pieces), np.int64)
  lengths = np.zeros(len(pieces), np.int64)
  place = 0
  for i, piece in enumerate(pieces):
    while not data.startswith(piece, place):
      bare, after = piece.removeprefix(space), skip_blank(place)
      optional = bare != piece and (lenient or i == 0)
      if optional and data.startswith(bare, place):
        piece = bare
      elif data.startswith(_REPLACEMENT, place) and not _is_whole(piece):
        piece = _REPLACEMENT
      elif lenient and after > place:
        place = after
      else:
        return None, i
    place += len(piece)
    ends[i], lengths[i] = place, len(piece)
  while lenient and (after := skip_blank(place)) > place:
    place = after
  if place < len(data):
    return None, max(len(pieces) - 1, 0)
  return _offsets(_character_of_byte(data), ends - lengths, ends), len(pieces)


def check(
  text: str,
  pieces: Sequence[bytes],
  reported: np.ndarray,
  normalize: Callable[[str], str],
) -> tuple[np.ndarray | None, np.ndarray]:
  """Compares the offsets that a tokenizer reports with its pieces.

  Bytes of one character are compared together. Where a normalizer composes
  characters, only the first of them is reported; those up to the next token
  are taken in where the comparison needs them.

  Returns:
    offsets, zero-width where the piece does not confirm them, or None where
    some are empty, out of order or leave characters out; and bool [n], False
    for the tokens at fault.
  """
  count = len(pieces)
  whole = [_is_whole(piece) for piece in pieces]
  cores = [_core(piece.decode("utf-8", "replace")) for piece in pieces]
  starts, ends = reported[:, 0], reported[:, 1]
  empty = (starts == ends) & np.array(cores, bool)
  broken = empty | (starts > ends) | (starts < 0) | (ends > len(text))
  broken[1:] |= starts[1:] < starts[:-1]
  if broken.any():
    return None, ~broken
  begins, stops = [*starts.tolist(), len(text)], ends.tolist()
  confirmed = [False] * count
  after = 0
  while after < count:
    i, after = after, after + 1
    core = cores[i]
    if not whole[i]:
      while after < count and not whole[after]:
        after += 1
      core = _core(b"".join(pieces[i:after]).decode("utf-8", "replace"))
    end = max(stops[i:after])
    wider = begins[i] + len(text[begins[i] : begins[after]].rstrip())
    for stop in (end, wider) if wider > end else (end,):
      span = text[begins[i] : stop]
      if _core(span) == core or _core(normalize(span)) == core:
        confirmed[i:after] = [True] * (after - i)
        stops[i:after] = [stop if at == end else at for at in stops[i:after]]
        break
    if not core and not confirmed[i]:
      # A lone prefix borrows the characters of the word that follows it.
      confirmed[i], stops[i] = True, begins[i]
  confirmed, ends = np.array(confirmed, bool), np.array(stops, np.int64)
  depth = np.zeros(len(text) + 1, np.int64)
  np.add.at(depth, starts, 1)
  np.add.at(depth, ends, -1)
  for place in np.flatnonzero(np.cumsum(depth)[:-1] == 0).tolist():
    if _core(normalize(text[place])):
      before = max(np.searchsorted(starts, place) - 1, 0)
      return None, np.arange(count) != before
  return np.stack([starts, np.where(confirmed, ends, starts)], 1), confirmed


def _is_whole(piece: bytes) -> bool:
  """Whether a piece is whole characters."""
  try:
    piece.decode()
  except UnicodeDecodeError:
    return False
  return True


def _core(text: str) -> str:
  """What of a text and a piece must agree: all but the space around it."""
  return text.replace(_METASPACE, " ").strip()


def _character_of_byte(data: bytes) -> Int[np.ndarray, " m"]:
  """The character that each byte belongs to, and last their number.

  Counts as decoding with replacements does: a continuation byte that no
  leading byte asked for is a character.
  """
  data = np.frombuffer(data, np.uint8)
  place = np.arange(len(data))
  leads = (data & 0xC0) != 0x80
  asked = 1 + sum(
    (data >= bound).astype(np.int64) for bound in (0xC0, 0xE0, 0xF0)
  )
  last = np.maximum.accumulate(np.where(leads, place, -1))
  starts = leads | (last < 0) | (place - last >= asked[last])
  count = np.cumsum(starts)
  return np.append(count - 1, count[-1:] if len(count) else 0)


def _offsets(
  character: Int[np.ndarray, " m"],
  starts: Int[np.ndarray, " n"],
  ends: Int[np.ndarray, " n"],
) -> Int[np.ndarray, "n 2"]:
  """Character offsets of byte offsets."""
  last = np.where(ends > starts, character[ends - 1] + 1, character[starts])
  return np.stack([character[starts], last], axis=1)
