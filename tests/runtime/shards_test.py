"""Shares of the work: by hand, of a job array, of an indexed job."""

import pytest

from longctx_jax.runtime import shards
from longctx_jax.runtime.shards import Shard

SLURM = {
  "SLURM_ARRAY_TASK_ID": "5",
  "SLURM_ARRAY_TASK_MIN": "3",
  "SLURM_ARRAY_TASK_COUNT": "4",
}
INDEXED = {"JOB_COMPLETION_INDEX": "6"}


@pytest.mark.parametrize(
  ("text", "environment", "expected"),
  [
    ("0/1", {}, (0, 1)),
    ("7/8", SLURM, (7, 8)),
    ("auto", SLURM, (2, 4)),
    ("auto/8", SLURM, (2, 8)),
    ("auto/8", INDEXED, (6, 8)),
  ],
)
def test_a_shard_is_what_the_words_mean(text, environment, expected):
  assert shards.parse(text, environment) == Shard(*expected)


@pytest.mark.parametrize(
  ("text", "environment", "message"),
  [
    ("8/8", {}, "shard 8/8: expected i/n with 0 <= i < n"),
    ("0/0", {}, "shard 0/0"),
    ("3", {}, "shard='3' must be i/n"),
    ("1/-2", {}, "must be i/n"),
    ("auto", {}, "SLURM_ARRAY_TASK_ID, .*_MIN, .*_COUNT not set"),
    ("auto", INDEXED, "TASK_ID.* not set"),
    ("auto/2", SLURM, "shard 2/2"),
    ("auto/2", {"JOB_COMPLETION_INDEX": "x"}, "INDEX='x' is no number"),
  ],
)
def test_what_is_no_shard_is_refused(text, environment, message):
  with pytest.raises(ValueError, match=message):
    shards.parse(text, environment)


def test_shards_are_all_of_it_and_do_not_overlap():
  items = list(range(11))
  for count in range(1, 14):
    parts = [items[Shard(i, count).taken] for i in range(count)]
    assert sorted(sum(parts, [])) == items
    for index, part in enumerate(parts):
      shard = Shard(index, count)
      assert part == [item for item in items if shard.takes(item)]
