"""Manifests of key tokens that no model found."""

from longctx_jax.key_tokens.manifest import Manifest

_FIELDS = {
  "evaluator": "tiny",
  "revision": "",
  "weight_format": "random F32",
  "checksum": "7",
  "tokenizer_fingerprint": "bytes",
  "rope": "default(theta 10000)",
  "attention": "full",
  "dtype": "float32",
  "protocol": "paper",
  "bos": None,
  "short_len": 4,
  "stride": 2,
  "alpha": 2.0,
  "beta": -2.0,
  "max_length": 4096,
  "over_length": "truncate_end",
  "detail": "tokens",
  "versions": {"jax": "0.10.2"},
  "format_version": 1,
}


def make(**changes):
  """A manifest with the paper's thresholds and tiny windows.

  Args:
    changes: fields as its file names them.
  """
  return Manifest.from_json(_FIELDS | changes, where="a made manifest")


def changed(manifest, **changes):
  """The manifest with other fields, as its file names them."""
  return Manifest.from_json(manifest.to_json() | changes, where="a changed one")
