"""LongPPL end to end against the paper, written out in NumPy.

Tokenizing, both contexts, the strict criterion, the projection of characters
and the pooled exponential are all done here anew; see `definition` for the
log-probs. Float32 against float64: 1e-5.
"""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
import tokenizers
from support import definition, manifests
from support.checks import one_device_mesh

from longctx_jax import longppl, testing
from longctx_jax.evaluation import passes
from longctx_jax.key_tokens import record
from longctx_jax.scoring import protocol
from longctx_jax.text.tokenizer import TextTokenizer

K, D = 48, 16
# A tiny model gains little from context; these thresholds make many keys.
THRESHOLDS = dict(alpha=0.05, beta=-7.0)
WINDOWS = dict(short_len=K, stride=D)
TEXTS = [
  testing.synthetic_document(1, num_words=32),
  testing.synthetic_document(2, num_words=38) + " naïve 🙂🙂 Nihil",
]


def other_backend():
  """Another tokenizer: words in pieces, and spaces with the word behind."""
  backend = tokenizers.Tokenizer(tokenizers.models.BPE())
  backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(
    add_prefix_space=False
  )
  backend.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=400,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    special_tokens=[testing.BOS],
    show_progress=False,
  )
  corpus = [testing.synthetic_document(i, num_words=300) for i in (1, 2, 3)]
  backend.train_from_iterator(corpus, trainer)
  backend.post_processor = tokenizers.processors.TemplateProcessing(
    single=f"{testing.BOS} $A",
    special_tokens=[(testing.BOS, backend.token_to_id(testing.BOS))],
  )
  return backend


BACKENDS = {
  "same": lambda: testing.byte_tokenizer(add_bos=True),
  "other": other_backend,
}


@pytest.fixture(scope="module", autouse=True)
def compile_once():
  """More models take turns here than a program would keep passes of."""
  patch = pytest.MonkeyPatch()
  unlimited = functools.cache(longppl._scorer.__wrapped__)
  patch.setattr(longppl, "_scorer", unlimited)
  yield
  patch.undo()


@pytest.fixture(scope="module")
def evaluator():
  return testing.tiny_model(mesh=one_device_mesh(), add_bos=True)


@pytest.fixture(scope="module")
def models():
  same = testing.tiny_model(seed=1, mesh=one_device_mesh(), add_bos=True)
  config = testing.tiny_config(vocab_size=400)
  other = testing.tiny_model(config, seed=2, mesh=one_device_mesh())
  tokenizer = TextTokenizer(other_backend(), name="other")
  return {
    "same": same,
    "other": dataclasses.replace(other, tokenizer=tokenizer),
  }


@pytest.fixture(scope="module")
def keys_by_protocol(evaluator):
  return {
    name: longppl.find_key_tokens(
      TEXTS, evaluator, protocol=name, **WINDOWS, **THRESHOLDS
    )
    for name in ("paper", "strict")
  }


@pytest.fixture(scope="module")
def keys(keys_by_protocol):
  return keys_by_protocol["strict"]


def read_by_hand(backend, text, *, bos):
  """Ids, and the characters of each target."""
  encoding = backend.encode(text, add_special_tokens=bos)
  # Bytes of one character: the library gives each the whole character.
  return np.array(encoding.ids), encoding.offsets[1:]


def keys_by_hand(evaluator, text, protocol_name):
  """(long, short, key mask, merged key spans) of the paper."""
  ids, offsets = read_by_hand(BACKENDS["same"](), text, bos=True)
  prefix_len = 1 if protocol_name == "strict" else 0
  long = definition.log_probs(evaluator, ids)
  short = definition.short_log_probs(
    evaluator, ids, prefix_len=prefix_len, **WINDOWS
  )
  # The first window's context is the full one: no difference, up to rounding.
  short = np.where(np.abs(short - long) < 1e-12, long, short)
  # No decision may hang on rounding.
  assert np.nanmin(np.abs(long - short - THRESHOLDS["alpha"])) > 1e-5
  assert np.abs(long - THRESHOLDS["beta"]).min() > 1e-5
  is_key = (long - short > THRESHOLDS["alpha"]) & (long > THRESHOLDS["beta"])
  merged = []
  for start, end in (offsets[t] for t in np.flatnonzero(is_key)):
    if merged and start <= merged[-1][1]:
      merged[-1][1] = max(end, merged[-1][1])
    else:
      merged.append([start, end])
  return long, short, is_key, merged


