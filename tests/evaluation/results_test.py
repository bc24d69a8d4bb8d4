"""Pooled results: identities between the numbers, and their warnings."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.evaluation import caveats, results
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.results import ModelResult


def document(regions=((1.0,),), **changes):
  """A document whose key regions hold these losses."""
  key_nll = math.fsum(map(math.fsum, regions))
  n_keys = sum(map(len, regions))
  fields = dict(
    doc_id="d",
    doc_index=0,
    reason="" if n_keys else "no_key_tokens",
    n_tokens=n_keys + 10,
    nll_sum=key_nll + 25.0,
    n_bytes=40,
    n_words=7,
    region_nll_sums=tuple(map(math.fsum, regions)),
    region_counts=tuple(map(len, regions)),
    key_bytes=3 * n_keys,
    n_eligible=2 * n_keys + 1,
    key_chars=3 * n_keys,
    covered_chars=3 * n_keys,
  )
  return DocumentResult(**fields | changes)


EMPTY = DocumentResult("e", 1, "empty")


def summarise(documents, protocol_name="paper", **changes):
  arguments = dict(protocol_name=protocol_name, self_evaluated=False)
  return results.summarise(documents, **arguments | changes)


def exp_mean(nlls):
  return math.exp(math.fsum(nlls) / len(nlls)) if nlls else None


regions = st.lists(
  st.lists(st.floats(0, 20, width=32), min_size=1, max_size=4), max_size=4
)


@settings(deadline=None)
@given(st.lists(regions, min_size=1, max_size=6))
def test_pooled_longppl_has_every_key_token_equal(documents):
  """Paper 1.4; cases J1, C3: exp(sum / count), whoever holds the tokens."""
  tokens = [[nll for region in one for nll in region] for one in documents]
  result = summarise([document(one) for one in documents])
  pooled = [nll for one in tokens for nll in one]
  assert result.longppl == pytest.approx(exp_mean(pooled))
  assert [one.longppl for one in result.documents] == [
    pytest.approx(exp_mean(one)) for one in tokens
  ]
  assert result.n_key_tokens == len(pooled)
  assert result.n_key_regions == sum(map(len, documents))
  assert result.reason == ("" if pooled else "no_key_tokens")


def test_ppl_is_weighted_as_the_protocol_says():
  """Cases J10: by ids under "paper", by scored targets under "strict"."""
  documents = [
    document([], n_tokens=1, nll_sum=1.0),
    document([], n_tokens=9, nll_sum=27.0),
    EMPTY,
  ]
  paper, strict = (summarise(documents, p) for p in ("paper", "strict"))
  assert math.log(paper.ppl) == pytest.approx((2 * 1 + 10 * 3) / 12)
  assert math.log(strict.ppl) == pytest.approx(28 / 10)
  assert (paper.protocol, strict.protocol) == ("paper", "strict")


@settings(deadline=None)
@given(st.lists(regions, min_size=1, max_size=4))
def test_perplexities_are_one_loss_over_several_counts(documents):
  """Cases J3: nats, tokens, words, bytes and bits fit each other."""
  documents = [*map(document, documents), EMPTY]
  fields = summarise(documents).to_json()
  nll = fields["nll_sum_nats"]
  assert nll == pytest.approx(sum(d.nll_sum for d in documents))
  for name in ("token", "word", "byte"):
    count = fields[f"n_{name}s"]
    assert count == sum(getattr(d, f"n_{name}s") for d in documents)
    assert fields[f"{name}_ppl"] ** count == pytest.approx(math.exp(nll))
  assert 2 ** fields["bits_per_byte"] == pytest.approx(fields["byte_ppl"])
  if fields["n_key_tokens"]:
    # Key tokens have three bytes each here.
    assert 2 ** (3 * fields["key_bits_per_byte"]) == pytest.approx(
      fields["longppl"]
    )
    mean = fields["key_nll_sum_nats"] / fields["n_key_tokens"]
    assert fields["longppl"] == pytest.approx(math.exp(mean))
  else:
    assert fields["key_bits_per_byte"] is None


def test_nothing_is_counted_twice_or_lost():
  """Cases C3, C9, D3: every reason, and every sum."""
  documents = [
    document([(1.0, 2.0), (3.0,)], n_unscorable_key=2, n_eligible=50),
    document([(4.0,)], truncated=True, key_chars=6, covered_chars=3),
    document([], reason="too_short", n_eligible=0),
    EMPTY,
    dataclasses.replace(EMPTY, reason="too_short"),
  ]
  scores = [
    {"n_key_tokens": 3, "n_near_threshold": 3},
    {"n_key_tokens": 1, "n_near_threshold": 1},
    {},
    {"n_key_tokens": None, "n_near_threshold": None},
  ]
  fields = summarise(documents, scores=scores).to_json()
  expected = {
    "n_documents": 5,
    "n_documents_eligible": 2,
    "n_eligible": 53,
    "n_key_tokens": 4,
    "n_key_regions": 3,
    "n_tokens": 13 + 11 + 10,
    "null_reasons": {"too_short": 2, "empty": 1},
    "n_unscorable_key": 2,
    "n_truncated": 1,
    "n_near_threshold": 4,
    "top5_documents_share": 1.0,
    # 9 of 9 characters and 3 of 6, pooled.
    "key_coverage": 12 / 15,
  }
  assert {name: fields[name] for name in expected} == expected


@pytest.mark.parametrize(
  "scores",
  [
    [],
    [{}],
    [
      {"n_key_tokens": 1, "n_near_threshold": None},
      {"n_key_tokens": 1, "n_near_threshold": 2},
    ],
  ],
)
def test_an_unknown_count_near_the_thresholds_is_null(scores):
  result = summarise([document()], scores=scores)
  assert result.n_near_threshold is None


def test_the_share_of_the_top_five_documents():
  documents = [document([(1.0,) * n]) for n in (1, 2, 3, 4, 5, 6, 7)]
  fields = summarise(documents).to_json()
  assert fields["top5_documents_share"] == 25 / 28


@pytest.mark.parametrize(
  ("reasons", "expected"),
  [
    (["empty", "too_short", "too_short"], "too_short"),
    # Of equals the first, in whatever process.
    (["too_long", "empty", "empty", "too_long"], "too_long"),
    (["empty", "too_long"], "empty"),
    (["failed", "unusable_offsets", "too_short", "empty"], "failed"),
  ],
)
def test_the_commonest_reason_stands_for_all(reasons, expected):
  """Cases C3: no key tokens anywhere, and still a result."""
  result = summarise([DocumentResult("d", 0, reason) for reason in reasons])
  assert result.reason == expected
  assert (result.longppl, result.ppl, result.ci95) == (None, None, None)
  assert result.key_coverage is None


def texts(n, regions, **changes):
  """Documents of n texts, in which each loss grows from text to text."""
  return [
    document(
      [[loss + i for loss in region] for region in regions],
      text_sha256=str(i), **changes,
    )
    for i in range(n)
  ]  # fmt: skip


def test_the_interval_says_what_it_speaks_of():
  few = summarise(texts(3, [(1.0,)] * 3))
  assert (few.ci95, few.ci95_reason) == (None, "few_key_regions")
  assert few.n_key_regions == 9
  some = summarise(texts(3, [(1.0,), (2.0,)] * 2))
  assert some.ci95_reason == "these texts only"
  assert some.ci95[0] < some.longppl < some.ci95[1]
  # Between documents that are alike there is no spread, whatever is in them.
  alike = [document([(1.0,), (2.0,)], text_sha256=str(i)) for i in range(4)]
  four = summarise(alike)
  assert four.ci95_reason == ""
  assert four.ci95 == pytest.approx((four.longppl,) * 2)


@pytest.mark.parametrize("text_hash", ["a", ""])
def test_copies_of_a_text_count_once_and_are_counted(text_hash):
  """12 copies are one text: no interval over documents, and it is said."""
  one = [(float(i),) for i in range(12)]
  copies = [document(one, doc_id=str(i), text_sha256=text_hash)
            for i in range(12)]  # fmt: skip
  result = summarise([*copies, EMPTY, EMPTY])
  single = summarise(copies[:1])
  assert result.longppl == pytest.approx(single.longppl)
  assert result.ci95_reason == single.ci95_reason == "these texts only"
  assert result.ci95 == pytest.approx(single.ci95)
  assert list(result.warnings) == [
    "11 of 14 documents are copies of another: intervals count a text once"
  ]


@pytest.mark.parametrize(
  ("gap", "near"), [(0.0, True), (0.05, True), (0.06, False)]
)
def test_a_model_with_the_evaluators_losses_is_the_evaluator(gap, near):
  documents = [
    document(text_sha256="a", shared_nll_sum=30.0, shared_gap_sum=20 * gap),
    document(text_sha256="b", shared_nll_sum=10.0, shared_gap_sum=20 * gap),
    EMPTY,
  ]
  result = summarise(documents)
  assert result.self_evaluated == near
  assert list(result.warnings) == near * [
    f"its losses are the evaluator's to within {gap:.1%}: LongPPL is bounded "
    "by construction"
  ]
  assert not summarise([document()]).self_evaluated
  assert summarise([document()], self_evaluated=True).self_evaluated


def test_the_printed_result():
  documents = [document([(0.5, 1.0)], covered_chars=3)]
  assert str(summarise(documents)) == (
    f"LongPPL {math.exp(0.75):.2f} (no interval: few key regions)  "
    f"PPL {math.exp(26.5 / 12):.2f}  "
    "keys 2 in 1 regions  coverage 0.50  paper"
  )
  assert str(summarise([EMPTY], "strict", self_evaluated=True)) == (
    "LongPPL none (empty)  PPL none  keys 0 in 0 regions  coverage none  "
    "strict  self-evaluated  0 of 1 documents"
  )
  for n, label in [(3, " (these texts only)"), (10, "")]:
    result = summarise(texts(n, [(2.0,)] * 400))
    low, high = result.ci95
    assert f"[{low:.2f}, {high:.2f}]{label}  PPL" in str(result)
  assert "keys 4,000 in 4,000 regions" in str(result)


def test_results_are_json_with_finite_numbers():
  """Cases C4: a loss whose exponential is no number gives null."""
  documents = [document([(800.0,)]), document([]), EMPTY]
  result = summarise(documents)
  fields = json.loads(json.dumps(result.to_dict(), allow_nan=False))
  assert fields["longppl"] is None
  assert [one["reason"] for one in fields["documents"]] == [
    "",
    "no_key_tokens",
    "empty",
  ]
  ppl = fields["documents"][1]["ppl"]
  assert ppl == pytest.approx(math.exp(2.5))
  assert fields["documents"][1]["longppl"] is None
  again = ModelResult.from_json(fields, result.documents)
  assert again == result and again.to_json() == json.loads(
    json.dumps(result.to_json())
  )


def near(value, *, above):
  """Just at the threshold, or just above."""
  return np.nextafter(value, 2) if above else value


@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize(
  ("scores", "text"),
  [
    (lambda above: [{"copied_share": near(0.3, above=above)}], "boilerplate"),
    (lambda above: [{"n_mirror": 2 + above}], "noise floor"),
    (lambda above: [{"n_key_tokens": 50 + above}], "need a BOS"),
  ],
)
def test_warnings_of_the_key_tokens(scores, text, above):
  """Cases A14; 10 key tokens of 100 eligible ones, unless changed."""
  (changed,) = scores(above)
  one = {"n_key_tokens": 10, "copied_share": 0.0, "n_mirror": 0} | changed
  found = summarise([document(n_eligible=100)], scores=[one]).warnings
  assert len(found) == above
  assert all(text in warning for warning in found)


def test_shares_are_over_the_key_tokens_of_all_documents():
  """10 copied of 30 is a third, though one document has half and one none."""
  scores = [
    {"n_key_tokens": 20, "copied_share": 0.5, "n_mirror": 0},
    {"n_key_tokens": 10, "copied_share": 0.0, "n_mirror": 7},
    {"n_key_tokens": 0, "copied_share": None, "n_mirror": None},
    {},
  ]
  copied, mirror = caveats.find([document(n_eligible=100)], scores)
  assert copied.startswith("33% of the key tokens")
  assert mirror.startswith("23% as many tokens")


@pytest.mark.parametrize(
  ("covered", "warned"), [(90, False), (89, True), (100, False)]
)
def test_low_coverage_is_warned_of(covered, warned):
  found = caveats.find([document(key_chars=100, covered_chars=covered)], [])
  assert found == (
    [f"this tokenizer's tokens cover {covered}% of the key characters"]
    if warned
    else []
  )


def test_cut_documents_are_counted_and_warned_of():
  """Half of one document of two, and of the other what the evaluator left."""
  half = dict(n_chars=100, n_chars_scored=100, read_to=50, truncated=True)
  left = dict(n_chars=100, n_chars_scored=75, read_to=75)
  documents = [document(**half, text_sha256="a"), document(**left)]
  result = summarise(documents, max_length=64)
  assert (result.n_documents_cut, result.n_truncated) == (2, 1)
  assert result.chars_unread_share == 0.375
  assert result.warnings == (
    "the evaluator read 1 of 2 documents in part: 25% of their characters are "
    "unread, by every model; score with a larger --max_length",
    "1 of 2 documents were cut to this model's 64 ids: 50% of their "
    "characters are unread; --max_length",
  )
  whole = summarise([document(n_chars=9, n_chars_scored=9, read_to=9)])
  assert (whole.n_documents_cut, whole.chars_unread_share) == (0, 0.0)
  assert not whole.warnings


def test_a_skipped_document_counts_as_missed():
  """Its key characters are covered by nothing, its ids stay eligible."""
  skipped = document(
    [], reason="too_long", n_tokens=0, nll_sum=0.0, n_eligible=10,
    key_chars=30, covered_chars=0, unread_key_chars=30, n_chars=100,
  )  # fmt: skip
  read = document([(1.0,) * 10], n_chars=100, n_chars_scored=100, read_to=100)
  scores = [{"n_key_tokens": 10}, {"n_key_tokens": 5}]
  result = summarise([read, skipped], scores=scores)
  assert (result.n_documents_read, result.n_documents) == (1, 2)
  assert (result.key_coverage, result.chars_unread_share) == (0.5, 0.5)
  first, second = result.warnings
  assert first.startswith("1 of 2 documents were not read (too_long, 'd' first")
  assert "--max_length, or --over_length" in first
  # Not "this tokenizer": it covers all that was read.
  assert second == (
    "50% of the key characters stand where this model did not read"
  )
