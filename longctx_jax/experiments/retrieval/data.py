"""Synthetic documents that only a long context predicts: names and values.

Words of a random Markov chain, in which one word of context is enough, are
broken by statements LINE name value END. The first statement of a name defines
its value, which nothing predicts; a later one asks for it, and its value tokens
are the answers. Definition and question look the same. In the "far" layout all
definitions lie in the first 40 % of a document and all questions in the last
40 %; in the "natural" one statements lie anywhere.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Bool, Int

from longctx_jax.experiments.retrieval import language as language_lib
from longctx_jax.experiments.retrieval.language import Language
from longctx_jax.paper.windows import Windows
from longctx_jax.training import rows

CLASSES = (
  "filler",
  "line",
  "definition_name",
  "definition_value",
  "question_name",
  "answer",
  "end",
  "copy",
)


FILLER, ANSWER, COPY = map(CLASSES.index, ("filler", "answer", "copy"))


LAYOUTS = ("far", "natural")
# Share of a far document that holds the definitions, and the questions.
_ZONE = 0.4


@dataclasses.dataclass(frozen=True, eq=False)
class Documents:
  """Documents of one length, and what each target is.

  Attributes:
    ids: int32 [B, T + 1], BOS first.
    classes: int8 [B, T], index into CLASSES of each target.
    answers: int64 [A, 1 + value_len]: document of an answer, then the indices
      of its targets.
    distances: int64 [A], tokens from definition to question.
  """

  ids: np.ndarray
  classes: np.ndarray
  answers: np.ndarray
  distances: np.ndarray

  def __len__(self) -> int:
    return len(self.ids)

  def take(self, start: int, stop: int) -> Documents:
    """The documents from start up to stop."""
    inside = (start <= self.answers[:, 0]) & (self.answers[:, 0] < stop)
    answers = self.answers[inside].copy()
    answers[:, 0] -= start
    return Documents(
      self.ids[start:stop],
      self.classes[start:stop],
      answers,
      self.distances[inside],
    )

  def exact_match(self, right: np.ndarray) -> np.ndarray:
    """Whether all tokens of an answer are right, for each.

    Args:
      right: bool [B, T], where a prediction equals the target.

    Returns:
      bool [A].
    """
    return right[self.answers[:, :1], self.answers[:, 1:]].all(axis=1)

  def batch(
    self,
    *,
    windows: Windows | None = None,
    weights: np.ndarray | None = None,
  ) -> dict[str, np.ndarray]:
    """The documents as a training batch; see `rows.make_row`.

    Args:
      windows: of the short contexts; None plans none.
      weights: float [B, T].
    """
    count, n = self.ids.shape
    batch = {
      "inputs": self.ids[:, :-1],
      "targets": self.ids[:, 1:],
      "loss_mask": np.ones((count, n - 1), np.float32),
    }
    if windows:
      plan = rows.plan_row([n], seq_len=n - 1, windows=windows)
      batch |= {
        name: np.tile(values, (count, 1)) for name, values in plan.items()
      }
    if weights is not None:
      batch["weights"] = weights.astype(np.float32)
    return batch


def sum_by_class(
  values: np.ndarray, classes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Sum and number of values by class of their targets.

  Args:
    values: float, of any shape, e.g. the NLL [B, T].
    classes: int, of the same shape.

  Returns:
    (sums float64 [C], counts int64 [C]) in the order of CLASSES.
  """
  classes = classes.ravel()
  sums = np.bincount(classes, values.ravel(), minlength=len(CLASSES))
  return sums, np.bincount(classes, minlength=len(CLASSES))


