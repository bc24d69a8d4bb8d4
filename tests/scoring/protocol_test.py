"""What each protocol lets a model read, against ids and offsets by hand."""

import dataclasses
import re
import types

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import definition, manifests
from support.checks import one_device_mesh

from longctx_jax import longppl, testing
from longctx_jax.evaluation import passes, results
from longctx_jax.model.transformer import Transformer
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import finder, protocol
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.text import corpus
from longctx_jax.text.tokenizer import OffsetsUnusable, TextTokenizer

BOS = 256
WITH_BOS = TextTokenizer(testing.byte_tokenizer(add_bos=True), name="bos")
WITHOUT_BOS = TextTokenizer(testing.byte_tokenizer(), name="plain")
TEXT = "a🙂é b"
READERS = [
  ("paper", True),
  ("paper", False),
  ("strict", True),
  ("strict", False),
]


def prepare(text, tokenizer=WITH_BOS, **changes):
  arguments = dict(
    protocol="paper",
    is_evaluator=True,
    max_length=10**6,
    over_length="truncate_end",
  )
  return protocol.prepare(text, tokenizer, **arguments | changes)


def byte_ids(text):
  return testing.byte_tokenizer().encode(text).ids


def byte_offsets(text):
  """Each byte has the whole character (cases A5)."""
  return [[i, i + 1] for i, char in enumerate(text) for _ in char.encode()]


@pytest.mark.parametrize(
  ("protocol_name", "is_evaluator", "has_bos", "prefix_len"),
  [
    ("paper", True, True, 0),
    ("paper", False, False, 0),
    ("strict", True, True, 1),
    ("strict", False, True, 1),
  ],
)
def test_who_reads_the_bos(protocol_name, is_evaluator, has_bos, prefix_len):
  """Cases A11: one BOS, in front, that is no target."""
  got = prepare(TEXT, protocol=protocol_name, is_evaluator=is_evaluator)
  assert got.ids.tolist() == [BOS] * has_bos + byte_ids(TEXT)
  assert got.ids.dtype == np.int32
  assert got.prefix_len == prefix_len
  # One offset per target: without a BOS the first byte is none.
  assert got.offsets.tolist() == byte_offsets(TEXT)[not has_bos :]
  assert got.n_tokens == got.n_tokens_full == len(got.offsets)
  assert got.n_text == len(byte_ids(TEXT)) + (has_bos and not prefix_len)
  assert (got.n_chars, got.truncated, got.reason) == (5, False, "")
  if has_bos:
    assert got.unpredicted is None
  else:
    assert got.unpredicted.tolist() == [0, 1]


@pytest.mark.parametrize(("protocol_name", "is_evaluator"), READERS)
def test_without_a_bos_the_first_token_is_unscored(protocol_name, is_evaluator):
  """Cases A13: no id stands in for a BOS that the tokenizer does not have."""
  got = prepare(
    TEXT, WITHOUT_BOS, protocol=protocol_name, is_evaluator=is_evaluator
  )
  assert got.ids.tolist() == byte_ids(TEXT)
  assert got.prefix_len == 0
  assert got.n_tokens == len(byte_ids(TEXT)) - 1
  assert got.offsets.tolist() == byte_offsets(TEXT)[1:]


@settings(deadline=None)
@given(
  text=st.text("ab é🙂中", min_size=1, max_size=30),
  max_length=st.integers(8, 40),
  reader=st.sampled_from(READERS),
)
def test_a_cut_document_is_the_text_before_the_cut(text, max_length, reader):
  """Cases C5: between characters, and as long as fits."""
  reader = dict(zip(("protocol", "is_evaluator"), reader, strict=True))
  whole = prepare(text, **reader)
  assume(not whole.reason)
  got = prepare(text, max_length=max_length, **reader)
  assert len(got.ids) <= max_length
  assert got.truncated == (len(whole.ids) > max_length)
  assert got.n_tokens_full == whole.n_tokens
  part = prepare(text[: got.n_chars], **reader)
  np.testing.assert_array_equal(got.ids, part.ids)
  np.testing.assert_array_equal(got.offsets, part.offsets)
  if got.truncated:
    longer = prepare(text[: got.n_chars + 1], **reader)
    assert len(longer.ids) > max_length