def losses_by_hand(model, backend, text, spans, protocol_name):
  """(losses of all targets, of those inside one span) of a model."""
  bos = protocol_name == "strict"
  ids, offsets = read_by_hand(backend, text, bos=bos)
  losses = -definition.log_probs(model, ids)
  inside = [
    any(start <= a and b <= end for start, end in spans) for a, b in offsets
  ]
  return losses, losses[inside]


@pytest.mark.parametrize("protocol_name", ["paper", "strict"])
def test_key_tokens_are_the_papers(evaluator, keys_by_protocol, protocol_name):
  """Paper 1.1 to 1.3; cases A5, J1."""
  for text, keys in zip(TEXTS, keys_by_protocol[protocol_name], strict=True):
    long, short, is_key, merged = keys_by_hand(evaluator, text, protocol_name)
    np.testing.assert_allclose(keys.long_log_probs, long, atol=1e-5)
    np.testing.assert_allclose(keys.short_log_probs, short, atol=1e-5)
    np.testing.assert_array_equal(keys.key_mask, is_key)
    assert keys.spans.tolist() == merged
    assert 20 < is_key.sum() < 0.5 * len(is_key)
    n_text = len(text.encode()) + (protocol_name == "paper")
    assert keys.n_eligible == n_text - K - D
    assert (keys.reason, keys.n_chars) == ("", len(text))


@pytest.mark.parametrize("tokenizer", BACKENDS)
@pytest.mark.parametrize("protocol_name", ["paper", "strict"])
def test_longppl_is_the_papers(
  evaluator, models, keys_by_protocol, protocol_name, tokenizer
):
  """Paper 1.4 and 1.6; cases A7, C9, J10."""
  result = longppl.compute_longppl(
    TEXTS, models[tokenizer], keys_by_protocol[protocol_name]
  )
  found = []
  for text, own in zip(TEXTS, result.documents, strict=True):
    *_, merged = keys_by_hand(evaluator, text, protocol_name)
    losses, key_losses = losses_by_hand(
      models[tokenizer], BACKENDS[tokenizer](), text, merged, protocol_name
    )
    assert len(key_losses) > 5
    assert own.n_key_tokens == len(key_losses)
    assert own.longppl == pytest.approx(math.exp(key_losses.mean()), rel=1e-5)
    assert own.ppl == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    found.append((losses, key_losses))
  pooled = np.concatenate([key_losses for _, key_losses in found])
  assert result.longppl == pytest.approx(math.exp(pooled.mean()), rel=1e-5)
  assert result.n_key_tokens == len(pooled)
  # The reference weighs a document's mean by its ids, strict by its targets.
  weights = [len(losses) + (protocol_name == "paper") for losses, _ in found]
  means = [losses.mean() for losses, _ in found]
  expected = math.exp(np.average(means, weights=weights))
  assert result.ppl == pytest.approx(expected, rel=1e-5)
  assert result.protocol == protocol_name
  assert not result.self_evaluated
  if tokenizer == "same" and protocol_name == "strict":
    assert result.key_coverage == 1.0
  else:
    assert 0.1 < result.key_coverage <= 1.0


def test_one_text_is_a_list_of_one(evaluator, models, keys):
  alone = longppl.find_key_tokens(
    TEXTS[1], evaluator, protocol="strict", **WINDOWS, **THRESHOLDS
  )
  np.testing.assert_array_equal(alone.long_log_probs, keys[1].long_log_probs)
  np.testing.assert_allclose(
    alone.short_log_probs, keys[1].short_log_probs, atol=1e-5
  )
  assert alone.manifest == keys[1].manifest
  one = longppl.compute_longppl(TEXTS[1], models["same"], alone)
  assert one == longppl.compute_longppl([TEXTS[1]], models["same"], [alone])