def make_documents(
  language: Language,
  rng: np.random.Generator,
  *,
  count: int,
  seq_len: int,
  definitions: tuple[int, int],
  questions: tuple[int, int],
  layout: str,
) -> Documents:
  """Makes documents with definitions and, later, questions for them.

  Names of a document differ; its questions ask for each definition once before
  they ask for one again.

  Args:
    language: the words.
    rng: source of everything random here.
    count: B.
    seq_len: T, targets of a document.
    definitions: fewest and most of a document.
    questions: fewest and most of a document.
    layout: "far" or "natural".

  Raises:
    ValueError: an unknown layout, more definitions than names, or statements
      that do not fit; the least seq_len is given.
  """
  _check(language, seq_len, definitions, questions, layout)
  step = language.statement_len
  asked, defined = (
    rng.integers(low, high + 1, count) for low, high in (questions, definitions)
  )
  zone = int(seq_len * _ZONE) if layout == "far" else seq_len
  if layout == "far":
    define_at = 1 + _places(rng, defined, zone, step, definitions[1])
    ask_at = 1 + seq_len - zone
    ask_at = ask_at + _places(rng, asked, zone, step, questions[1])
  else:
    most = definitions[1] + questions[1]
    places = 1 + _places(rng, defined + asked, zone, step, most)
    define_at = places[:, : definitions[1]]
    # Questions come after the definitions that a document really has.
    later = defined[:, None] + np.arange(questions[1])
    ask_at = np.take_along_axis(places, np.minimum(later, most - 1), axis=1)
  names = np.argsort(rng.random((count, language.names)), axis=1)
  names = names[:, : definitions[1]]
  values = rng.integers(
    language.values, size=(count, definitions[1], language.value_len)
  )
  of = _ask_for(rng, defined, definitions, questions[1])
  ids = language.filler(rng, count, seq_len + 1)
  kinds = np.full(ids.shape, FILLER, np.int8)
  row = np.arange(count)[:, None]
  for places, present, which, kind in (
    (define_at, _first(defined, definitions[1]), None, "definition_"),
    (ask_at, _first(asked, questions[1]), of, "question_"),
  ):
    index = np.broadcast_to(np.arange(places.shape[1]), places.shape)
    index = index if which is None else which
    _write(
      ids,
      kinds,
      places,
      present,
      name=language_lib.FIRST_NAME + names[row, index],
      value=language.first_value + values[row, index],
      kind=kind,
    )
  document, number = np.nonzero(_first(asked, questions[1]))
  at = ask_at[document, number]
  # Target t is id t + 1: the values follow LINE and the name.
  targets = at[:, None] + 1 + np.arange(language.value_len)
  return Documents(
    ids=ids,
    classes=kinds[:, 1:],
    answers=np.concatenate([document[:, None], targets], axis=1),
    distances=at - define_at[document, of[document, number]],
  )


