"""The columns of a store, each with its type and what it is.

docs/store.md and the card beside a store show this table; a test compares it
with what is written.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Column:
  """A column of a store.

  Attributes:
    name: as in the files.
    type: as Arrow calls it.
    meaning: what it is, with its formula and unit.
  """

  name: str
  type: str
  meaning: str


def _columns(type_: str, **meanings: str) -> tuple[Column, ...]:
  return tuple(Column(name, type_, text) for name, text in meanings.items())


# What every row has; the order is that of the files.
DOCUMENT = (
  *_columns("string", doc_id="id in the corpus"),
  *_columns("int64", doc_index="index in the corpus, from 0"),
  *_columns(
    "string",
    text_sha256="SHA-256 of the UTF-8 text as read; empty where it could not "
    "be read",
  ),
  *_columns(
    "int64",
    n_chars="characters (code points) that the evaluator read",
    n_tokens="T: targets that it scored, ids - 1",
    n_tokens_full="T before the document was cut",
    n_eligible="targets that could be key: max(0, n - K - d), n text ids",
  ),
  *_columns(
    "string",
    reason="why there are no key tokens, empty where there are: empty, "
    "nothing_to_score, too_long, failed, unusable_offsets, too_short, "
    "no_key_tokens",
  ),
  *_columns("bool", truncated="whether the document was cut (--max_length)"),
)

# Index t speaks of the t-th target. Not in stores of detail "scores"; of the
# key tokens alone where it is "keys".
TARGETS = (
  *_columns(
    "list<int32>",
    token_start="first character of target t",
    token_end="character behind the last one of target t",
  ),
  *_columns(
    "list<float>",
    long_log_probs="L_t = ln P(target t, given all ids before it), nats",
    short_log_probs="S_t = ln P(target t, given the last K to K + d - 1 ids), "
    "nats; null for targets among the first K ids; equal to L_t where that is "
    "all there is before t",
  ),
)

# b_t = L_t - S_t over the targets where both are known.
SCORES = (
  *_columns(
    "int64",
    n_key_tokens="key tokens: b_t > alpha and L_t > beta, among the eligible",
  ),
  *_columns(
    "double",
    key_token_ratio="n_key_tokens / n_eligible",
    mean_context_benefit="mean of b_t, nats",
    median_context_benefit="median of b_t, nats",
    std_context_benefit="standard deviation of b_t, nats",
    p75_context_benefit="75th percentile of b_t, nats",
    p90_context_benefit="90th percentile of b_t, nats",
    p95_context_benefit="95th percentile of b_t, nats",
    frac_positive_benefit="share of the b_t above 0",
    context_benefit_near="mean of b_t over the first third of the scored "
    "targets, nats",
    context_benefit_mid="the same over the second third, nats",
    context_benefit_far="the same over the last third, nats",
    copied_share="share of the key tokens whose last 8 ids stood verbatim "
    "before their short context began",
  ),
  *_columns(
    "int64",
    n_mirror="targets with -b_t > alpha and S_t > beta: key with long and "
    "short exchanged, the noise floor of n_key_tokens",
    n_near_threshold="targets that are key or not by 0.01 nats in both "
    "thresholds",
  ),
)
ALL = (*DOCUMENT, *TARGETS, *SCORES)


def markdown() -> str:
  """The table as it stands in docs/store.md and in cards."""
  rows = [f"| `{c.name}` | {c.type} | {c.meaning} |" for c in ALL]
  return "\n".join(["| column | type | what |", "|---|---|---|", *rows])
