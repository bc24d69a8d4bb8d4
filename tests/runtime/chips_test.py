"""What chips can do, and the slices there are of them."""

import pytest
from support.checks import refuses

from longctx_jax.runtime import chips


@pytest.mark.parametrize(
  ("kind", "peak"),
  [
    ("TPU v4", 275e12),
    ("TPU v5 lite", 197e12),
    ("TPU v5p", 459e12),
    ("TPU v5", 459e12),
    ("TPU v6 lite", 918e12),
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA A100-SXM4-80GB", 312e12),
    ("cpu", None),
    ("TPU v99", None),
  ],
)
def test_peaks_are_those_of_the_data_sheets_or_unknown(kind, peak):
  assert chips.peak_flops(kind) == peak


def test_memory_is_what_a_program_may_use_or_unknown():
  assert chips.memory_bytes("TPU v5 lite") == chips.CHIPS["v5e"].hbm
  assert chips.memory_bytes("TPU v5") == chips.CHIPS["v5p"].hbm
  assert chips.memory_bytes("cpu") == chips.memory_bytes("TPU v99") == 0


@pytest.mark.parametrize(
  ("name", "size", "hosts"),
  [
    ("v5e:1x1", 1, 1),
    ("v5e:2x4", 8, 1),
    ("v5e:4x4", 16, 4),
    ("v5p:2x2x1", 4, 1),
    ("v5p:2x2x2", 8, 2),
    ("v4:4x4x4", 64, 16),
    ("v6e:16x16", 256, 64),
  ],
)
def test_a_slice_has_chips_and_hosts(name, size, hosts):
  found = chips.parse(name)
  assert (found.name, found.size, found.hosts) == (name, size, hosts)


def test_slices_grow():
  for chip in chips.CHIPS.values():
    sizes = [one.size for one in chip.slices]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("v9:2x2", "'v9' is not one of v4, v5e, v5p, v6e"),
    ("v5p", "slices of v5p are 2x2x1, 2x2x2"),
    ("v5p:2x4", "slices of v5p are 2x2x1, 2x2x2"),
  ],
)
def test_a_slice_that_there_is_not_is_refused(name, message):
  with refuses(message):
    chips.parse(name)
