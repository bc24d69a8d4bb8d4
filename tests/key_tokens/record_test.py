import dataclasses

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from support import manifests

from longctx_jax.key_tokens import record
from longctx_jax.paper import spans as spans_lib
from longctx_jax.paper.contrast import Thresholds

NAN = float("nan")
# Around the default thresholds, where comparisons must be strict.
LOG_PROBS = st.sampled_from([-9.0, -4.0, -3.0, -2.0, -1.5, -0.5, 0.0, NAN])


def make(long, short, *, offsets=None, alpha=2.0, beta=-2.0, **fields):
  if offsets is None and long is not None:
    offsets = [(3 * i, 3 * i + 2) for i in range(len(long))]
  n_tokens = 0 if long is None else len(long)
  fields = {
    "doc_id": "d",
    "doc_index": 0,
    "text_sha256": "hash",
    "n_chars": 100,
    "n_tokens": n_tokens,
    "n_tokens_full": n_tokens,
    "n_eligible": n_tokens,
    "manifest": manifests.make(alpha=alpha, beta=beta),
    **fields,
  }
  return record.make_key_tokens(
    offsets=offsets,
    long_log_probs=long,
    short_log_probs=short,
    **fields,
  )


def make_unscored(reason, **fields):
  return make(None, None, reason=reason, **fields)


def test_criterion_is_strict():
  """Paper 1.1: long - short > alpha and long > beta."""
  keys = make([-1, -1, -1, -2, -3], [-4, -3, NAN, -9, -9])
  assert keys.key_mask.tolist() == [True, False, False, False, False]
  assert keys.spans.tolist() == [[0, 2]]
  assert keys.reason == ""
  assert keys.manifest.thresholds == Thresholds(2.0, -2.0)


def test_criterion_is_taken_in_float32():
  """1 - 2^-30 apart from alpha is no difference that float32 can hold."""
  for long, short in ((-0.5, -2.5 - 2.0**-30), (-0.5 + 2.0**-30, -2.5)):
    assert long - short > 2
    assert make([long], [short]).key_mask.tolist() == [False]
  assert make([-0.5], [-2.5], alpha=2 - 2.0**-30).key_mask.tolist() == [False]


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(
  pairs=st.lists(st.tuples(LOG_PROBS, LOG_PROBS), max_size=12),
  alpha=st.sampled_from([0.0, 1.0, 2.0]),
  beta=st.sampled_from([-3.0, -2.0, -1.0]),
)
def test_other_thresholds_equal_a_fresh_derivation(pairs, alpha, beta):
  long, short = [p[0] for p in pairs], [p[1] for p in pairs]
  made = make(long, short, alpha=alpha, beta=beta)
  restated = make(long, short).with_thresholds(alpha, beta)
  expected = [
    bool(x - y > alpha and x > beta) for x, y in zip(long, short, strict=True)
  ]
  for keys in (made, restated):
    assert keys.key_mask.tolist() == expected
    assert keys.reason == ("" if any(expected) else "no_key_tokens")
    assert keys.manifest.thresholds == Thresholds(alpha, beta)
  np.testing.assert_array_equal(made.spans, restated.spans)


def test_touching_key_tokens_give_one_span():
  offsets = [(0, 2), (2, 5), (6, 8)]
  keys = make([-1] * 3, [-9] * 3, offsets=offsets)
  assert keys.spans.tolist() == [[0, 5], [6, 8]]


def test_special_tokens_give_no_span():
  keys = make([-1, -1], [-9, -9], offsets=[(0, 0), (4, 4)])
  assert keys.key_mask.tolist() == [True, True]
  assert keys.spans.shape == (0, 2)
  assert keys.reason == "no_key_tokens"


def test_impossible_target_in_both_contexts_is_not_key():
  keys = make([-np.inf, -1], [-np.inf, -np.inf])
  assert keys.key_mask.tolist() == [False, True]


def test_known_reason_excludes_key_tokens():
  """Cases C2, C9: whatever the thresholds say of equal log-probs."""
  keys = make([-1], [-1], reason="too_short", alpha=-1.0)
  assert keys.reason == "too_short"
  assert not keys.key_mask.any()
  assert keys.with_thresholds(-2.0, -2.0).reason == "too_short"


@pytest.mark.parametrize("reason", ["empty", "failed", "unusable_offsets"])
def test_document_without_log_probs_keeps_its_reason(reason):
  """Cases C3, C4."""
  keys = make_unscored(reason).with_thresholds(1.0, -1.0)
  assert keys.reason == reason
  assert keys.offsets is None and keys.key_mask is None
  assert keys.spans.shape == (0, 2)
  assert keys.manifest.thresholds.alpha == 1.0


