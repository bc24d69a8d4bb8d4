"""Which RoPE tables the long and the short passes of a result used."""

import dataclasses
import re

import pytest
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.evaluation import caveats
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import finder

LONGROPE = RopeConfig(
  "longrope",
  10000.0,
  original_max_position=100,
  short_factor=(1.0,) * 4,
  long_factor=(1.0, 2.0, 5.0, 9.0),
)
DYNAMIC = RopeConfig("dynamic", 1e4, factor=2.0, original_max_position=100)


@pytest.fixture(scope="module")
def model():
  return testing.tiny_model(mesh=one_device_mesh())


def manifest_of(model, table, *, short_len, protocol="paper"):
  config = dataclasses.replace(model.config, ropes=(table,))
  return finder.make_manifest(
    dataclasses.replace(model, config=config),
    windows=Windows(short_len, 16),
    thresholds=Thresholds(2.0, -2.0),
    protocol=protocol,
    max_length=4096,
    over_length="error",
    detail="tokens",
  )


def documents(*eligible):
  return [
    DocumentResult(f"d{i}", i, "", n_eligible=n) for i, n in enumerate(eligible)
  ]


@pytest.mark.parametrize(
  ("table", "short_len", "eligible", "mixed"),
  [
    # Documents of 64 + eligible ids; windows of 64.
    (LONGROPE, 48, (0, 36), None),
    (LONGROPE, 48, (36, 37), "1 of 2 documents.*long table.*short table"),
    (DYNAMIC, 48, (36, 37), "1 of 2 documents.*length 101.*length 100"),
    # Windows of 128 have the long table as well, but not a longer one.
    (LONGROPE, 112, (9,), None),
    (DYNAMIC, 112, (9,), "length 137.*length 128"),
    (RopeConfig("default", 1e4), 48, (999,), None),
  ],
)
def test_tables_that_differ_are_called_out(
  model, table, short_len, eligible, mixed
):
  """Cases F5."""
  manifest = manifest_of(model, table, short_len=short_len)
  found = caveats.rope_tables(documents(*eligible), manifest)
  if mixed is None:
    assert not found
    return
  (line,) = found
  assert re.search(mixed, line)


def test_only_length_dependent_tables_stand_in_the_manifest(model):
  plain = manifest_of(model, RopeConfig("default", 1e4), short_len=48)
  assert (
    plain.rope_by_length is None and "rope_by_length" not in plain.to_json()
  )
  manifest = manifest_of(model, LONGROPE, short_len=48)
  assert manifest.rope_by_length == {"rope_type": "longrope", "limit": 100}
  assert manifest.rope.startswith("longrope(theta 10000, ")


def test_a_repeated_bos_is_part_of_a_window(model):
  paper = manifest_of(model, LONGROPE, short_len=48)
  assert caveats.window_length(paper) == 64
  strict = manifest_of(model, LONGROPE, short_len=48, protocol="strict")
  assert caveats.window_length(strict) == 64
  assert caveats.window_length(dataclasses.replace(strict, bos=1)) == 65