def test_over_length_policies_at_the_limit():
  """Cases B7, C6: one id too many is a policy, not an index error."""
  for policy in protocol.OVER_LENGTH:
    got = prepare("abcdefg", max_length=8, over_length=policy)
    assert (len(got.ids), got.truncated, got.reason) == (8, False, "")
  cut = prepare("abcdefgh", max_length=8, over_length="truncate_end")
  assert (cut.n_tokens, cut.n_tokens_full, cut.n_chars) == (7, 8, 7)
  skipped = prepare("abcdefgh", max_length=8, over_length="skip")
  assert skipped.reason == "too_long"
  assert (skipped.n_tokens, skipped.n_tokens_full) == (0, 8)
  with pytest.raises(ValueError, match="9 ids, the limit is 8.*truncate_end"):
    prepare("abcdefgh", max_length=8, over_length="error")


class Unplaceable:
  """A tokenizer whose offsets cannot be proved."""

  leading_bos = None

  def encode(self, text, *, add_special_tokens):
    raise OffsetsUnusable(text)


@pytest.mark.parametrize(
  ("text", "tokenizer", "reader", "reason"),
  [
    ("", WITH_BOS, ("strict", True), "empty"),
    ("", WITH_BOS, ("paper", True), "empty"),
    ("", WITHOUT_BOS, ("paper", False), "empty"),
    ("a", WITH_BOS, ("paper", False), "nothing_to_score"),
    ("a", WITHOUT_BOS, ("strict", True), "nothing_to_score"),
    ("a", WITH_BOS, ("strict", True), ""),
    ("é", WITHOUT_BOS, ("paper", False), ""),
    ("abc", Unplaceable(), ("paper", True), "unusable_offsets"),
  ],
)
def test_reasons(text, tokenizer, reader, reason):
  """Cases C4, A3."""
  got = prepare(text, tokenizer, protocol=reader[0], is_evaluator=reader[1])
  assert got.reason == reason
  assert got.n_tokens == len(got.offsets) == (0 if reason else 1)


def test_a_limit_that_leaves_no_target_is_named():
  with pytest.raises(ValueError, match="max_length=1 must be at least 2"):
    prepare("abc", max_length=1)


@pytest.mark.parametrize("bad", [("papers", "skip"), ("paper", "truncate")])
def test_unknown_names_are_refused_with_the_known(bad):
  with pytest.raises(ValueError, match=r"=.*is not one of (paper|truncate_)"):
    protocol.check_protocol(*bad)


class StubScorer:
  """Scores every target alike, by whether a BOS stands first."""

  def __init__(self, tokenizer, *, with_bos, without, start=0):
    self.model = types.SimpleNamespace(
      name="stub",
      tokenizer=tokenizer,
      config=types.SimpleNamespace(max_position=1000),
    )
    self.levels = {True: with_bos, False: without}
    self.start = start
    self.read = []

  def score_long(self, jobs):
    for job in jobs:
      self.read.append(job.ids)
      has_bos = job.ids[0] == BOS
      long = np.full(len(job.ids) - 1, self.levels[has_bos], np.float32)
      # The bare ids lack the first target, and any context before the rest.
      long[: self.start + has_bos] = -1000 * has_bos
      yield scorer_lib.Scores(job, long, long)


@pytest.mark.parametrize("with_bos", [-4.0, -6.0])
def test_a_nat_per_token_is_tolerated(with_bos):
  scorer = StubScorer(WITH_BOS, with_bos=with_bos, without=-5.0)
  protocol.check_bos(scorer, ["ab" * 20])
  assert len(scorer.read) == 2


@pytest.mark.parametrize("with_bos", [-3.75, -6.25])
def test_more_than_a_nat_per_token_is_refused_with_both_numbers(with_bos):
  """Cases A11; the first 512 targets decide."""
  scorer = StubScorer(WITH_BOS, with_bos=with_bos, without=-5.0)
  with pytest.raises(
    ValueError,
    match=f"stub needs its BOS.* 496 targets.*{with_bos}.*-5.00.*'strict'",
  ):
    protocol.check_bos(scorer, ["ab" * 400])
  assert sorted(map(len, scorer.read)) == [513, 514]