def test_key_tokens_found_one_by_one_can_be_pooled(evaluator, models, keys):
  """Each of them is document 0 of its call."""
  singly = [
    longppl.find_key_tokens(
      text, evaluator, protocol="strict", **WINDOWS, **THRESHOLDS
    )
    for text in TEXTS
  ]
  got = longppl.compute_longppl(TEXTS, models["same"], singly)
  expected = longppl.compute_longppl(TEXTS, models["same"], keys)
  assert [one.n_tokens for one in got.documents] == [
    one.n_tokens for one in expected.documents
  ]
  assert got.longppl == pytest.approx(expected.longppl, rel=1e-6)


def test_the_evaluators_pass_is_the_models_own(evaluator, keys):
  """Cases J5: what is reused is what a run would give, to the bit."""
  reused = longppl.compute_longppl(TEXTS, evaluator, keys)
  unknown = [
    dataclasses.replace(
      one, manifest=manifests.changed(one.manifest, checksum="other")
    )
    for one in keys
  ]
  run = longppl.compute_longppl(TEXTS, evaluator, unknown)
  assert reused.self_evaluated and reused == run


def test_log_probs_from_elsewhere_give_the_same_result(evaluator, keys):
  """The evaluator's own log-probs, as if another engine had made them."""
  expected = longppl.compute_longppl(TEXTS, evaluator, keys)
  got = longppl.longppl_from_log_probs(
    TEXTS,
    [one.long_log_probs.tolist() for one in keys],
    [one.offsets.tolist() for one in keys],
    keys,
  )
  assert got.self_evaluated and got == expected
  alone = longppl.longppl_from_log_probs(
    TEXTS[0], keys[0].long_log_probs, keys[0].offsets, keys[0]
  )
  assert alone.documents[0] == expected.documents[0]


def test_log_probs_that_do_not_fit_are_refused_by_name(keys):
  log_probs, offsets = keys[0].long_log_probs, keys[0].offsets
  for bad, message in (
    ((log_probs[1:], offsets), "document '0': .* log-probs and .* offsets"),
    ((-log_probs, offsets), "document '0': log-prob .* at target 0"),
    ((log_probs, offsets + 9), "document '0': offsets .* outside the text"),
  ):
    with pytest.raises(ValueError, match=message):
      longppl.longppl_from_log_probs(TEXTS[0], *bad, keys[0])
  with pytest.raises(ValueError, match="'0' were found in another text"):
    longppl.longppl_from_log_probs(TEXTS[1], log_probs, offsets, keys[0])
  with pytest.raises(ValueError, match="shorter"):
    longppl.longppl_from_log_probs(TEXTS, [log_probs], [offsets], keys)


def test_key_tokens_of_another_text_are_refused(models, keys):
  """Cases J6: by hash, never by place."""
  model = models["same"]
  with pytest.raises(ValueError, match="document '0' were found in another"):
    longppl.compute_longppl(TEXTS[::-1], model, keys)
  with pytest.raises(ValueError, match="'1' were found in another text"):
    longppl.compute_longppl([TEXTS[0], TEXTS[1] + " "], model, keys)
  with pytest.raises(ValueError, match="1 texts and 2 key tokens"):
    longppl.compute_longppl(TEXTS[0], model, keys)
  with pytest.raises(ValueError, match="0 texts and 0 key tokens"):
    longppl.compute_longppl([], model, [])


def test_key_tokens_of_unlike_runs_are_not_pooled(models, keys_by_protocol):
  """Cases J2, J6."""
  mixed = [keys_by_protocol["paper"][0], keys_by_protocol["strict"][1]]
  with pytest.raises(ValueError, match="document '1' .*: protocol differ"):
    longppl.compute_longppl(TEXTS, models["same"], mixed)
  loose = [mixed[0], keys_by_protocol["paper"][1].with_thresholds(0.0, -7.0)]
  with pytest.raises(ValueError, match=": alpha differ"):
    longppl.compute_longppl(TEXTS, models["same"], loose)


def test_document_scores_alone_are_no_key_tokens(models, keys):
  manifest = manifests.changed(keys[0].manifest, detail="scores")
  alone = dataclasses.replace(
    keys[0], manifest=manifest, offsets=None, spans=keys[0].spans[:0]
  )
  with pytest.raises(ValueError, match="scores and no key tokens"):
    longppl.compute_longppl(TEXTS[0], models["same"], alone)


