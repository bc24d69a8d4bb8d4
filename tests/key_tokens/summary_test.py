"""What is said of a store at the end of a run."""

import numpy as np
import pytest
from support import stores

from longctx_jax.key_tokens.summary import Summary

RATIOS = [i / 100 for i in range(41)]


@pytest.fixture
def found():
  summary = Summary()
  for i, ratio in enumerate(RATIOS):
    fields = dict(n=30 + i, n_tokens_full=2 * (30 + i) if i < 4 else 30 + i)
    summary.add_key_tokens(
      stores.record(
        i, truncated=i < 4, scores={"key_token_ratio": ratio}, **fields
      )
    )
  summary.add_key_tokens(stores.unscored(98))
  summary.add_key_tokens(stores.unscored(99, "empty"))
  return summary


def test_documents_are_counted_by_reason_and_failures_by_cause(found):
  assert found.total == 43 and found.reasons["failed"] == 1
  assert found.causes == {"the text could not be read": 1}
  row = dict(
    reason="failed", text_sha256="a", truncated=False, n_tokens=0,
    n_tokens_full=0,
  )  # fmt: skip
  found.add(row)
  assert found.causes["log-probs that are no numbers"] == 1
  assert "failed: 1 the text could not be read, 1 log-probs" in str(found)


def test_percentiles_are_of_the_documents_that_were_scored(found):
  table = {what: (count, values) for what, count, values in found.table()}
  lengths = [30 + i for i in range(41)]
  assert table["targets"] == (41, np.percentile(lengths, [10, 50, 90]).tolist())
  count, values = table["key tokens per eligible target"]
  assert count == 41 and values == pytest.approx([0.04, 0.2, 0.36])
  # No document has this score.
  assert "mean context benefit, nats" not in table


def test_the_share_that_was_cut_is_of_all_targets(found):
  cut = sum(30 + i for i in range(4))
  total = cut + sum(30 + i for i in range(41))
  assert found.n_cut == 4 and found.cut_share == pytest.approx(cut / total)
  # A skipped document was not cut: it is counted by its reason.
  found.add_key_tokens(
    stores.record(
      200, n=0, n_tokens_full=10**6, reason="too_long", truncated=False,
      **dict.fromkeys(("offsets", "long_log_probs", "short_log_probs")),
    )
  )  # fmt: skip
  assert found.cut_share == pytest.approx(cut / total)


def test_nothing_is_a_summary_too():
  assert Summary().table() == [] and "0 of 0 documents" in str(Summary())
