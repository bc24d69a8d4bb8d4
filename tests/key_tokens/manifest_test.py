"""The manifest: what its file may hold, and what it says when it does not."""

import dataclasses
import json

import pytest
from support import manifests

from longctx_jax.key_tokens import slices
from longctx_jax.key_tokens.manifest import Manifest

# As a run wrote it that cut documents for training, with a table by length.
FILE = {
  "evaluator": "meta-llama/Llama-3.1-8B",
  "revision": "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b",
  "weight_format": "safetensors BF16",
  "checksum": "84046927b82da540",
  "tokenizer_fingerprint": "6e5a4b1c",
  "rope": "longrope(theta 10000, original 4096, length 4096 and more)",
  "attention": "full",
  "dtype": "bfloat16",
  "protocol": "strict",
  "bos": 128000,
  "short_len": 4096,
  "stride": 1024,
  "alpha": 2.0,
  "beta": -2.0,
  "max_length": 131072,
  "over_length": "truncate_end",
  "detail": "tokens",
  "versions": {"jax": "0.10.2", "backend": "tpu"},
  "rope_by_length": {"rope_type": "longrope", "limit": 4096},
  "chunk_len": 32768,
  "chunk_tokenizer": "0f133935",
  "numerics": 1,
  "format_version": 1,
}
OPTIONAL = ("rope_by_length", "chunk_len", "chunk_tokenizer")
# Which files of before lack.
ADDED = ("numerics",)


def read(fields):
  return Manifest.from_json(fields, where="keys/manifest.json")


@pytest.mark.parametrize("left_out", [(), OPTIONAL])
def test_a_file_is_read_and_written_as_it_was(left_out):
  """The order too: a diff of two manifests is of what changed."""
  fields = {name: FILE[name] for name in FILE if name not in left_out}
  manifest = read(json.loads(json.dumps(fields)))
  assert json.dumps(manifest.to_json()) == json.dumps(fields)
  assert read(manifest.to_json()) == manifest
  assert manifest.windows.length == 5120 and manifest.thresholds.beta == -2


def test_slice_files_say_the_settings_of_the_paper_and_no_more():
  published = dataclasses.replace(
    slices.PUBLISHED, evaluator="E", source="slices:E"
  )
  fields = published.to_json()
  assert set(fields) == set(
    "evaluator protocol short_len stride alpha beta detail source".split()
  )
  assert read(fields) == published and published.checksum is None


@pytest.mark.parametrize("name", sorted(set(FILE) - {*OPTIONAL, *ADDED}))
def test_a_missing_field_is_named(name):
  fields = {key: value for key, value in FILE.items() if key != name}
  with pytest.raises(ValueError, match=f"^keys/manifest.json .*'{name}'"):
    read(fields)


@pytest.mark.parametrize(
  ("name", "value", "message"),
  [
    ("format_version", 2, "format 2; this version reads 1"),
    ("short_len", "4096", "'4096'"),
    ("stride", 8192, "stride=8192 and short_len=4096"),
    ("alpha", None, "alpha=None is no number"),
    ("checksum", 7, "checksum is 7"),
    ("bos", "<s>", "bos is '<s>'"),
    ("protocol", "reference", "'reference'; known: paper, strict"),
    ("over_length", "cut", "'cut'; known: truncate_end, skip, error"),
    ("detail", "all", "'all'; known: tokens, keys, scores"),
    ("versions", "0.10", "versions is '0.10'"),
    ("temperature", 1.0, "unknown 'temperature'"),
  ],
)
def test_a_value_that_can_not_be_is_named(name, value, message):
  with pytest.raises(ValueError, match=f"^keys/manifest.json.*{message}"):
    read(FILE | {name: value})


@pytest.mark.parametrize("fields", [[], None, "manifest", {}])
def test_what_is_no_manifest_is_called_so(fields):
  with pytest.raises(ValueError, match=r"keys/manifest\.json is no manifest"):
    read(fields)


def test_versions_are_recorded_and_not_compared():
  made = manifests.make()
  assert made == manifests.changed(made, versions={"jax": "1"})
  assert made != manifests.changed(made, checksum="8")
  assert len({made, manifests.changed(made, versions={})}) == 1


def test_a_file_of_before_has_the_first_numerics():
  assert read({n: FILE[n] for n in FILE if n not in ADDED}) == read(FILE)


def test_what_a_number_depends_on():
  """Spelling, revision, versions and thresholds do not."""
  made = manifests.make()
  free = dict(evaluator="x", revision="x", versions={}, alpha=1.0, beta=-3.0)
  assert manifests.changed(made, **free).identity() == made.identity()
  for name, value in dict(
    checksum="x", tokenizer_fingerprint="x", rope="x", attention="x",
    dtype="bfloat16", weight_format="x", protocol="strict", bos=1,
    short_len=5, stride=3, max_length=9, over_length="skip", numerics=2,
  ).items():  # fmt: skip
    assert manifests.changed(made, **{name: value}).identity() != (
      made.identity()
    )
  published = dataclasses.replace(slices.PUBLISHED, evaluator="E")
  other = dataclasses.replace(published, evaluator="F")
  assert published.identity() != other.identity()
  moved = dataclasses.replace(published, source="slices:elsewhere")
  assert published.identity() == moved.identity()


def test_only_strict_repeats_a_bos():
  for protocol, bos, repeated in [
    ("paper", 1, 0), ("strict", 1, 1), ("strict", None, 0),
  ]:  # fmt: skip
    assert manifests.make(protocol=protocol, bos=bos).prefix_len == repeated
