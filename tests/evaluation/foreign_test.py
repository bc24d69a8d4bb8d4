"""Log-probs of another engine: a file that fits, or an error that says why."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import manifests, records

from longctx_jax.evaluation import foreign, matched, passes
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.record import make_key_tokens
from longctx_jax.text import corpus

# Targets are the words after the first; " fox" and " jumps" are key.
TEXT = "the quick brown fox jumps over"
OFFSETS = [(3, 9), (9, 15), (15, 19), (19, 25), (25, 30)]
MANIFEST = manifests.make()
LONG = np.array([-1, -1, -1, -1, -9.0])
SHORT = np.array([np.nan, -1, -8, -8, -9.5])


@pytest.fixture
def documents(tmp_path):
  """The document d and an empty one, with their key tokens."""
  path = tmp_path / "corpus.jsonl"
  path.write_text(
    f'{{"id": "d", "text": "{TEXT}"}}\n{{"id": "e", "text": ""}}\n'
  )
  shared = dict(manifest=MANIFEST)
  rows = [
    make_key_tokens(
      doc_id="d", doc_index=0, text_sha256=corpus.text_sha256(TEXT),
      n_chars=len(TEXT), n_tokens=5, n_tokens_full=5, n_eligible=4,
      offsets=OFFSETS, long_log_probs=LONG, short_log_probs=SHORT, **shared,
    ),
    make_key_tokens(
      doc_id="e", doc_index=1, text_sha256=corpus.text_sha256(""),
      n_chars=0, n_tokens=0, n_tokens_full=0, n_eligible=0, offsets=None,
      long_log_probs=None, short_log_probs=None, reason="empty", **shared,
    ),
  ]  # fmt: skip
  by_id = {row.doc_id: row for row in rows}
  hashes = {row.doc_id: row.text_sha256 for row in rows}
  store = store_lib.KeyTokenStore(MANIFEST, hashes, by_id.__getitem__)
  return matched.match(store, corpus.open_corpus(path))


@pytest.fixture
def write(tmp_path):
  """Writes rows of the document d, some columns replaced."""

  def write_file(repeat=1, **changes):
    row = {
      "doc_id": "d",
      "token_start": [start for start, _ in OFFSETS],
      "token_end": [end for _, end in OFFSETS],
      "log_prob": [-0.5, -1.0, -2.0, -4.0, -8.0],
    } | changes
    path = tmp_path / "log_probs.parquet"
    pq.write_table(pa.Table.from_pylist([row] * repeat), path)
    return foreign.open_log_probs(path, "lab/engine")

  return write_file


def test_sums_are_over_the_tokens_inside_the_key_spans(documents, write):
  pooled = foreign.evaluate_log_probs(write(), documents)
  one, other = pooled.documents
  assert (one.n_key_tokens, one.key_nll_sum) == (2, 6.0)
  assert (one.n_tokens, one.nll_sum) == (5, 15.5)
  assert pooled.longppl == pytest.approx(np.exp(3))
  assert (other.doc_id, other.reason) == ("e", "empty")
  assert not pooled.self_evaluated and pooled.name == "lab--engine"


def test_another_tokenization_is_projected_by_characters(documents, write):
  # " fox jumps" in three pieces; " brown fo" straddles the edge (case A7).
  file = write(
    token_start=[3, 9, 17, 19, 22], token_end=[9, 17, 19, 22, 30],
    log_prob=[0.0, -9.0, -1.0, -2.0, -9.0],
  )  # fmt: skip
  pooled = foreign.evaluate_log_probs(file, documents)
  assert pooled.longppl == pytest.approx(np.exp(1.5))
  assert pooled.key_coverage == 0.5


def test_tokens_behind_the_scored_text_count_for_nobody(documents, write):
  """Case C5: the evaluator read less."""
  cut = make_key_tokens(
    doc_id="d", doc_index=0, text_sha256=corpus.text_sha256(TEXT), n_chars=25,
    n_tokens=4, n_tokens_full=5, n_eligible=3, offsets=OFFSETS[:4],
    long_log_probs=LONG[:4], short_log_probs=SHORT[:4], truncated=True,
    manifest=MANIFEST,
  )  # fmt: skip
  store = documents.store
  rows = {"d": cut, "e": store.get("e")}
  store = store_lib.KeyTokenStore(MANIFEST, store.hashes, rows.__getitem__)
  cut = matched.match(store, documents.corpus)
  pooled = foreign.evaluate_log_probs(write(), cut)
  assert pooled.n_tokens == 4 and pooled.documents[0].nll_sum == 7.5


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"doc_id": "x"}, "no row for document 'd'"),
    ({"repeat": 2}, "document 'd' twice"),
    ({"log_prob": [-1.0]}, "'d': 1 log-probs and 5 offsets"),
    ({"log_prob": [-1.0, 0.1, -1, -1, -1]}, "log-prob 0.1 at target 1"),
    ({"log_prob": [-1.0, np.nan, -1, -1, -1]}, "log-prob nan at target 1"),
    ({"log_prob": [-1.0, None, -1, -1, -1]}, "log-prob nan at target 1"),
    ({"token_end": [9, 15, 19, 25]}, "'d': 5 token_start and 4 token_end"),
    ({"log_prob": None}, "'d': 0 log-probs and 5 offsets"),
    ({"token_end": [9, 15, 19, 25, 31]}, r"\[25, 31\] at target 4 .* of 30"),
    ({"token_start": [9, 3, 15, 19, 25]}, r"at target 0|at target 1"),
    ({"token_end": [9, 15, 19, 25, 2**62]}, r"outside the text of 30"),
    ({"token_start": [3.5, 9.0, 15.0, 19.0, 25.0]}, "an offset is no integer"),
    ({"token_start": [3, None, 15, 19, 25]}, "'d': log-probs are numbers, off"),
    ({"log_prob": ["a", "b", "c", "d", "e"]}, "'d': log-probs are numbers"),
    ({"log_prob": -1.0}, "column log_prob holds double; expected a list"),
    ({"token_start": "3"}, "column token_start holds string; expected a list"),
  ],
)
def test_a_file_that_does_not_fit_names_document_and_target(
  documents, write, changes, message
):
  with pytest.raises(ValueError, match=message):
    foreign.evaluate_log_probs(write(**changes), documents)


def test_log_probs_of_what_the_evaluator_did_not_read_are_refused(
  documents, write
):
  cut = make_key_tokens(
    doc_id="d", doc_index=0, text_sha256=corpus.text_sha256(TEXT), n_chars=8,
    n_tokens=0, n_tokens_full=5, n_eligible=0, offsets=None,
    long_log_probs=None, short_log_probs=None, reason="too_short",
    manifest=MANIFEST,
  )  # fmt: skip
  store = documents.store
  rows = {"d": cut, "e": store.get("e")}
  store = store_lib.KeyTokenStore(MANIFEST, store.hashes, rows.__getitem__)
  cut = matched.match(store, documents.corpus)
  message = "'d': all 5 offsets lie behind the 8 characters that the evaluator"
  with pytest.raises(ValueError, match=message):
    foreign.evaluate_log_probs(write(), cut)


def test_a_file_that_is_no_parquet_is_named(tmp_path):
  path = tmp_path / "log_probs.parquet"
  path.write_text("doc_id,log_prob\n")
  with pytest.raises(ValueError, match="log_probs.parquet is damaged, or of"):
    foreign.open_log_probs(path, "m")


def test_ids_may_be_numbers_and_still_stand_once(tmp_path, write):
  file = write(doc_id=7)
  assert list(file.rows()) == ["7"]
  with pytest.raises(ValueError, match="document '7' twice"):
    write(doc_id=7, repeat=2).rows()


def test_columns_and_name_are_checked_when_the_file_is_opened(tmp_path, write):
  file = write()
  assert file.name == "lab--engine"
  with pytest.raises(ValueError, match="name the model"):
    foreign.open_log_probs(file.path, "")
  path = tmp_path / "other.parquet"
  pq.write_table(pa.table({"doc_id": ["d"], "logprob": [[0.0]]}), path)
  with pytest.raises(
    ValueError, match="token_start, token_end, log_prob; it has: doc_id, logp"
  ):
    foreign.open_log_probs(path, "m")
  with pytest.raises(FileNotFoundError):
    foreign.open_log_probs(tmp_path / "none.parquet", "m")


@pytest.mark.parametrize(
  ("log_probs", "offsets", "message"),
  [
    ([-1.0], [[0, 1], [1, 2]], "1 log-probs and 2 offsets"),
    ([], [], "0 log-probs and 0 offsets"),
    ([-1.0, math.nan], [[0, 1], [1, 2]], "nan at target 1"),
    ([-math.inf, -1.0], [[0, 1], [1, 2]], "-inf at target 0"),
    ([-1.0, 0.5], [[0, 1], [1, 2]], "0.5 at target 1"),
    ([-1.0, -1.0], [[2, 3], [1, 2]], r"\[1, 2\] at target 1 are unordered"),
    ([-1.0, -1.0], [[0, 1], [2, 1]], r"\[2, 1\] at target 1"),
    ([-1.0], [[-1, 1]], r"\[-1, 1\] at target 0"),
    ([-1.0], [[3, 7]], r"\[3, 7\] at target 0.*text of 6 characters"),
  ],
)
def test_log_probs_that_do_not_fit_are_refused(log_probs, offsets, message):
  with pytest.raises(ValueError, match=f"document 'd': .*{message}"):
    foreign.check_log_probs("d", "abcdef", log_probs, offsets)


def test_rounding_above_certainty_is_cut():
  log_probs, offsets = foreign.check_log_probs(
    "d", "abcdef", [5e-4, -1], [(0, 1), (0, 6)]
  )
  assert log_probs.tolist() == [0.0, -1.0]
  assert offsets.tolist() == [[0, 1], [0, 6]]


def test_foreign_log_probs_end_where_the_evaluator_stopped():
  """Cases C5: both perplexities are over what the evaluator read."""
  keys = records.keys_of_spans([(0, 4)], "abcdef", n_chars=4)
  arrays = [-1.0, -2.0, -4.0], [(0, 2), (2, 4), (3, 5)]
  result = foreign.result_from_log_probs(keys, "abcdef", *arrays)
  assert (result.n_tokens, result.nll_sum) == (2, 3.0)
  assert result.n_key_tokens == 2


@pytest.mark.parametrize(
  ("start", "end", "expected"),
  [
    (0, 600, (0, 600)),
    # A first token has no log-prob; a longer gap is text that was cut.
    (256, 600, (0, 600)),
    (257, 600, (257, 600)),
    # Tokens may leave out spaces at the end, and nothing else.
    (0, 590, (0, 600)),
    (0, 589, (0, 589)),
  ],
)
def test_what_an_engine_read_is_seen_from_its_log_probs(start, end, expected):
  text = "a" * 590 + " " * 10
  keys = records.keys_of_spans([(100, 110), (580, 590)], text)
  offsets = np.arange(start, end)[:, None] + [0, 1]
  log_probs = [-1.0] * len(offsets)
  result = foreign.result_from_log_probs(keys, text, log_probs, offsets)
  assert (result.read_from, result.read_to) == expected
  assert result.truncated == (expected != (0, 600))
  unread = 10 * (start == 257) + (end == 589)
  assert result.unread_key_chars == unread


@pytest.mark.parametrize("reason", passes.UNREADABLE)
def test_unreadable_documents_need_no_log_probs(reason):
  keys = records.keys_of_spans([], TEXT, reason=reason)
  result = foreign.result_from_log_probs(keys, TEXT, [], [])
  assert (result.doc_id, result.reason) == ("d", reason)
  assert (result.n_tokens, result.n_chars_read) == (0, 0)
  assert result.n_chars == len(TEXT)