@pytest.mark.parametrize(
  ("lengths", "chosen", "looked_at"),
  [
    # A first document of one id says nothing of a model that needs its BOS.
    ([1, 0, 512, 513, 2000], 3, 4),
    ([700, 900], 0, 1),
    ([40, 512, 300], 1, 3),
  ],
)
def test_the_bos_is_checked_on_the_first_long_document_else_the_longest(
  lengths, chosen, looked_at
):
  """Cases A11; nothing is read past that document."""
  scorer = StubScorer(WITH_BOS, with_bos=0.0, without=-9.0)
  texts = iter([chr(97 + i) * n for i, n in enumerate(lengths)])
  read = min(lengths[chosen], 513)
  with pytest.raises(ValueError, match=f" {read - 17} targets"):
    protocol.check_bos(scorer, texts)
  bare, with_bos = scorer.read
  assert bare.tolist() == byte_ids(chr(97 + chosen)) * read
  assert with_bos.tolist() == [BOS, *bare]
  assert len(list(texts)) == len(lengths) - looked_at


@pytest.mark.parametrize(("start", "refused"), [(16, False), (17, True)])
def test_the_first_16_targets_say_nothing_of_the_bos(start, refused):
  """A model that can do without is lost at the start all the same."""
  scorer = StubScorer(WITH_BOS, with_bos=-5.0, without=-5.0, start=start)
  if refused:
    with pytest.raises(ValueError, match="needs its BOS"):
      protocol.check_bos(scorer, ["ab" * 50])
  else:
    protocol.check_bos(scorer, ["ab" * 50])
  assert len(scorer.read) == 2


def test_evaluator_and_model_are_checked_by_one_rule(parrot):
  """Over a corpus, whose first document has one token."""
  scorer = StubScorer(WITH_BOS, with_bos=0.0, without=-9.0)
  scorer.model = parrot
  texts = ["a", "ab" * 50]
  documents = [
    corpus.Document(str(i), i, text, None, {}) for i, text in enumerate(texts)
  ]
  manifest = manifests.make()
  with pytest.raises(ValueError, match="needs its BOS"):
    finder.Finder(scorer, manifest).check_bos(documents)
  with pytest.raises(ValueError, match="needs its BOS"):
    passes.Evaluation(scorer, manifest).check_bos(texts)
  strict = manifests.make(protocol="strict")
  finder.Finder(scorer, strict).check_bos(documents)
  passes.Evaluation(scorer, strict).check_bos(texts)


def test_no_more_is_read_than_the_model_can():
  scorer = StubScorer(WITH_BOS, with_bos=-5.0, without=-5.0)
  scorer.model.config.max_position = 300
  protocol.check_bos(scorer, ["ab" * 400])
  assert sorted(map(len, scorer.read)) == [299, 300]


@pytest.mark.parametrize(
  ("tokenizer", "text"),
  [(WITHOUT_BOS, "a" * 99), (None, "a" * 99), (WITH_BOS, "a" * 17)],
)
def test_nothing_is_checked_where_there_is_no_bos_to_miss(tokenizer, text):
  """Cases A13."""
  scorer = StubScorer(tokenizer, with_bos=0.0, without=-9.0)
  protocol.check_bos(scorer, [text])
  assert not scorer.read


@given(
  n=st.integers(1, 5000),
  short_len=st.integers(1, 5000),
  stride=st.integers(1, 5000),
)
def test_the_windows_suggested_to_a_short_document_fit(n, short_len, stride):
  """Cases C2."""
  assume(stride <= short_len and n <= short_len + stride)
  message = protocol.explain_too_short(n, Windows(short_len, stride))
  assert f"of {n} ids" in message
  assert f"more than {short_len + stride}" in message
  suggestion = re.search(
    r"With short_len=(\d+) and stride=(\d+), (\d+) of its ids", message
  )
  assert (suggestion is None) == (n <= 3)
  if suggestion:
    short_len, stride, eligible = map(int, suggestion.groups())
    plan = Windows(short_len, stride).plan(n)
    later = slice(1, None)
    scored = plan.score_end[later] - plan.score_start[later]
    assert 0 < eligible == scored.sum()


def test_a_text_that_holds_the_bos_is_called_out(caplog):
  """Cases A12: its ids stay what they are; that it happens is said."""
  got = prepare("ab<bos>c<bos>", protocol="strict")
  assert (got.ids == BOS).sum() == 3 and got.prefix_len == 1
  assert "holds the BOS itself, 2 times" in caplog.text
  caplog.clear()
  prepare("abc", protocol="strict")
  assert not caplog.text


