"""The tables against what is visible, and against the library's own."""

import time

import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask as mask_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
  splash_attention_mask_info as mask_info_lib,
)

from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import splash_tables


def visible(spec, rows, num_k):
  """What is visible, position by position, bool [rows, num_k]."""
  rows, keys = spec.q_offset + rows[:, None], np.arange(num_k)[None]
  seen = keys <= rows
  if spec.window:
    seen &= (keys > rows - spec.window) | (keys < spec.sink_len)
  return seen


@pytest.mark.parametrize("sink_len", [0, 1, 4, 6])
def test_a_block_is_visited_for_what_is_seen_of_it(sink_len):
  rows, keys = np.arange(0, 8, 4), np.arange(0, 16, 4)
  for window, q_offset in np.ndindex(13, 9):
    if sink_len and not window:
      continue
    spec = AttentionSpec(1.0, q_offset, window, sink_len)
    seen = visible(spec, np.arange(8), 16).reshape(2, 4, 4, 4)
    got = splash_tables._compare(spec, rows, keys, 4, 4)
    np.testing.assert_array_equal(got > 0, seen.any((1, 3)))
    # A block in part may be all that is seen by two reasons together.
    assert seen.all((1, 3))[got == 2].all()
    if not sink_len:
      np.testing.assert_array_equal(got == 2, seen.all((1, 3)))


@pytest.mark.parametrize("by_keys", [False, True])
@pytest.mark.parametrize(
  ("starts", "run"),
  [
    ([[0]], 32),
    ([[0, 24], [8, 16]], 8),
    ([[0, 28], [4, 24], [8, 20], [12, 16]], 4),
  ],
)
def test_tables_are_those_of_the_library(starts, run, by_keys):
  starts = np.array(starts)
  for window in (0, 1, 5, 12):
    spec = AttentionSpec(1.0, 0, window)
    got = splash_tables.make_tables(
      spec,
      starts,
      run=run,
      num_k=32,
      block_q=4,
      block_k=8,
      by_keys=by_keys,
    )
    rows = (starts[..., None] + np.arange(run)).reshape(-1)
    np.testing.assert_array_equal(got.q_sequence, rows)
    process = (
      mask_info_lib.process_mask_dkv if by_keys else mask_info_lib.process_mask
    )
    expected, _ = process(
      mask_lib.MultiHeadMask([mask_lib.NumpyMask(visible(spec, rows, 32))]),
      (4, 8),
      q_seq_shards=len(starts),
    )
    for name in ("data_next", "block_mask"):
      a, b = getattr(got, name), getattr(expected, name)
      np.testing.assert_array_equal(a, b, err_msg=name)
      assert a.dtype == b.dtype


def test_a_million_positions_take_no_time():
  # cases E5: 2**40 pairs of positions
  spec = AttentionSpec(1.0, window=2**16, sink_len=2**10)
  begin = time.process_time()
  tables = splash_tables.make_tables(
    spec, np.array([[0]]), run=2**20, num_k=2**20, block_q=1024, block_k=1024
  )
  assert time.process_time() - begin < 5
  # A window of 64 blocks, one begun at either end, and the sink.
  assert tables.block_mask.shape == (1, 1024, 66)
