"""The longest context and the smallest slice."""

import pytest
from support.checks import refuses

from longctx_jax.experiments.plan import search, workloads
from longctx_jax.runtime import chips


def peak(workload, place):
  return search.largest(search.estimate(workload, place))[1].peak


@pytest.mark.parametrize(
  ("name", "place"),
  [("llama2_7b", "v5p:2x2x2"), ("govreport_llama31_8b", "v5e:2x4")],
)
def test_the_longest_context_fits_and_the_next_does_not(
  load_config, name, place
):
  found, place = workloads.read(load_config(name)), chips.parse(place)
  longest = search.longest_context(found, place)
  assert 1024 < longest < 2**20
  limit = place.chip.hbm / search.MARGIN
  assert peak(found.with_length(longest), place) <= limit
  assert peak(found.with_length(longest + 1 + longest // 4), place) > limit


def test_nothing_fits_where_the_weights_do_not(load_config):
  found = workloads.read(load_config("llama2_7b"))
  assert search.longest_context(found, chips.parse("v5e:1x1")) == 0


def test_the_smallest_slice_fits_and_smaller_ones_do_not(load_config):
  found = workloads.read(load_config("llama2_7b"))
  slices = chips.CHIPS["v5p"].slices
  smallest = search.smallest_slice(found, slices)
  for place in slices:
    if place.size >= smallest.size:
      break
    assert peak(found, place) * search.MARGIN > place.chip.hbm


def test_a_slice_that_the_rows_cannot_be_shared_over_is_none(load_config):
  """64 rows in 8 parts are for 8 chips at most."""
  found = workloads.read(load_config("llama2_7b"))
  with refuses("batch_size=64 rows are not a multiple of"):
    search.estimate(found, chips.parse("v5p:2x4x4"))
  slices = [chips.parse(f"v5e:{shape}") for shape in ("2x2", "4x4", "8x8")]
  assert search.smallest_slice(found, slices) is None
