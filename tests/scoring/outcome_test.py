"""What became of the documents is said, and what got lost is an error."""

import pytest
from support import manifests, records

from longctx_jax.scoring import outcome


def test_every_document_that_is_missing_is_counted_and_some_are_named():
  store = records.make_store(records.make_unscored("d0", "empty"))
  outcome.require_all(store, ["d0"])
  wanted = [f"d{i}" for i in range(8)]
  with pytest.raises(ValueError, match=r"7 of 8 .* \('d1', .*'d5'\): the same"):
    outcome.require_all(store, wanted)


def test_documents_are_counted_by_reason(caplog):
  long, short = [-1.0] * 4, [-9.0] * 4
  rows = [
    records.make_row("abcde", long, short, n_tokens_full=12, truncated=True),
    records.make_row("abcde", long, short, doc_id="d1"),
    records.make_unscored("d2", "failed"),
    records.make_unscored("d3", "too_long"),
    records.make_unscored("other", "empty"),
  ]
  with caplog.at_level("INFO"):
    outcome.report(records.make_store(*rows), ["d0", "d1", "d2", "d3"])
  for said in (
    "documents: 1 failed, 1 too_long, 2 with key tokens",
    "1 of 4 documents cut to 4,096 ids, 67 % of them unread; --max_length",
    "1 of 4 documents have more than 4,096 ids and were skipped",
    "1 of 4 documents failed (1 log-probs that are no numbers), 'd2' first; "
    "the same command tries them again",
    "failed: 1 log-probs that are no numbers",
    "targets                                4         4         4  2",
  ):
    assert said in caplog.text
  assert "empty" not in caplog.text


@pytest.mark.parametrize("has_bos", [False, True])
def test_windows_that_fit_are_suggested_where_all_are_too_short(
  warnings, has_bos
):
  manifest = manifests.make(bos=256 if has_bos else None)
  row = records.make_row(
    "abcde", [-1.0] * 4, [float("nan")] * 4, reason="too_short",
    manifest=manifest,
  )  # fmt: skip
  outcome.report(records.make_store(row), ["d0"])
  n = 5 - manifest.prefix_len
  assert len(warnings) == 1 and f" {n} " in warnings[0]


def test_a_run_in_which_nothing_was_read_is_an_error():
  rows = [records.make_unscored(f"d{i}", "empty") for i in range(2)]
  store = records.make_store(*rows)
  with pytest.raises(ValueError, match="none of 2 .* be scored: 2 empty"):
    outcome.report(store, ["d0", "d1"])
  outcome.report(store, [])
