"""One model on key tokens: sums by brute force, and whose pass is whose."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import manifests, records
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.evaluation import identity, passes
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.key_tokens import record, slices
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import finder, protocol, scorer
from longctx_jax.text import corpus
from longctx_jax.text.tokenizer import TextTokenizer

TEXT = testing.synthetic_document(5, num_words=24)
WINDOWS = Windows(16, 8)
PUBLISHED = dataclasses.replace(slices.PUBLISHED, evaluator="E")


@st.composite
def problems(draw):
  """(text, spans, offsets, log-probs): tokens tile the text, some twice."""
  text = draw(st.text("ab é🙂\n", min_size=2, max_size=60))
  place = st.integers(0, len(text))
  spans = draw(st.lists(st.tuples(place, place), max_size=6))
  spans = [span for span in spans if span[0] < span[1]]
  cuts = sorted({0, len(text), *draw(st.lists(place, max_size=50))})
  tokens = list(zip(cuts[:-1], cuts[1:], strict=True))
  twice = draw(st.lists(st.sampled_from(tokens), max_size=3))
  tokens = sorted(tokens + twice)[draw(st.integers(0, len(tokens) - 1)) :]
  log_prob = st.floats(-9, 0, width=32)
  log_probs = draw(st.lists(log_prob, min_size=len(tokens), max_size=60))
  return text, spans, tokens, log_probs[: len(tokens)]


def characters(ranges):
  return {i for start, end in ranges for i in range(start, end)}


def size(text, places):
  return len("".join(text[i] for i in sorted(places)).encode())


def expected_result(text, spans, tokens, log_probs):
  """`document_result` in sets of characters and loops over pairs."""
  is_key = [any(s <= a and b <= e for s, e in spans) for a, b in tokens]
  record = [t for t, key in zip(tokens, is_key, strict=True) if key]
  regions = []
  last = -math.inf
  for t, (key, log_prob) in enumerate(zip(is_key, log_probs, strict=True)):
    if key:
      if t - last > 16:
        regions.append([])
      regions[-1].append(-log_prob)
      last = t
  scored = text[min(a for a, _ in tokens) : max(b for _, b in tokens)]
  return DocumentResult(
    doc_id="d",
    doc_index=3,
    reason="" if record else "no_key_tokens",
    n_tokens=len(tokens),
    nll_sum=-math.fsum(log_probs),
    n_bytes=len(scored.encode()),
    n_words=len(scored.split()),
    region_nll_sums=tuple(math.fsum(region) for region in regions),
    region_counts=tuple(len(region) for region in regions),
    key_bytes=size(text, characters(record)),
    n_eligible=7,
    key_chars=len(characters(spans)),
    covered_chars=len(characters(spans) & characters(record)),
    text_sha256=corpus.text_sha256(text),
    keys_sha256=identity.keys_sha256(records.keys_of_spans(spans, text)),
    n_chars=len(text),
    n_chars_scored=len(text),
    read_to=len(text),
  )


def letters(n, key):
  """A problem of n tokens of one letter, some of them key."""
  tokens = [(i, i + 1) for i in range(n)]
  return "a" * n, [(i, i + 1) for i in key], tokens, [-1.0] * n


@settings(deadline=None, max_examples=200)
@given(problems())
@example(letters(40, [0, 16, 33]))
def test_sums_are_those_of_a_brute_force_count(problem):
  """Cases A5, A7: wholly in one span; a token counts as often as it is read."""
  text, spans, tokens, log_probs = problem
  got = passes.document_result(
    records.keys_of_spans(spans, text),
    text,
    np.array(tokens),
    np.array(log_probs, np.float32),
  )
  expected = expected_result(*problem)
  for field in dataclasses.fields(DocumentResult):
    value = getattr(expected, field.name)
    assert getattr(got, field.name) == (
      pytest.approx(value, abs=1e-9) if "nll" in field.name else value
    ), field.name


def test_a_key_first_token_is_counted_and_moves_no_value():
  """Cases A8: index -1 would take the last token's loss."""
  text = "abcdef"
  offsets = np.array([[2, 4], [4, 6]])
  spans = [(0, 4)]
  results = [
    passes.document_result(
      records.keys_of_spans(spans, text),
      text,
      offsets,
      np.array([-1.0, last]),
      unpredicted=np.array([0, 2]),
    )
    for last in (-5.0, -50.0)
  ]
  for result in results:
    assert result.n_unscorable_key == 1
    assert (result.n_key_tokens, result.key_nll_sum) == (1, 1.0)
    assert result.key_coverage == 0.5
  outside = passes.document_result(
    records.keys_of_spans([(1, 4)], text),
    text,
    offsets,
    np.array([-1.0, -5.0]),
    unpredicted=np.array([0, 2]),
  )
  assert outside.n_unscorable_key == 0


