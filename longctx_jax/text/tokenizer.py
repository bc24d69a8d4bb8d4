"""Token ids with verified character offsets.

A key token is known by the characters it covers, so a wrong offset moves the
metric without a word. Offsets are therefore proved: where the bytes of the
tokens' pieces, joined, are the bytes of the text, their running lengths are
the offsets, whatever the tokenizer itself reports. Where they are not (a
normalizer, an unknown character), each reported offset is compared with its
piece, and one that cannot be confirmed becomes zero-width: never key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from jaxtyping import Int32, Int64

from longctx_jax.text import offsets as offsets_lib
from longctx_jax.text import tokenizer_files

Ids = Int32[np.ndarray, " n"]
Offsets = Int64[np.ndarray, "n 2"]


class OffsetsUnusable(ValueError):
  """No offsets can be proved for a text; names tokenizer and token."""


class NotEmbedded(ValueError):
  """A text uses an id that the model has no embedding for; names both."""


@dataclasses.dataclass(frozen=True)
class Encoding:
  """Token ids and the characters that each covers.

  Attributes:
    ids: int32 [n].
    offsets: int64 [n, 2], half-open character (code point) offsets into the
      original text. (0, 0) for special tokens that the tokenizer adds; every
      byte token of one character has the whole character.
  """

  ids: np.ndarray
  offsets: np.ndarray


class TextTokenizer:
  """Text to ids and back, with offsets that are proved."""

  def __init__(self, backend: Any, *, name: str):
    """Wraps a tokenizer.

    Args:
      backend: a `tokenizers.Tokenizer`, whose truncation and padding are
        switched off, or a slow transformers tokenizer (or anything with its
        `encode`, `decode`, `convert_ids_to_tokens` and `get_vocab`).
      name: for messages.
    """
    self.name = name
    self._backend = backend
    self._fast = not hasattr(backend, "convert_ids_to_tokens")
    if self._fast:
      backend.no_truncation()
      backend.no_padding()
      added = backend.get_added_tokens_decoder()
    else:
      added = getattr(backend, "added_tokens_decoder", {})
    # Byte tokens stand for their byte even where they were added by name.
    self._added = {
      i: token.content
      for i, token in added.items()
      if not offsets_lib.BYTE_PIECE.fullmatch(token.content)
    }
    self._alphabets = [offsets_lib.BYTE_LEVEL, offsets_lib.METASPACE]
    self._known = {alphabet: {} for alphabet in self._alphabets}
    self._warned = False
    self._embeddings = 0

  @classmethod
  def from_folder(cls, path: str | os.PathLike[str]) -> TextTokenizer:
    """Loads the tokenizer files of a local folder; needs no network.

    A tokenizer.json is followed to the letter. (AutoTokenizer of transformers
    5 builds some classes, GPT2Tokenizer and LlamaTokenizer among them, with a
    pre-tokenizer of its own: its issues 45920 and 48206.) So is its
    post-processor, as transformers 5 does, where `add_bos_token` of
    tokenizer_config.json says otherwise: transformers 4 followed that for the
    classes of Llama and Gemma.

    Raises:
      FileNotFoundError: naming the files of which none is there.
      ValueError: for a damaged file, or one whose reader is not installed.
    """
    folder = pathlib.Path(path)
    file = folder / "tokenizer.json"
    if file.exists():
      found = cls(tokenizer_files.read(file), name=str(path))
      bos = found.leading_bos
      tokenizer_files.compare_bos(
        folder, "" if bos is None else str(found._piece(bos))
      )
      return found
    tokenizer_files.require_reader(folder)
    import transformers  # Takes seconds, and is needed nowhere else.

    tokenizer = transformers.AutoTokenizer.from_pretrained(
      str(folder), local_files_only=True, trust_remote_code=False
    )
    backend = tokenizer.backend_tokenizer if tokenizer.is_fast else tokenizer
    return cls(backend, name=str(path))

  def restrict(self, embeddings: int) -> None:
    """Refuses, from now on, ids for which a model has no embedding.

    A vocabulary may hold more than the model has: padding, an image's token.

    Args:
      embeddings: rows of the model's embedding.

    Raises:
      NotEmbedded: where the BOS, which begins every text, has none.
    """
    self._embeddings = embeddings
    if self.vocab_size > embeddings:
      logging.warning(
        "%s: the tokenizer has ids up to %d, the model %d embeddings: a text "
        "that uses one of the others cannot be read",
        self.name,
        self.vocab_size - 1,
        embeddings,
      )
    if self.leading_bos is not None:
      self._require_embedded(np.array([self.leading_bos]))

  def _require_embedded(self, ids: np.ndarray) -> None:
    if self._embeddings and len(ids) and ids.max() >= self._embeddings:
      at = int(ids.argmax())
      raise NotEmbedded(
        f"{self._who}: token {at}, {self._piece(int(ids[at]))!r}, has id "
        f"{ids[at]}, and the model {self._embeddings} embeddings: leave it out "
        "of the text, or give the tokenizer that belongs to the model"
      )

  def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
    """Tokenizes a text.

    Args:
      text: any text without lone surrogates.
      add_special_tokens: put those that the tokenizer adds by default.

    Raises:
      OffsetsUnusable: where no offsets can be proved.
      NotEmbedded: for an id that the model has no embedding for.
      UnicodeEncodeError: at a lone surrogate, naming its position.
    """
    text.encode()  # The backend's own complaint does not say where.
    if self._fast:
      encoded = self._backend.encode(
        text, add_special_tokens=add_special_tokens
      )
      ids = encoded.ids
      reported = np.array(encoded.offsets, np.int64).reshape(-1, 2)
      inner = np.array(encoded.special_tokens_mask, np.int64) == 0
    else:
      ids, inner = self._encode_slow(text, add_special_tokens)
      reported = None
    ids = np.array(ids, np.int32)
    self._require_embedded(ids)
    offsets = np.zeros((len(ids), 2), np.int64)
    offsets[inner] = self._place(
      text, ids[inner], None if reported is None else reported[inner]
    )
    return Encoding(ids, offsets)

  def align(self, ids: Sequence[int] | np.ndarray) -> tuple[str, Encoding]:
    """The text that ids decode to, without clean-up, and their offsets in it.

    Special tokens among the ids have the span of their own text.

    Raises:
      OffsetsUnusable: where text and ids cannot be reconciled, naming the
        first differing character.
      ValueError: for an id outside the vocabulary.
    """
    ids = np.array(ids, np.int32)
    for i in set(ids.tolist()):
      self._piece(i)  # Decoding would drop one outside the vocabulary.
    self._require_embedded(ids)
    text = self.decode(ids)
    offsets = self._spell(text, ids)
    if offsets is None:
      try:
        encoding = self.encode(text, add_special_tokens=False)
      except OffsetsUnusable:
        encoding = None
      if encoding is not None and np.array_equal(encoding.ids, ids):
        return text, encoding
      offsets, _ = self._walk(text, ids, lenient=False)
    if offsets is None:
      at, spelling = self._difference(text, ids)
      raise OffsetsUnusable(
        f"{self._who}: {len(ids)} ids and the text that they decode to differ "
        f"from character {at}: pieces {spelling[at : at + 20]!r}, text "
        f"{text[at : at + 20]!r}. Give the text instead of the ids"
      )
    return text, Encoding(ids, offsets)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """The text of ids: special tokens kept, spaces not cleaned up."""
    ids = [int(i) for i in ids]
    if self._fast:
      return self._backend.decode(ids, skip_special_tokens=False)
    return self._backend.decode(
      ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )

  @functools.cached_property
  def leading_bos(self) -> int | None:
    """Id that a default call puts first and one without specials does not."""
    default, bare = (self._ids("a", specials) for specials in (True, False))
    return default[0] if default[:1] != bare[:1] else None

  @functools.cached_property
  def vocab_size(self) -> int:
    """Largest id + 1, added tokens included."""
    return max(self._backend.get_vocab().values()) + 1

  @functools.cached_property
  def fingerprint(self) -> str:
    """SHA-256, hex, of what determines ids."""
    if self._fast:
      facts = self._backend.to_str()
    else:
      vocab = sorted(
        (i, piece) for piece, i in self._backend.get_vocab().items()
      )
      facts = repr((type(self._backend).__name__, vocab))
    return hashlib.sha256(facts.encode()).hexdigest()

  def _ids(self, text: str, add_special_tokens: bool) -> list[int]:
    encoded = self._backend.encode(text, add_special_tokens=add_special_tokens)
    return list(encoded.ids if self._fast else encoded)

  def _encode_slow(
    self, text: str, add_special_tokens: bool
  ) -> tuple[list[int], np.ndarray]:
    """Ids, and which of them stand for text."""
    bare = self._ids(text, False)
    ids = self._ids(text, True) if add_special_tokens else bare
    for lead in range(len(ids) - len(bare) + 1):
      if ids[lead : lead + len(bare)] == bare:
        place = np.arange(len(ids))
        return ids, (place >= lead) & (place < lead + len(bare))
    raise OffsetsUnusable(
      f"{self._who}: its ids with special tokens do not contain those without"
    )

  def _pieces(self, ids: Ids, alphabet: offsets_lib.Alphabet) -> list[bytes]:
    """The bytes that each id stands for."""
    known = self._known[alphabet]
    for i in set(ids.tolist()) - known.keys():
      known[i] = alphabet.to_bytes(self._piece(i), literal=i in self._added)
    return [known[i] for i in ids.tolist()]

  def _piece(self, i: int) -> str | bytes:
    if i in self._added:
      return self._added[i]
    if i < 0:
      piece = None
    elif self._fast:
      piece = self._backend.id_to_token(i)
    else:
      (piece,) = self._backend.convert_ids_to_tokens([i])
    if piece is None:
      raise ValueError(
        f"{self.name}: id {i} is not in its vocabulary of {self.vocab_size}"
      )
    return piece

  def _place(self, text: str, ids: Ids, reported: Offsets | None) -> Offsets:
    """Offsets of ids that stand for text, by the strongest evidence."""
    offsets = self._spell(text, ids)
    if offsets is not None:
      if reported is not None:
        wide = offsets[:, 0] < offsets[:, 1]
        wrong = wide & (offsets != reported).any(axis=1)
        self._warn(ids, reported, offsets, wrong)
      return offsets
    checked, confirmed = None, np.zeros(len(ids), bool)
    if reported is not None:
      checked, confirmed = self._check(text, ids, reported)
      if checked is not None and confirmed.all():
        return checked
    offsets, unplaced = self._walk(text, ids, lenient=True)
    if offsets is not None:
      if reported is not None:
        self._warn(ids, reported, offsets, ~confirmed)
      return offsets
    # A tokenizer of which most offsets are doubtful is not understood.
    if checked is None or 2 * confirmed.sum() < len(ids):
      known = reported is not None and len(ids) > 0
      at = int(confirmed.argmin()) if known else unplaced
      raise OffsetsUnusable(
        f"{self._who}: token {at} of {len(ids)}, "
        f"{[self._piece(i) for i in ids[at : at + 1].tolist()]}, cannot be "
        "placed in the text, neither by the tokenizer's offsets nor by its "
        "pieces. Use another tokenizer file of this model, or log-probs and "
        "offsets computed elsewhere"
      )
    logging.warning(
      "%s: %d of %d tokens cannot be traced to characters, so they are never "
      "key; the first is token %d, %r",
      self.name,
      len(ids) - confirmed.sum(),
      len(ids),
      confirmed.argmin(),
      self._piece(int(ids[confirmed.argmin()])),
    )
    return checked

  def _spell(self, text: str, ids: Ids) -> Offsets | None:
    for alphabet in self._alphabets:
      offsets = offsets_lib.spell(text, self._pieces(ids, alphabet), alphabet)
      if offsets is not None:
        # Most likely the next text's, too. A new list: others may read the old.
        self._alphabets = sorted(
          self._alphabets, key=lambda other: other is not alphabet
        )
        return offsets
    return None

  def _difference(self, text: str, ids: Ids) -> tuple[int, str]:
    """Where the pieces begin to spell something else, and what."""
    tries = []
    for alphabet in self._alphabets:
      joined = b"".join(self._pieces(ids, alphabet)).decode("utf-8", "replace")
      joined = joined.replace(alphabet.space, " ")
      for spelling in (joined, joined.removeprefix(" ")):
        tries.append((len(os.path.commonprefix([spelling, text])), spelling))
    return max(tries)

  def _check(
    self, text: str, ids: Ids, reported: Offsets
  ) -> tuple[Offsets | None, np.ndarray]:
    normalizer = self._backend.normalizer
    normalize = normalizer.normalize_str if normalizer else str
    tries = []
    for alphabet in self._alphabets:
      spelt = self._pieces(ids, alphabet)
      checked, confirmed = offsets_lib.check(text, spelt, reported, normalize)
      tries.append((checked is not None, confirmed.sum(), checked, confirmed))
      if checked is not None and confirmed.all():
        break
    return max(tries, key=lambda found: found[:2])[2:]

  def _walk(
    self, text: str, ids: Ids, *, lenient: bool
  ) -> tuple[Offsets | None, int]:
    tries = [
      offsets_lib.walk(
        text, self._pieces(ids, alphabet), alphabet, lenient=lenient
      )
      for alphabet in self._alphabets
    ]
    return max(tries, key=lambda found: (found[0] is not None, found[1]))

  def _warn(
    self, ids: Ids, reported: Offsets, offsets: Offsets, wrong: np.ndarray
  ) -> None:
    """Says once that the tokenizer's own offsets were not used."""
    if self._warned or not wrong.any():
      return
    self._warned = True
    at = int(wrong.argmax())
    logging.warning(
      "%s: offsets rebuilt from the tokens' pieces; the tokenizer reports %s "
      "for token %d, %r, which covers %s",
      self._who,
      tuple(reported[at].tolist()),
      at,
      self._piece(int(ids[at])),
      tuple(offsets[at].tolist()),
    )

  @property
  def _who(self):
    return f"{self.name} ({type(self._backend).__name__})"