def test_a_text_that_the_model_has_no_embedding_for_fails_alone(caplog):
  tokenizer = TextTokenizer(testing.byte_tokenizer(), name="bytes")
  tokenizer.restrict(256)
  assert prepare("abc", tokenizer, protocol="strict").reason == ""
  assert prepare("ab<bos>c", tokenizer, protocol="strict").reason == "failed"
  assert "'<bos>', has id 256, and the model 256 embeddings" in caplog.text


class NeedsBos(Transformer):
  """Knows nothing, that is predicts uniformly, unless a BOS stands first."""

  def __call__(self, ids, **options):
    return super().__call__(ids, **options) * (ids[:, :1] == BOS)[..., None]


@pytest.fixture(scope="module")
def parrot():
  """A model that expects the last character again."""
  model = testing.tiny_model(mesh=one_device_mesh(), add_bos=True)
  params = jax.tree_util.tree_map_with_path(
    lambda path, leaf: leaf * 3 if "embedding" in str(path) else leaf,
    model.params,
  )
  return dataclasses.replace(model, params=params)


@pytest.fixture(scope="module")
def needs_bos(parrot):
  abstract = nnx.eval_shape(lambda: NeedsBos(parrot.config, dtype=np.float32))
  graphdef, _ = nnx.split(abstract, nnx.Param)
  return dataclasses.replace(parrot, graphdef=graphdef)


RUNS = ("a" * 20 + "b" * 20) * 3
WINDOWS = dict(short_len=48, stride=16)


def test_strict_gives_a_model_its_bos_in_every_window(needs_bos, parrot):
  """Cases A14: the mask of the model that can do without."""
  keys, expected = (
    longppl.find_key_tokens(RUNS, model, **WINDOWS, protocol="strict")
    for model in (needs_bos, parrot)
  )
  assert 0 < expected.key_mask.sum() < 28
  np.testing.assert_array_equal(keys.key_mask, expected.key_mask)
  np.testing.assert_array_equal(keys.short_log_probs, expected.short_log_probs)
  # The BOS is no text: 120 ids, of which 64 come too early.
  assert keys.n_tokens == 120
  assert keys.n_eligible == 120 - 64
  assert not _warnings_of_bos(keys)


def test_paper_stops_at_a_model_that_needs_its_bos(needs_bos, parrot):
  """Cases A11, A14."""
  ids = np.array([BOS, *byte_ids(RUNS)])
  with_bos = definition.log_probs(parrot, ids)[17:].mean()
  numbers = f"103 targets.*{with_bos:.2f} nats with.*{-np.log(263):.2f} without"
  with pytest.raises(ValueError, match=numbers):
    longppl.find_key_tokens(RUNS, needs_bos, **WINDOWS)
  protocol.check_bos(scorer_lib.make_scorer(parrot, Windows(**WINDOWS)), [RUNS])


def test_paper_windows_without_bos_make_most_tokens_key(
  needs_bos, parrot, monkeypatch
):
  """Cases A14: the reference's result, with a warning."""
  monkeypatch.setattr(protocol, "check_bos", lambda scorer, texts: None)
  keys = longppl.find_key_tokens(RUNS, needs_bos, **WINDOWS)
  ids = np.array([BOS, *byte_ids(RUNS)])
  long = definition.log_probs(parrot, ids)
  uniform = -np.log(parrot.config.vocab_size)
  late = np.arange(1, len(ids)) >= 48 + 16
  expected = (long - uniform > 2) & (long > -2) & late
  np.testing.assert_array_equal(keys.key_mask, expected)
  assert expected.sum() > 0.5 * late.sum()
  (warning,) = _warnings_of_bos(keys)
  share = expected.sum() / late.sum()
  assert warning.startswith(f"{share:.0%} of the eligible tokens are key")


def _warnings_of_bos(keys):
  result = passes.document_result(keys, RUNS, keys.offsets, keys.long_log_probs)
  pooled = results.summarise(
    [result],
    protocol_name="paper",
    self_evaluated=True,
    scores=[keys.scores],
  )
  return [warning for warning in pooled.warnings if "BOS" in warning]