@pytest.mark.parametrize(
  ("protocol_name", "unscorable"), [("paper", 1), ("strict", 0)]
)
def test_the_first_token_is_scored_behind_a_bos(
  model, protocol_name, unscorable
):
  """Cases A8."""
  manifest = dataclasses.replace(PUBLISHED, protocol=protocol_name)
  keys = records.keys_of_spans([(0, 3)], TEXT, manifest=manifest)
  _, _, (done,) = evaluate(model, keys)
  assert done.result.n_unscorable_key == unscorable
  assert done.result.n_key_tokens == 3 - unscorable


def test_the_evaluators_reason_stays_and_the_ppl_with_it():
  """Cases C2."""
  keys = records.keys_of_spans([], TEXT, reason="too_short")
  result = passes.document_result(
    keys, TEXT, np.array([[1, 2], [2, 3]]), np.array([-1.0, -2.0])
  )
  assert result.reason == "too_short"
  assert result.longppl is None
  assert result.ppl == pytest.approx(math.exp(1.5))


class Recorder:
  """Stands for a scorer: gives made-up log-probs, keeps what it was given."""

  def __init__(self, model):
    self.model = model
    self.read = []

  def score_long(self, jobs):
    # Like a scorer that waits for full batches.
    for job in reversed(list(jobs)):
      if not isinstance(job, scorer.Job):
        yield job
        continue
      self.read.append(job.ids.tolist())
      long = np.full(len(job.ids) - 1, -3.0, np.float32)
      yield scorer.Scores(job, long, long)


@pytest.fixture(scope="module")
def model():
  return testing.tiny_model(mesh=one_device_mesh(), add_bos=True)


def find(model, text=TEXT, *, protocol_name="strict", max_length=4096):
  """Key tokens as the model would find them, with log-probs made up."""
  manifest = finder.make_manifest(
    model,
    windows=WINDOWS,
    thresholds=Thresholds(2.0, -2.0),
    protocol=protocol_name,
    max_length=max_length,
    over_length="truncate_end",
    detail="tokens",
  )
  prepared = protocol.prepare(
    text,
    model.tokenizer,
    protocol=protocol_name,
    is_evaluator=True,
    max_length=max_length,
    over_length="truncate_end",
  )
  document = corpus.Document("d", 0, text, None, {})
  if prepared.reason:
    return finder.key_tokens_of(document, prepared, None, manifest)
  rng = np.random.default_rng(0)
  long, short = -rng.uniform(0, 9, (2, prepared.n_tokens)).astype(np.float32)
  scores = scorer.Scores(None, long, short)
  return finder.key_tokens_of(document, prepared, scores, manifest)


def evaluate(model, *keys, texts=None, **options):
  """(evaluation, its scorer, what it yields)."""
  recorder = Recorder(model)
  run = passes.Evaluation(recorder, keys[0].manifest, **options)
  pairs = zip(keys, texts or [TEXT] * len(keys), strict=True)
  return run, recorder, list(run.evaluate(pairs))


def test_the_evaluators_own_pass_is_taken(model):
  """Cases J5, C9: the model does not run, and its name does not matter."""
  keys = find(model)
  renamed = dataclasses.replace(model, name="another folder")
  run, recorder, (done,) = evaluate(renamed, keys)
  assert not recorder.read
  assert run.reused == 1 and run.self_evaluated
  np.testing.assert_array_equal(done.log_probs, keys.long_log_probs)
  long = keys.long_log_probs.astype(np.float64)
  assert done.result.nll_sum == pytest.approx(-long.sum())
  assert done.result.key_nll_sum == pytest.approx(-long[keys.key_mask].sum())
  np.testing.assert_array_equal(done.key_mask, keys.key_mask)