def make_copies(
  language: Language, rng: np.random.Generator, *, count: int, seq_len: int
) -> Documents:
  """Documents that repeat a random piece: they teach a model to look back.

  A piece of T / 4 to T / 2 words, uniform over the vocabulary, fills the
  document. Without such documents retrieval does not form in minutes.

  Args:
    language: the words.
    rng: source of everything random here.
    count: B.
    seq_len: T, targets of a document.
  """
  lengths = rng.integers(seq_len // 4, seq_len // 2 + 1, count)
  pieces = rng.integers(
    language_lib.FIRST_NAME, language.vocab_size, (count, max(seq_len // 2, 1))
  )
  at = np.arange(seq_len) % np.maximum(lengths, 1)[:, None]
  ids = np.zeros((count, seq_len + 1), np.int32)
  ids[:, 0] = language_lib.BOS
  ids[:, 1:] = np.take_along_axis(pieces, at, axis=1)
  return Documents(
    ids=ids,
    classes=np.full((count, seq_len), COPY, np.int8),
    answers=np.zeros((0, 1 + language.value_len), np.int64),
    distances=np.zeros(0, np.int64),
  )


def interleave(first: Documents, second: Documents) -> Documents:
  """Documents of two kinds in turn: first, second, first, ..."""
  answers = [first.answers.copy(), second.answers.copy()]
  for offset, part in enumerate(answers):
    part[:, 0] = 2 * part[:, 0] + offset
  return Documents(
    ids=_zip(first.ids, second.ids),
    classes=_zip(first.classes, second.classes),
    answers=np.concatenate(answers),
    distances=np.concatenate([first.distances, second.distances]),
  )


def _zip(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  return np.stack([first, second], axis=1).reshape(-1, *first.shape[1:])


def _check(
  language: Language,
  seq_len: int,
  definitions: tuple[int, int],
  questions: tuple[int, int],
  layout: str,
) -> None:
  if layout not in LAYOUTS:
    raise ValueError(f"layout={layout!r} is not one of {', '.join(LAYOUTS)}")
  for name, (low, high) in (
    ("definitions", definitions),
    ("questions", questions),
  ):
    if not 1 <= low <= high:
      raise ValueError(f"{name}={low, high}: fewest and most, from 1 up")
  if definitions[1] > language.names:
    raise ValueError(
      f"definitions={definitions}: the language has {language.names} names"
    )
  most = definitions[1] + questions[1]
  tokens, zone = most * language.statement_len, seq_len
  if layout == "far":
    tokens = max(definitions[1], questions[1]) * language.statement_len
    zone = int(seq_len * _ZONE)
  if tokens > zone:
    least = int(np.ceil(tokens / _ZONE)) if layout == "far" else tokens
    raise ValueError(
      f"seq_len={seq_len} is too short for {definitions[1]} definitions and "
      f"{questions[1]} questions in the {layout} layout: it takes {least}"
    )


def _first(
  counts: Int[np.ndarray, " B"], most: int
) -> Bool[np.ndarray, "B most"]:
  """Which of `most` items each document has: the first ones."""
  return np.arange(most) < counts[:, None]


def _places(
  rng: np.random.Generator,
  counts: Int[np.ndarray, " B"],
  zone: int,
  step: int,
  most: int,
) -> Int[np.ndarray, "B most"]:
  """Random places, `step` apart or more, for each document's statements."""
  free = zone - counts * step
  drawn = np.where(_first(counts, most), rng.random((len(counts), most)), 1.0)
  gaps = np.sort(drawn, axis=1) * (free[:, None] + 1)
  return np.minimum(gaps.astype(np.int64), free[:, None]) + step * np.arange(
    most
  )


def _ask_for(
  rng: np.random.Generator,
  defined: Int[np.ndarray, " B"],
  definitions: tuple[int, int],
  most: int,
) -> Int[np.ndarray, "B most"]:
  """Which definition each question asks for: all in turn, shuffled anew."""
  rounds = -(-most // definitions[0])
  drawn = rng.random((len(defined), rounds, definitions[1]))
  drawn = np.where(_first(defined, definitions[1])[:, None], drawn, 2.0)
  turns = np.argsort(drawn, axis=2)
  turn, place = np.divmod(np.arange(most), defined[:, None])
  return turns[np.arange(len(defined))[:, None], turn, place]


def _write(
  ids: Int[np.ndarray, "B n"],
  kinds: Int[np.ndarray, "B n"],
  places: Int[np.ndarray, "B S"],
  present: Bool[np.ndarray, "B S"],
  *,
  name: Int[np.ndarray, "B S"],
  value: Int[np.ndarray, "B S V"],
  kind: str,
) -> None:
  """Writes the statements that are present over the filler."""
  value_kind = "answer" if kind == "question_" else f"{kind}value"
  tokens = [(language_lib.LINE, "line"), (name, f"{kind}name")]
  tokens += [(value[..., i], value_kind) for i in range(value.shape[-1])]
  tokens += [(language_lib.END, "end")]
  document, _ = np.nonzero(present)
  for offset, (token, label) in enumerate(tokens):
    at = places[present] + offset
    ids[document, at] = np.broadcast_to(token, present.shape)[present]
    kinds[document, at] = CLASSES.index(label)