def test_document_without_log_probs_needs_a_reason():
  with pytest.raises(ValueError, match="'d' has no log-probs and no reason"):
    make_unscored("")


def test_unknown_reason_is_refused():
  with pytest.raises(ValueError, match="'no_keys'; known: empty, "):
    make_unscored("no_keys")


@pytest.mark.parametrize(
  "wrong",
  [
    {"offsets": [(0, 2)]},
    {"short_log_probs": [-1.0]},
    {"long_log_probs": [-1.0]},
    {"n_tokens": 3},
  ],
)
def test_arrays_must_agree_in_length(wrong):
  keys = make([-1, -1], [-1, -1])
  fields = {f.name: getattr(keys, f.name) for f in dataclasses.fields(keys)}
  for name in ("key_mask", "spans", "text"):
    del fields[name]
  with pytest.raises(ValueError, match=r"[23] scored targets, [12] offsets"):
    record.make_key_tokens(**fields | wrong)


def test_arrays_are_read_only_copies():
  long = np.array([-1.0], np.float32)
  keys = make(long, [-9])
  long[0] = -5
  assert keys.long_log_probs[0] == -1
  for name in ("offsets", "long_log_probs", "short_log_probs", "key_mask"):
    with pytest.raises(ValueError, match="read-only"):
      getattr(keys, name)[0] = 0
  with pytest.raises(ValueError, match="read-only"):
    keys.spans[0] = 0
  dtypes = [keys.offsets.dtype, keys.spans.dtype, keys.short_log_probs.dtype]
  assert dtypes == [np.int64, np.int64, np.float32]


def test_scores_follow_the_thresholds():
  scores = {
    "n_key_tokens": 1,
    "key_token_ratio": 0.5,
    "copied_share": 0.25,
    "n_mirror": 3,
    "n_near_threshold": 1,
    "mean_context_benefit": 1.5,
    "n_eligible": 9,
  }
  keys = make([-1, -1, -9], [-9, -2, -9], scores=scores, n_eligible=2)
  assert keys.n_eligible == 2 and "n_eligible" not in keys.scores
  assert keys.with_thresholds(2.0, -2.0) is keys
  assert keys.with_thresholds(0.5, -2.0).scores == {
    "n_key_tokens": 2,
    "key_token_ratio": 1.0,
    "copied_share": None,
    "n_mirror": None,
    "n_near_threshold": None,
    "mean_context_benefit": 1.5,
  }


def test_ratio_of_a_document_without_eligible_tokens_is_none():
  keys = make([-1], [-1], scores={"key_token_ratio": None}, n_eligible=0)
  assert keys.with_thresholds(1.0, -2.0).scores == {"key_token_ratio": None}


@pytest.mark.parametrize(
  ("detail", "alpha", "beta", "why"),
  [
    ("keys", 1.0, -2.0, "can rise but not fall"),
    ("keys", 2.0, -3.0, "can rise but not fall"),
    ("scores", 3.0, -2.0, "no log-probs .detail=scores"),
    ("spans", 3.0, -2.0, "slice files"),
  ],
)
def test_refused_thresholds_name_those_of_the_store(detail, alpha, beta, why):
  """Cases J6."""
  keys = make([-1], [-9], manifest=manifests.make(detail=detail))
  made = r"made with alpha=2.0, beta=-2.0 and.* "
  with pytest.raises(
    ValueError, match=f"{made}alpha={alpha}, beta={beta}.*{why}"
  ):
    keys.with_thresholds(alpha, beta)
  assert keys.with_thresholds(2.0, -2.0) is keys


def test_thresholds_of_stored_key_tokens_can_rise():
  keys = make([-1, -0.5], [-4, -9], manifest=manifests.make(detail="keys"))
  assert keys.with_thresholds(4.0, -1.0).key_mask.tolist() == [False, True]


def test_spans_are_written_as_a_slice_file(tmp_path):
  make([-1, -1], [-9, -9]).to_slices(tmp_path / "slice_0.txt")
  assert (tmp_path / "slice_0.txt").read_text() == "[0, 2];[3, 5]"
  spans = spans_lib.read_slices(tmp_path / "slice_0.txt")
  assert spans.tolist() == [[0, 2], [3, 5]]


def test_scores_alone_are_no_slice_file(tmp_path):
  keys = make_unscored("", manifest=manifests.make(detail="scores"))
  with pytest.raises(ValueError, match="detail=scores.*detail=keys"):
    keys.to_slices(tmp_path / "slice_0.txt")
  assert not list(tmp_path.iterdir())