def test_a_document_that_needs_no_pass_is_not_kept_waiting(model):
  """Nor does it wait in memory for the end of the corpus."""
  keys = [find(model), find(model, "")]
  run = passes.Evaluation(scorer.make_scorer(model, WINDOWS), keys[0].manifest)
  taken = []

  def pairs():
    for i in range(4):
      taken.append(i)
      yield keys[i % 2], (TEXT, "")[i % 2]

  for i, done in enumerate(run.evaluate(pairs())):
    assert done.keys is keys[i % 2] and taken == list(range(i + 1))
  assert run.reused == 2 and not run.scorer.usage.fed


def other_tokenizer():
  backend = testing.byte_tokenizer(add_bos=True)
  backend.add_special_tokens(["<unused>"])
  return TextTokenizer(backend, name="bytes")


def with_rope(model, theta):
  rope = dataclasses.replace(model.config.rope, theta=theta)
  config = dataclasses.replace(model.config, ropes=(rope,))
  return dataclasses.replace(model, config=config)


CHANGES = {
  "checksum": (lambda m: testing.tiny_model(seed=1, add_bos=True), False),
  "tokenizer": (
    lambda m: dataclasses.replace(m, tokenizer=other_tokenizer()),
    True,
  ),
  "rope": (lambda m: with_rope(m, 20000.0), True),
  "attention": (lambda m: m.with_attention(window=32, sink_len=4), True),
  "dtype": (
    lambda m: testing.tiny_model(add_bos=True, dtype=jnp.bfloat16),
    True,
  ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_other_model_runs(model, change):
  """Cases J5: A's scores are never reported as B's."""
  make, self_evaluated = CHANGES[change]
  keys = find(model)
  other = make(model)
  changed = {
    name
    for name, value in finder.identity(other).items()
    if value != getattr(keys.manifest, name)
  } - {"evaluator"}
  assert changed == {
    "tokenizer_fingerprint" if change == "tokenizer" else change
  }
  run, recorder, (done,) = evaluate(other, keys)
  assert len(recorder.read) == 1 and run.reused == 0
  assert run.self_evaluated == self_evaluated
  assert done.result.nll_sum == 3.0 * keys.n_tokens


@pytest.mark.parametrize(
  ("protocol_name", "add_bos", "reused"),
  [
    ("paper", True, 0),
    ("paper", False, 1),
    ("strict", True, 1),
    ("strict", False, 1),
  ],
)
def test_the_same_model_runs_where_it_reads_other_ids(
  protocol_name, add_bos, reused
):
  """Under "paper" the evaluator reads a BOS and the model does not."""
  model = testing.tiny_model(mesh=one_device_mesh(), add_bos=add_bos)
  run, recorder, (done,) = evaluate(
    model, find(model, protocol_name=protocol_name)
  )
  assert run.reused == reused
  assert len(recorder.read) == 1 - reused
  # Bytes of TEXT are its characters; without a BOS the first is no target.
  has_bos = protocol_name == "strict" and add_bos
  assert done.result.n_tokens == len(TEXT) - (not has_bos)


def test_a_store_without_all_log_probs_or_facts_is_not_reused(model):
  keys = find(model)
  published = dataclasses.replace(PUBLISHED, protocol="strict")
  for manifest in (manifests.changed(keys.manifest, detail="keys"), published):
    changed = dataclasses.replace(keys, manifest=manifest)
    run, recorder, _ = evaluate(model, changed)
    assert len(recorder.read) == 1 and run.reused == 0
    assert run.self_evaluated == (manifest is not published)


@pytest.mark.parametrize(
  ("evaluator", "name", "same"),
  [
    ("Qwen2-72B-Instruct", "Qwen/Qwen2-72B-Instruct", True),
    ("qwen2-72b-instruct", "models/Qwen2-72B-Instruct/", True),
    ("Qwen2-72B-Instruct", "Qwen--Qwen2-72B-Instruct", True),
    ("Qwen2-72B-Instruct", "Qwen/Qwen2-72B", False),
  ],
)
def test_slice_files_are_known_by_their_evaluators_name(
  model, evaluator, name, same
):
  """They name no weights, so a result of their evaluator is a finding of it."""
  manifest = dataclasses.replace(PUBLISHED, evaluator=evaluator)
  renamed = dataclasses.replace(model, name=name)
  run = passes.Evaluation(Recorder(renamed), manifest)
  assert run.self_evaluated == same
  known = dataclasses.replace(manifest, detail="tokens", checksum="other")
  assert not passes.Evaluation(Recorder(renamed), known).self_evaluated


def test_losses_are_compared_where_both_models_have_the_target():
  """Places that one of the two lacks, and infinite losses, tell nothing."""
  keys = record.make_key_tokens(
    doc_id="d", doc_index=0, text_sha256="", n_chars=9, n_tokens=5,
    n_tokens_full=5, n_eligible=5, offsets=[(0, 1), (1, 3), (3, 4), (4, 6),
    (6, 9)], long_log_probs=[-1.0, -2.0, -4.0, -np.inf, -8.0],
    short_log_probs=[-9.0] * 5, manifest=manifests.make(),
  )  # fmt: skip
  result = passes.document_result(
    keys, "abcdefghi", np.array([(1, 3), (3, 4), (4, 6), (6, 8), (8, 9)]),
    np.array([-2.5, -3.0, -1.0, -1.0, -1.0]),
  )  # fmt: skip
  assert (result.shared_nll_sum, result.shared_gap_sum) == (6.0, 1.5)


def test_a_shorter_context_cuts_or_skips(model):
  """Cases C6: the model's own limit, and its own policy."""
  keys = find(model)
  run, recorder, (done,) = evaluate(model, keys, max_length=50)
  assert [len(ids) for ids in recorder.read] == [50]
  assert done.result.truncated and done.result.n_tokens == 49
  _, recorder, (done,) = evaluate(
    model, keys, max_length=50, over_length="skip"
  )
  assert not recorder.read
  assert done.result == passes.unscored(keys, TEXT, "too_long")
  small = dataclasses.replace(model.config, max_position=40)
  _, recorder, _ = evaluate(dataclasses.replace(model, config=small), keys)
  assert [len(ids) for ids in recorder.read] == [40]


def test_models_see_what_the_evaluator_saw():
  """Cases C5: the evaluator's cut ends the text of every model."""
  evaluator = testing.tiny_model(mesh=one_device_mesh(), add_bos=True)
  keys = find(evaluator, max_length=61)
  model = testing.tiny_model(mesh=one_device_mesh(), seed=1)
  _, recorder, (done,) = evaluate(model, keys)
  assert recorder.read == [
    testing.byte_tokenizer().encode(TEXT[: keys.n_chars]).ids
  ]
  assert keys.n_chars == 60
  assert not done.result.truncated


def test_documents_come_back_once_whatever_their_index(model):
  """Key tokens found one by one all have index 0."""
  other = testing.tiny_model(mesh=one_device_mesh(), seed=1, add_bos=True)
  texts = [TEXT, "", TEXT[:40], TEXT[:1]]
  keys = [find(model, text) for text in texts]
  run, recorder, found = evaluate(other, *keys, texts=texts)
  assert len(found) == 4 and run.reused == 0
  by_keys = {id(done.keys): done for done in found}
  results = [by_keys[id(one)].result for one in keys]
  assert [r.n_tokens for r in results] == [len(TEXT), 0, 40, 1]
  assert [r.reason for r in results] == ["", "empty", "", "too_short"]
  assert by_keys[id(keys[1])].log_probs is None


@pytest.mark.parametrize(
  ("protocol_name", "lengths"), [("paper", [60, 61]), ("strict", [])]
)
def test_the_bos_is_checked_on_the_longest_text(model, protocol_name, lengths):
  """Cases A11: and only where the protocol leaves it out."""
  recorder = Recorder(model)
  manifest = find(model, protocol_name=protocol_name).manifest
  run = passes.Evaluation(recorder, manifest)
  run.check_bos(["", TEXT[:60], "ab"])
  run.check_bos([""])
  assert sorted(map(len, recorder.read)) == lengths