def test_a_model_without_a_tokenizer_is_refused(evaluator, keys):
  bare = dataclasses.replace(evaluator, tokenizer=None)
  with pytest.raises(ValueError, match="tiny-0 has no tokenizer files"):
    longppl.find_key_tokens(TEXTS, bare, **WINDOWS)
  with pytest.raises(ValueError, match="tiny-0 has no tokenizer files"):
    longppl.compute_longppl(TEXTS, bare, keys)


def test_every_model_under_paper_must_do_without_its_bos(
  models, keys_by_protocol, monkeypatch
):
  """Cases A11: the model under test is checked as the evaluator is."""

  def refuse(scorer, texts):
    assert [text for text in texts if text] == TEXTS
    raise ValueError(f"{scorer.model.name} needs its BOS")

  monkeypatch.setattr(protocol, "check_bos", refuse)
  model = models["same"]
  longppl.compute_longppl(TEXTS, model, keys_by_protocol["strict"])
  with pytest.raises(ValueError, match="tiny-1 needs its BOS"):
    longppl.compute_longppl(TEXTS, model, keys_by_protocol["paper"])
  with pytest.raises(ValueError, match="tiny-1 needs its BOS"):
    longppl.find_key_tokens(["", *TEXTS], model, **WINDOWS)


def test_bad_settings_are_refused_before_anything_runs(evaluator):
  with pytest.raises(ValueError, match="protocol='papers'"):
    longppl.find_key_tokens("a", evaluator, protocol="papers", **WINDOWS)
  with pytest.raises(ValueError, match="stride=49 and short_len=48"):
    longppl.find_key_tokens("a", evaluator, short_len=48, stride=49)


REASONS = {
  "": "empty",
  "a": "nothing_to_score",
  "ab": "too_short",
  TEXTS[0][: K + D]: "too_short",
}


def test_documents_without_key_tokens_say_why(models, caplog):
  """Cases C2, C3, C4: every reason, a perplexity where there is one."""
  model = dataclasses.replace(
    models["same"], tokenizer=TextTokenizer(testing.byte_tokenizer(), name="b")
  )
  texts = list(REASONS)
  keys = longppl.find_key_tokens(texts, model, **WINDOWS, **THRESHOLDS)
  assert [one.reason for one in keys] == list(REASONS.values())
  assert [one.n_tokens for one in keys] == [0, 0, 1, K + D - 1]
  assert not any(len(one.spans) or one.n_eligible for one in keys)
  # What was scored is stored: lsd is 0 in the first window.
  last = keys[3]
  np.testing.assert_array_equal(
    last.short_log_probs[K - 1 :], last.long_log_probs[K - 1 :]
  )
  assert "a document of 64 ids has no key tokens" in caplog.text
  assert "With short_len=16 and stride=8, 40 of its ids" in caplog.text
  result = longppl.compute_longppl(texts, model, keys)
  assert (result.longppl, result.reason) == (None, "too_short")
  assert [one.reason for one in result.documents] == list(REASONS.values())
  assert [one.ppl is None for one in result.documents] == [1, 1, 0, 0]
  assert result.n_tokens == 1 + K + D - 1
  assert result.ppl > 1
  json.dumps(result.to_dict(), allow_nan=False)
  assert str(result).startswith("LongPPL none (too_short)  PPL ")


def test_one_id_more_than_a_window_can_be_key(evaluator):
  """Cases C1, C2: n = K + d + 1 leaves one id to the second window."""
  text = TEXTS[0][: K + D + 1]
  made = longppl.find_key_tokens(
    text, evaluator, protocol="strict", alpha=-99.0, beta=-99.0, **WINDOWS
  )
  assert made.n_eligible == 1
  # With such thresholds all that was scored is key, ids K and later.
  assert np.flatnonzero(made.key_mask).tolist() == list(range(K, K + D + 1))


def test_a_document_with_high_thresholds_has_no_key_tokens(models, keys):
  """Cases C3; no model is needed to restate thresholds."""
  strict = [one.with_thresholds(99.0, -2.0) for one in keys]
  assert [one.reason for one in strict] == ["no_key_tokens"] * 2
  result = longppl.compute_longppl(TEXTS, models["same"], strict)
  assert (result.longppl, result.reason) == (None, "no_key_tokens")
  assert result.ppl > 1


