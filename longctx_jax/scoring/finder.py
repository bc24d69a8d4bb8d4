"""From scored documents to key tokens, and what identifies them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from longctx_jax.key_tokens import record
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper import document_scores as document_scores_lib
from longctx_jax.paper import windows
from longctx_jax.scoring import scorer
from longctx_jax.scoring.protocol import Prepared
from longctx_jax.text import corpus


def identity(model: LoadedModel) -> dict[str, Any]:
  """What determines a model's log-probs, for manifests and comparisons."""
  config = model.config
  return {
    "evaluator": model.name,
    "revision": model.revision,
    "weight_format": model.weight_format,
    "checksum": model.checksum,
    "tokenizer_fingerprint": (
      model.tokenizer.fingerprint if model.tokenizer else ""
    ),
    "rope": config.describe_rope(),
    "attention": config.describe_attention(),
    "dtype": model.dtype,
  }


def make_manifest(
  model: LoadedModel,
  *,
  short_len: int,
  stride: int,
  alpha: float,
  beta: float,
  protocol_name: str,
  max_length: int,
  over_length: str,
  detail: str,
) -> dict[str, Any]:
  """How key tokens were made; see docs/design.md for what is compared."""
  by_length = model.config.rope_by_length
  return identity(model) | {
    "protocol": protocol_name,
    "bos": model.tokenizer.leading_bos if model.tokenizer else None,
    "short_len": short_len,
    "stride": stride,
    "alpha": alpha,
    "beta": beta,
    "max_length": max_length,
    "over_length": over_length,
    "detail": detail,
    "versions": {"jax": jax.__version__, "backend": jax.default_backend()},
    **({"rope_by_length": by_length} if by_length else {}),
  }


def key_tokens_of(
  document: corpus.Document,
  prepared: Prepared,
  scores: scorer.Scores | None,
  manifest: dict[str, Any],
) -> KeyTokens:
  """The record of a scored document, or of one that could not be scored."""
  short_len, stride = manifest["short_len"], manifest["stride"]
  n_eligible = windows.count_eligible(
    prepared.n_text, short_len=short_len, stride=stride
  )
  reason = prepared.reason or ("" if n_eligible else "too_short")
  row = functools.partial(
    record.make_key_tokens,
    doc_id=document.doc_id,
    doc_index=document.doc_index,
    text_sha256=("" if document.error else corpus.text_sha256(document.text)),
    n_chars=prepared.n_chars,
    n_tokens=prepared.n_tokens,
    n_tokens_full=prepared.n_tokens_full,
    n_eligible=0 if prepared.reason else n_eligible,
    alpha=manifest["alpha"],
    beta=manifest["beta"],
    manifest=manifest,
    reason=reason,
    truncated=prepared.truncated,
    columns=document.columns,
  )
  if scores is not None and np.isnan(scores.long).any():
    raise ValueError(
      f"{manifest['evaluator']} gives log-probs that are no numbers (NaN) for "
      f"document {document.doc_id!r}: its weights are damaged, or overflow in "
      f"{manifest['dtype']}"
    )
  if scores is None:
    return row(offsets=None, long_log_probs=None, short_log_probs=None)
  made = row(
    offsets=prepared.offsets,
    long_log_probs=scores.long,
    short_log_probs=scores.short,
  )
  document_scores = document_scores_lib.document_scores(
    prepared.ids,
    scores.long,
    scores.short,
    made.key_mask,
    prefix_len=prepared.prefix_len,
    short_len=short_len,
    stride=stride,
    alpha=manifest["alpha"],
    beta=manifest["beta"],
  )
  # A field of the record already.
  del document_scores["n_eligible"]
  return dataclasses.replace(made, scores=document_scores)
