"""What became of the documents of a run, in the log: also what was left out."""

from __future__ import annotations

import collections
from collections.abc import Collection

from absl import logging

from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.key_tokens.summary import Summary
from longctx_jax.scoring import protocol

# Of which the evaluator read nothing.
_UNREAD = (
  "empty",
  "nothing_to_score",
  "too_long",
  "failed",
  "unusable_offsets",
)
_NAMED = 5


def require_all(store: KeyTokenStore, wanted: Collection[str]) -> None:
  """Raises ValueError unless the store holds these documents."""
  missing = [doc_id for doc_id in wanted if doc_id not in store.hashes]
  if missing:
    named = ", ".join(map(repr, missing[:_NAMED]))
    raise ValueError(
      f"{len(missing):,} of {len(wanted):,} documents are missing in the store "
      f"({named}): the same command scores them"
    )


def report(store: KeyTokenStore, wanted: Collection[str]) -> None:
  """Logs how many documents have key tokens, and what was left out and why.

  Args:
    store: that was scored into.
    wanted: ids of the documents of this run.

  Raises:
    ValueError: there are documents, and none could be scored.
  """
  found = Summary()
  counts: collections.Counter[str] = collections.Counter()
  cut: list[KeyTokens] = []
  first: dict[str, KeyTokens] = {}
  longest = 0
  for doc_id in wanted:
    row = store.get(doc_id)
    found.add_key_tokens(row)
    counts[row.reason or "with key tokens"] += 1
    first.setdefault(row.reason, row)
    cut += [row] if row.truncated else []
    if row.reason == "too_short":
      n_text = row.n_tokens + 1 - store.manifest.prefix_len
      longest = max(longest, n_text)
  said = ", ".join(f"{n:,} {reason}" for reason, n in sorted(counts.items()))
  logging.info("documents: %s", said)
  if found.total:
    logging.info("%s", found)
  total, max_length = len(wanted), store.manifest.max_length
  if cut:
    full = sum(row.n_tokens_full for row in cut)
    logging.warning(
      "%s of %s documents cut to %s ids, %.0f %% of them unread; --max_length",
      f"{len(cut):,}",
      f"{total:,}",
      f"{max_length:,}",
      100 - 100 * sum(row.n_tokens for row in cut) / max(full, 1),
    )
  if counts["too_long"]:
    logging.warning(
      "%s of %s documents have more than %s ids and were skipped; "
      "--max_length, or --over_length truncate_end",
      f"{counts['too_long']:,}",
      f"{total:,}",
      f"{max_length:,}",
    )
  if counts["failed"]:
    logging.warning(
      "%s of %s documents failed (%s), %r first; the same command tries them "
      "again",
      f"{counts['failed']:,}",
      f"{total:,}",
      ", ".join(f"{n:,} {why}" for why, n in found.causes.most_common()),
      first["failed"].doc_id,
    )
  if total and counts["too_short"] == total:
    message = protocol.explain_too_short(longest, store.manifest.windows)
    logging.warning("%s", message)
  if total and sum(counts[reason] for reason in _UNREAD) == total:
    raise ValueError(f"none of {total:,} documents could be scored: {said}")
