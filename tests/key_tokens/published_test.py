"""Totals of the 150 published slice files: paper section 3.3.

The texts are stand-ins, since nothing but their lengths is looked at.
"""

import itertools

import numpy as np
import pytest

from longctx_jax.key_tokens import slices
from longctx_jax.text import corpus as corpus_lib

pytestmark = pytest.mark.golden

QWEN = "Qwen2-72B-Instruct"
MISTRAL = "Mistral-Large-Instruct-2407"
LLAMA = "Meta-Llama-3.1-8B"
EVALUATORS = (QWEN, MISTRAL, LLAMA)
TEXT_LENGTH = 140_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  folder = tmp_path_factory.mktemp("texts")
  for i in range(50):
    (folder / f"{i:02d}.txt").write_text("x" * TEXT_LENGTH)
  return corpus_lib.open_corpus(folder)


@pytest.fixture
def spans_of(golden_dir, corpus):
  """Evaluator -> the spans of its 50 documents."""

  def read(evaluator):
    folder = golden_dir / "key_text" / evaluator
    store = slices.read_slice_store(folder, corpus)
    assert len(store) == 50 and store.manifest.evaluator == evaluator
    return [keys.spans for keys in store]

  return read


def masks(spans):
  """Key characters, bool [50, characters]."""
  mask = np.zeros((50, TEXT_LENGTH), bool)
  for document, found in enumerate(spans):
    for start, end in found:
      mask[document, start:end] = True
  return mask


@pytest.mark.parametrize(
  "evaluator, per_document, characters, lengths, counts, ends",
  [
    (
      QWEN,
      (2_705, 0, 44.5, 193),
      (19_511, 324.5, 1_430),
      (7, 7.2, 50),
      (215, 50),
      (22_941, 139_928),
    ),
    (
      MISTRAL,
      (2_411, 2, 38, 185),
      (14_874, 251.5, 1_185),
      (5, 6.2, 41),
      (225, 38),
      (21_935, 139_928),
    ),
    (
      LLAMA,
      (2_965, 7, 47, 205),
      (21_575, 355.5, 1_519),
      (6, 7.3, 50),
      (128, 62),
      (25_150, 139_996),
    ),
  ],
)
def test_totals_of_an_evaluator(
  spans_of, evaluator, per_document, characters, lengths, counts, ends
):
  spans = spans_of(evaluator)
  numbers = [len(found) for found in spans]
  assert per_document == (
    *(sum(numbers), min(numbers), np.median(numbers), max(numbers)),
  )
  every = np.concatenate(spans)
  sizes = every[:, 1] - every[:, 0]
  sums = [int((found[:, 1] - found[:, 0]).sum()) for found in spans]
  assert characters == (sum(sums), np.median(sums), max(sums))
  assert lengths == (np.median(sizes), round(sizes.mean(), 1), sizes.max())
  gaps = np.concatenate([found[1:, 0] - found[:-1, 1] for found in spans])
  assert counts == ((sizes == 1).sum(), (gaps == 1).sum())
  assert ends == (every[:, 0].min(), every[:, 1].max())
  # Sorted, apart, and merged where they touch.
  assert gaps.min() >= 1


def test_one_document_of_one_evaluator_has_no_key_tokens(spans_of):
  none = {
    evaluator: [
      i for i, found in enumerate(spans_of(evaluator)) if not len(found)
    ]
    for evaluator in EVALUATORS
  }
  assert none == {QWEN: [9], MISTRAL: [], LLAMA: []}


def test_evaluators_share_a_quarter_of_their_key_characters(spans_of):
  spans = {evaluator: spans_of(evaluator) for evaluator in EVALUATORS}
  mask = {evaluator: masks(found) for evaluator, found in spans.items()}
  expected = {
    (QWEN, MISTRAL): (0.50, 0.66, 0.400, 0.358, 971),
    (QWEN, LLAMA): (0.67, 0.61, 0.466, 0.413, 1_369),
    (MISTRAL, LLAMA): (0.64, 0.44, 0.353, 0.314, 883),
  }
  for first, second in itertools.combinations(EVALUATORS, 2):
    both = (mask[first] & mask[second]).sum(axis=1)
    either = (mask[first] | mask[second]).sum(axis=1)
    identical = sum(
      len({*map(tuple, a)} & {*map(tuple, b)})
      for a, b in zip(spans[first], spans[second], strict=True)
    )
    assert expected[first, second] == (
      round(both.sum() / mask[first].sum(), 2),
      round(both.sum() / mask[second].sum(), 2),
      round(both.sum() / either.sum(), 3),
      round((both / either).mean(), 3),
      identical,
    )
  votes = sum(each.astype(int) for each in mask.values())
  agreed = [int((votes >= number).sum()) for number in (1, 2, 3)]
  assert agreed == [31_595, 16_335, 8_030]
  alone = [int((mask[e] & (votes == 1)).sum()) for e in EVALUATORS]
  assert alone == [4_659, 3_575, 7_026]


def test_five_documents_hold_over_a_quarter_of_the_key_characters(spans_of):
  for evaluator, expected in (
    (QWEN, (0.29, 0.45)),
    (MISTRAL, (0.28, 0.45)),
    (LLAMA, (0.28, 0.46)),
  ):
    sums = np.sort(masks(spans_of(evaluator)).sum(axis=1))[::-1]
    shares = [sums[:number].sum() / sums.sum() for number in (5, 10)]
    assert expected == tuple(np.round(shares, 2))
  smallest = spans_of(MISTRAL)[39]
  sizes = smallest[:, 1] - smallest[:, 0]
  assert (len(sizes), sizes.sum()) == (2, 11)