def test_other_thresholds_equal_finding_anew(evaluator, keys, monkeypatch):
  """Cases J6: alpha and beta are free where log-probs are stored."""
  anew = longppl.find_key_tokens(
    TEXTS, evaluator, protocol="strict", alpha=0.3, beta=-7.5, **WINDOWS
  )
  monkeypatch.setattr(longppl, "_scorer", None)
  restated = [one.with_thresholds(0.3, -7.5) for one in keys]
  for one, other, before in zip(restated, anew, keys, strict=True):
    np.testing.assert_array_equal(one.key_mask, other.key_mask)
    np.testing.assert_array_equal(one.spans, other.spans)
    assert one.manifest == other.manifest
    assert 0 < one.key_mask.sum() != before.key_mask.sum()


def test_half_a_document_scores_as_half_the_text(evaluator, models):
  """Cases C5: by tokens, words and bytes that were scored."""
  text = TEXTS[0]
  half = len(text) // 2
  cut, part = (
    longppl.find_key_tokens(
      given, evaluator, max_length=limit, protocol="strict", **WINDOWS
    )
    for given, limit in ((text, half + 1), (text[:half], 0))
  )
  assert (cut.truncated, part.truncated) == (True, False)
  assert (cut.n_tokens, cut.n_tokens_full) == (half, len(text))
  np.testing.assert_array_equal(cut.long_log_probs, part.long_log_probs)
  np.testing.assert_array_equal(cut.short_log_probs, part.short_log_probs)
  assert cut.n_eligible == part.n_eligible == half - K - D
  for name in ("same", "other"):
    results = [
      longppl.compute_longppl(given, models[name], found).documents
      for given, found in ((text, cut), (text[:half], part))
    ]
    text_of = dict(text_sha256="", n_chars=0)
    (whole,), (part_of_it,) = (
      [dataclasses.replace(one, **text_of) for one in found]
      for found in results
    )
    assert whole == part_of_it
    assert results[0][0].n_bytes == half
    assert results[0][0].n_words == len(text[:half].split())


def test_the_manifest_names_what_the_numbers_depend_on(evaluator, keys):
  """Cases D2, A11, J5."""
  manifest = keys[0].manifest.to_json()
  expected = {
    "evaluator": "tiny-0",
    "checksum": evaluator.checksum,
    "tokenizer_fingerprint": evaluator.tokenizer.fingerprint,
    "dtype": "float32",
    "protocol": "strict",
    "bos": 256,
    "short_len": K,
    "stride": D,
    "max_length": 4096,
    "detail": "tokens",
    **THRESHOLDS,
  }
  assert {name: manifest[name] for name in expected} == expected
  json.dumps(manifest, allow_nan=False)


def test_document_scores_come_with_the_key_tokens(keys):
  """Cases D3, L7."""
  for one in keys:
    scores = one.scores
    assert scores["n_key_tokens"] == one.key_mask.sum()
    assert scores["key_token_ratio"] == one.key_mask.sum() / one.n_eligible
    lsd = one.long_log_probs.astype(float) - one.short_log_probs
    assert scores["mean_context_benefit"] == pytest.approx(np.nanmean(lsd))
    assert scores["n_near_threshold"] < 10


def test_every_byte_of_a_key_character_is_key(evaluator, keys):
  """Cases A5, A10: spans are characters of the text as it was given."""
  result = longppl.compute_longppl(TEXTS, evaluator, keys)
  for text, one, own in zip(TEXTS, keys, result.documents, strict=True):
    key_characters = set(one.offsets[one.key_mask, 0].tolist())
    by_span = {
      i for start, end in one.spans.tolist() for i in range(start, end)
    }
    assert by_span == key_characters
    n_bytes = sum(len(text[i].encode()) for i in key_characters)
    assert own.n_key_tokens == own.key_bytes == n_bytes
  assert n_bytes > one.key_mask.sum()


def test_no_reason_is_unknown_to_the_evaluation():
  """Every reason either ends the evaluation or comes with log-probs."""
  scored = {"too_short", "no_key_tokens"}
  assert set(record.REASONS) == {*passes.UNREADABLE, *scored}
