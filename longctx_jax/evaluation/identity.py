"""What a number belongs to: what must be equal, and what is only recorded.

A line of a ledger, and so each number, counts for one document (id and hash of
the text), its key tokens (hash of what the evaluator found there), one model,
protocol, windows and length. The path of a model, its revision and the versions
of the software are written down and not compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.runtime import settings

# Of a model: what determines its log-probs.
MODEL = (
  "checksum",
  "tokenizer_fingerprint",
  "rope",
  "attention",
  "dtype",
  "weight_format",
)
# Of a manifest: what may differ where the key tokens are the same.
_RECORDED = {"versions", "detail", "format_version", "source"}
# Names, which tell nothing where there is a checksum.
_NAMES = {"evaluator", "revision"}


def of_keys(manifest: Mapping[str, Any]) -> dict[str, Any]:
  """The facts of a manifest that two runs must share, dotted names.

  Slice files have no checksum: there the name of the evaluator stands for it.
  """
  recorded = _RECORDED | (_NAMES if manifest.get("checksum") else set())
  facts = {n: v for n, v in manifest.items() if n not in recorded}
  # What was written before the number was, was made under the first.
  return settings.flatten({"numerics": 1} | facts, prefix="keys.")


def of_model(model: Mapping[str, Any]) -> dict[str, Any]:
  """The facts of a model that two runs must share, dotted names."""
  facts = {name: value for name, value in model.items() if name in MODEL}
  return settings.flatten(facts, prefix="model.")


def keys_sha256(keys: KeyTokens) -> str:
  """Hash of all that a model under test is told of a document.

  It changes with the spans, whatever made them: other thresholds, a store that
  was scored anew, slice files that were edited.
  """
  facts = [keys.n_chars, keys.n_eligible, keys.reason, keys.spans.tolist()]
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
