import functools

import pytest

from longctx_jax.scoring import buckets as buckets_lib


@functools.cache
def buckets_up_to(most):
  """All of them, ascending."""
  return sorted({buckets_lib.bucket_length(n) for n in range(1, most + 1)})


def test_buckets_grow_by_at_most_a_quarter():
  buckets = buckets_up_to(32768)
  assert buckets[-1] == 32768
  assert all(bucket % 128 == 0 for bucket in buckets)
  from_512 = [bucket for bucket in buckets if bucket >= 512]
  ratios = [b / a for a, b in zip(from_512[:-1], from_512[1:], strict=True)]
  assert max(ratios) <= 1.25
  assert sum(1024 <= bucket <= 32768 for bucket in buckets) >= 6


@pytest.mark.parametrize("n", [1, 127, 128, 129, 1024, 1025, 2047, 8191, 40000])
def test_bucket_is_the_smallest_that_holds(n):
  buckets = buckets_up_to(100_000)
  assert buckets_lib.bucket_length(n) == min(b for b in buckets if b >= n)
