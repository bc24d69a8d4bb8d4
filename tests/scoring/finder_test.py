"""From a document to its key tokens, with passes that are made up."""

import types

import numpy as np
import pytest
from support import manifests

from longctx_jax import testing
from longctx_jax.scoring import finder, protocol, scorer
from longctx_jax.text import corpus
from longctx_jax.text.tokenizer import TextTokenizer

TOKENIZER = TextTokenizer(testing.byte_tokenizer(), name="bytes")
# K = 4, d = 2.
MANIFEST = manifests.make()


class StubScorer:
  """Every long log-prob is -1, every short one -9; "!" gives NaN."""

  model = types.SimpleNamespace(tokenizer=TOKENIZER)

  def score(self, jobs):
    held = []
    for job in jobs:
      if not isinstance(job, scorer.Job):
        yield job
        continue
      n = len(job.ids) - 1
      long, short = np.full((2, n), [[-1], [-9]], np.float32)
      short[: MANIFEST.windows.short_len - 1] = np.nan
      if TOKENIZER.decode(job.ids).startswith("!"):
        long[-1] = np.nan
      held.append(scorer.Scores(job, long, short))
    # Passes end in another order than documents come.
    yield from held[::-1]


def documents(*texts):
  return [corpus.Document("same", i, t, None, {}) for i, t in enumerate(texts)]


def find(*texts, manifest=MANIFEST):
  found = finder.Finder(StubScorer(), manifest).find(documents(*texts))
  return {row.doc_index: row for row in found}


def test_each_document_gets_its_own_scores_whatever_the_order():
  """Also where ids are the same."""
  texts = ["abcdefgh", "", "abcdefghijkl", "abc"]
  rows = find(*texts)
  assert [rows[i].reason for i in range(4)] == ["", "empty", "", "too_short"]
  for i in (0, 2):
    assert rows[i].n_tokens == len(texts[i]) - 1
    assert rows[i].text_sha256 == corpus.text_sha256(texts[i])
    assert rows[i].key_mask.sum() == len(texts[i]) - 4


def test_log_probs_that_are_no_numbers_fail_their_document_alone(caplog):
  rows = find("abcdefgh", "!bcdefgh")
  assert [rows[i].reason for i in range(2)] == ["", "failed"]
  assert rows[1].long_log_probs is None
  assert "gives log-probs that are no numbers (NaN)" in caplog.text


def test_a_document_that_is_too_long_is_named():
  strict = manifests.make(max_length=8, over_length="error")
  with pytest.raises(protocol.OverLength, match="^'same': "):
    find("abcdefghi", manifest=strict)
  assert find("abcdefgh", manifest=strict)[0].reason == ""
