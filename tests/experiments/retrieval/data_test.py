"""Synthetic retrieval documents: answers that a far definition gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.experiments.retrieval import data
from longctx_jax.experiments.retrieval.data import CLASSES
from longctx_jax.experiments.retrieval.language import BOS, END, LINE, Language
from longctx_jax.paper.windows import Windows
from longctx_jax.training import rows

WORDS = Language()
DIGITS = Language(values=10, value_len=2)


def make(seed, language=WORDS, **changes):
  options = dict(
    count=5, seq_len=256, definitions=(6, 6), questions=(2, 2), layout="far"
  )  # fmt: skip
  return data.make_documents(
    language, np.random.default_rng(seed), **options | changes
  )


def read(language, ids):
  """Reads a document word by word; (classes of ids, answers' places)."""
  classes, answers, known = ["filler"], [], {}
  t = 1
  while t < len(ids):
    if ids[t] != LINE:
      assert language.first_filler <= ids[t] < language.vocab_size
      successors, _ = language.chain
      word, before = ids[t], ids[t - 1]
      if before >= language.first_filler:
        follows = successors[before - language.first_filler]
        assert word - language.first_filler in follows
      classes.append("filler")
      t += 1
      continue
    end = t + language.statement_len
    name, value = ids[t + 1], tuple(ids[t + 2 : end - 1])
    assert 4 <= name < language.first_value and ids[end - 1] == END
    assert all(language.first_value <= v < language.first_filler for v in value)
    asked = name in known
    kinds = ("question_name", "answer") if asked else (
      "definition_name", "definition_value",
    )  # fmt: skip
    if asked:
      assert known[name][0] == value
      answers.append((t, t - known[name][1]))
    else:
      known[name] = value, t
    classes += ["line", kinds[0], *[kinds[1]] * len(value), "end"]
    t = end
  return classes, answers, known


@given(
  st.integers(0, 99),
  st.sampled_from([WORDS, DIGITS]),
  st.sampled_from([("far", 256, 6, 6), ("natural", 256, 2, 8)]),
  st.tuples(st.integers(1, 6), st.integers(0, 4)),
)
@settings(deadline=None, max_examples=25)
def test_documents_read_back_as_they_are_labelled(
  seed, language, layout, questions
):
  name, seq_len, low, high = layout
  few, more = questions
  documents = make(
    seed, language, layout=name, seq_len=seq_len, definitions=(low, high),
    questions=(few, few + more),
  )  # fmt: skip
  places = []
  for b, ids in enumerate(documents.ids):
    assert ids[0] == BOS and len(ids) == seq_len + 1
    classes, answers, known = read(language, ids.tolist())
    assert [CLASSES[c] for c in documents.classes[b]] == classes[1:]
    assert few <= len(answers) <= few + more and low <= len(known) <= high
    places += [(b, *found) for found in answers]
    if name == "far":
      defined_last = max(t for _, t in known.values()) + language.statement_len
      assert defined_last <= 1 + 0.4 * seq_len
      assert min(t for t, _ in answers) >= 0.6 * seq_len
  expected = [
    [b, *range(t + 1, t + 1 + language.value_len)] for b, t, _ in places
  ]
  assert documents.answers.tolist() == expected
  assert documents.distances.tolist() == [d for _, _, d in places]


def test_each_definition_is_asked_for_once_before_one_is_again():
  documents = make(0, definitions=(3, 3), questions=(5, 5), count=50)
  asked = documents.ids[documents.answers[:, 0], documents.answers[:, 1]]
  for names in asked.reshape(50, 5):
    assert len(set(names[:3])) == 3 and len(set(names[3:])) == 2


def test_equal_seeds_give_equal_documents_and_others_do_not():
  a, b, c = make(3), make(3), make(4)
  np.testing.assert_array_equal(a.ids, b.ids)
  assert (a.ids != c.ids).any()
  np.testing.assert_array_equal(WORDS.chain[0], Language().chain[0])


def test_the_default_language_has_the_stated_size_and_entropy():
  assert (WORDS.vocab_size, DIGITS.vocab_size) == (132, 110)
  shares = np.diff(WORDS.chain[1], axis=1, prepend=0)
  entropy = -(shares * np.log(shares)).sum(axis=1).mean()
  assert entropy == pytest.approx(1.08, abs=0.1)
  documents = make(0, count=200)
  _, counts = data.sum_by_class(
    np.ones(documents.classes.shape), documents.classes
  )
  assert counts[CLASSES.index("answer")] / counts.sum() == 2 / 256
  assert 145 < documents.distances.mean() < 160


def test_copies_repeat_a_piece():
  documents = data.make_copies(
    WORDS, np.random.default_rng(0), count=20, seq_len=64
  )
  periods = set()
  for ids in documents.ids:
    (period,) = [p for p in range(16, 33) if (ids[1 + p :] == ids[1:-p]).all()][
      :1
    ]
    periods.add(period)
    assert ids[0] == BOS and ids[1:].min() >= 4
  assert len(periods) > 5
  assert (documents.classes == data.COPY).all()
  assert documents.answers.shape == (0, 2)


def test_parts_and_mixtures_keep_their_answers():
  first = make(0)
  second = data.make_copies(
    WORDS, np.random.default_rng(0), count=5, seq_len=256
  )
  mixed = data.interleave(first, second)
  np.testing.assert_array_equal(mixed.ids[::2], first.ids)
  np.testing.assert_array_equal(mixed.ids[1::2], second.ids)
  part = mixed.take(4, 7)
  right = part.classes != data.ANSWER
  assert len(part) == 3 and len(part.answers) == 4
  assert not part.exact_match(right).any()
  assert part.exact_match(~right).all()


def test_an_answer_is_right_when_all_of_its_tokens_are():
  documents = make(0, DIGITS, count=1)
  right = np.ones(documents.classes.shape, bool)
  right[0, documents.answers[1, 2]] = False
  assert documents.exact_match(right).tolist() == [True, False]


def test_values_are_summed_by_the_class_of_their_target():
  sums, counts = data.sum_by_class(
    np.array([[1.0, 2.0], [4.0, 8.0]]), np.array([[0, 5], [5, 0]], np.int8)
  )
  assert sums[[0, 5]].tolist() == [9, 6] and sums.sum() == 15
  assert counts[[0, 5]].tolist() == [2, 2] and len(counts) == len(CLASSES)


def test_a_batch_is_that_of_the_pipeline():
  documents = make(0)
  weights = np.random.default_rng(0).random((5, 256))
  batch = documents.batch(windows=Windows(64, 32), weights=weights)
  expected = rows.stack(
    [
      rows.make_row(
        [ids], seq_len=256, packed=False, windows=Windows(64, 32), weights=[w]
      )
      for ids, w in zip(documents.ids, weights, strict=True)
    ]
  )
  assert batch.keys() == expected.keys()
  for name in batch:
    np.testing.assert_array_equal(batch[name], expected[name])
    assert batch[name].dtype == expected[name].dtype
  assert batch["window_start"].shape == (5, 6)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(layout="near"), "layout='near' is not one of far, natural"),
    (dict(definitions=(33, 33)), "the language has 32 names"),
    (dict(questions=(0, 2)), r"questions=\(0, 2\): fewest and most"),
    (dict(seq_len=59), "seq_len=59 is too short .* it takes 60"),
    (
      dict(seq_len=31, layout="natural"),
      "seq_len=31 is too short for 6 definitions .* it takes 32",
    ),
  ],
)
def test_what_cannot_be_made_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    make(0, **changes)


@pytest.mark.parametrize("layout", data.LAYOUTS)
def test_the_least_length_fits(layout):
  make(0, seq_len=60 if layout == "far" else 32, layout=layout)
