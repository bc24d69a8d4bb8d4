"""One evaluator on documents: from their texts to their key tokens."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np
from absl import logging

from longctx_jax.key_tokens import record
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper import document_scores as document_scores_lib
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import protocol as protocol_lib
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.scoring.protocol import Prepared
from longctx_jax.text.corpus import Document
from longctx_jax.text.tokenizer import TextTokenizer


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
  windows: Windows,
  thresholds: Thresholds,
  protocol: str,
  max_length: int,
  over_length: str,
  detail: str,
) -> Manifest:
  """How key tokens were made; see docs/design.md for what is compared."""
  return Manifest(
    **identity(model),
    protocol=protocol,
    bos=model.tokenizer.leading_bos if model.tokenizer else None,
    windows=windows,
    thresholds=thresholds,
    max_length=max_length,
    over_length=over_length,
    detail=detail,
    versions={"jax": jax.__version__, "backend": jax.default_backend()},
    rope_by_length=model.config.rope_by_length or None,
  )


class Finder:
  """One evaluator on documents, as a manifest says; beside `Evaluation`.

  Attributes:
    scorer: of the evaluator.
    manifest: how the key tokens are made.
  """

  def __init__(self, scorer: scorer_lib.Scorer, manifest: Manifest):
    self.scorer = scorer
    self.manifest = manifest

  def check_bos(self, documents: Iterable[Document]) -> None:
    """See `protocol.check_bos`; to be called before anything is found."""
    if self.manifest.protocol == "paper":
      texts = (document.text or "" for document in documents)
      protocol_lib.check_bos(self.scorer, texts)

  def find(
    self, documents: Iterable[Document], *, ahead: bool = False
  ) -> Iterator[KeyTokens]:
    """Finds key tokens; documents come back as they finish.

    A document whose log-probs are not finite is "failed", and the log says
    why; the others go on.

    Args:
      documents: read one by one, no further ahead than the passes need.
      ahead: read them in a thread, some passes further: for many.

    Raises:
      OverLength: a document is too long, and the policy is "error".
    """
    # By place, since ids may be those of several texts.
    waiting: dict[int, tuple[Document, Prepared]] = {}

    def read():
      tokenizer = self.scorer.model.tokenizer
      for document in documents:
        yield prepare(document, tokenizer, self.manifest), document

    def jobs(pairs):
      for place, (prepared, document) in enumerate(pairs):
        if prepared.reason:
          yield key_tokens_of(document, prepared, None, self.manifest)
        else:
          waiting[place] = document, prepared
          yield scorer_lib.Job(place, prepared.ids, prepared.prefix_len)

    with protocol_lib.reading(read(), ahead=ahead) as pairs:
      for done in self.scorer.score(jobs(pairs)):
        if isinstance(done, scorer_lib.Scores):
          document, prepared = waiting.pop(done.job.key)
          if _is_finite(done, self.manifest):
            done = key_tokens_of(document, prepared, done, self.manifest)
          else:
            done = _failed(document, self.manifest)
        yield done


def prepare(
  document: Document, tokenizer: TextTokenizer, manifest: Manifest
) -> Prepared:
  """What the evaluator reads of a document.

  Raises:
    OverLength: it is too long, and the policy is "error".
  """
  if document.error:
    logging.warning("document %r: %s", document.doc_id, document.error)
    return protocol_lib.unscorable("failed")
  try:
    return protocol_lib.prepare(
      document.text,
      tokenizer,
      protocol=manifest.protocol,
      is_evaluator=True,
      max_length=manifest.max_length,
      over_length=manifest.over_length,
    )
  except protocol_lib.OverLength as error:
    raise protocol_lib.OverLength(f"{document.doc_id!r}: {error}") from error


def _is_finite(scores: scorer_lib.Scores, manifest: Manifest) -> bool:
  """Whether every log-prob that a pass should give is a number."""
  planned = manifest.prefix_len + manifest.windows.short_len - 1
  return bool(
    np.isfinite(scores.long).all() and np.isfinite(scores.short[planned:]).all()
  )


def _failed(document: Document, manifest: Manifest) -> KeyTokens:
  logging.warning(
    "document %r failed: %s gives log-probs that are no numbers (NaN): its "
    "weights are damaged, or overflow in %s",
    document.doc_id,
    manifest.evaluator,
    manifest.dtype,
  )
  unread = protocol_lib.unscorable("failed")
  return key_tokens_of(document, unread, None, manifest)


def key_tokens_of(
  document: Document,
  prepared: Prepared,
  scores: scorer_lib.Scores | None,
  manifest: Manifest,
) -> KeyTokens:
  """The record of a scored document, or of one that could not be scored."""
  n_eligible = manifest.windows.count_eligible(prepared.n_text)
  reason = prepared.reason or ("" if n_eligible else "too_short")
  row = functools.partial(
    record.make_key_tokens,
    doc_id=document.doc_id,
    doc_index=document.doc_index,
    text_sha256=store_lib.document_sha256(document),
    n_chars=prepared.n_chars,
    n_tokens=prepared.n_tokens,
    n_tokens_full=prepared.n_tokens_full,
    n_eligible=0 if prepared.reason else n_eligible,
    manifest=manifest,
    reason=reason,
    truncated=prepared.truncated,
    columns=document.columns,
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
    windows=manifest.windows,
    thresholds=manifest.thresholds,
  )
  # A field of the record already.
  del document_scores["n_eligible"]
  return dataclasses.replace(made, scores=document_scores)
