"""LongPPL: find key tokens with an evaluator, evaluate models on them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from absl import logging

from longctx_jax.evaluation import foreign, passes, results
from longctx_jax.evaluation.results import LongPplResult
from longctx_jax.key_tokens.record import KeyTokens, require_spans
from longctx_jax.model.loaded import LoadedModel, require_tokenizer
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import finder as finder_lib
from longctx_jax.scoring import protocol as protocol_lib
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.text import corpus


def find_key_tokens(
  text: str | Sequence[str],
  evaluator: LoadedModel,
  *,
  short_len: int,
  stride: int,
  alpha: float = 2.0,
  beta: float = -2.0,
  protocol: str = "paper",
  max_length: int = 0,
) -> KeyTokens | list[KeyTokens]:
  """Finds the key tokens of a text, or of each text of a list.

  A token is key iff log P(token | full context) - log P(token | last K tokens)
  > alpha and log P(token | full context) > beta (paper, Eq. 5).

  Args:
    text: one document, or a list of them.
    evaluator: the model that finds key tokens.
    short_len: the paper's K (4096), in ids.
    stride: the paper's d (1024), in ids.
    alpha: threshold on the difference, nats.
    beta: threshold on the long log-prob, nats.
    protocol: "paper" or "strict"; see the module `protocol`.
    max_length: ids that are read of a document, the rest is cut; 0 is the
      evaluator's own limit.

  Returns:
    `KeyTokens`, or a list of them in the order of the texts. A document
    without key tokens says why in `reason`.

  Raises:
    ValueError: bad windows or protocol; an evaluator without a tokenizer, or
      one that needs its BOS under "paper".

  >>> from longctx_jax import testing
  >>> text = testing.synthetic_document(0, num_words=40)
  >>> evaluator = testing.tiny_model(seed=0)
  >>> keys = find_key_tokens(
  ...   text, evaluator, short_len=32, stride=16, alpha=0.5, beta=-20.0
  ... )
  >>> start, end = keys.spans[0].tolist()  # characters that need the context
  >>> 48 <= start < end <= len(text)
  True
  """
  protocol_lib.check_protocol(protocol, "truncate_end")
  windows, thresholds = Windows(short_len, stride), Thresholds(alpha, beta)
  require_tokenizer(evaluator)
  texts = [text] if isinstance(text, str) else list(text)
  manifest = finder_lib.make_manifest(
    evaluator,
    windows=windows,
    thresholds=thresholds,
    protocol=protocol,
    max_length=max_length or evaluator.config.max_position,
    over_length="truncate_end",
    detail="tokens",
  )
  finder = finder_lib.Finder(_scorer(evaluator, windows), manifest)
  documents = [
    corpus.Document(str(i), i, text, None, {}) for i, text in enumerate(texts)
  ]
  finder.check_bos(documents)
  found = sorted(finder.find(documents), key=lambda keys: keys.doc_index)
  for keys in found:
    if keys.reason == "too_short":
      n_text = keys.n_tokens + 1 - manifest.prefix_len
      message = protocol_lib.explain_too_short(n_text, windows)
      logging.warning("%s", message)
  found = [
    dataclasses.replace(keys, text=one)
    for keys, one in zip(found, texts, strict=True)
  ]
  return found[0] if isinstance(text, str) else found


@functools.lru_cache(maxsize=2)
def _scorer(model, windows):
  # Compiled passes outlive a call, so that a loop over texts compiles once.
  return scorer_lib.make_scorer(model, windows)


def compute_longppl(
  text: str | Sequence[str],
  model: LoadedModel,
  keys: KeyTokens | Sequence[KeyTokens],
) -> LongPplResult:
  """Evaluates a model on key tokens (paper, Eq. 6).

  The protocol is that of the key tokens. Where the evaluator's own pass is
  the one asked for, its log-probs are taken and the model does not run.

  Args:
    text: the text of `keys`, or a list of texts.
    model: the model under test.
    keys: from `find_key_tokens`, one for each text.

  Raises:
    ValueError: a text that is not the one of its keys, or a model without a
      tokenizer or, under "paper", one that needs its BOS.

  >>> from longctx_jax import testing
  >>> text = testing.synthetic_document(0, num_words=40)
  >>> evaluator = testing.tiny_model(seed=0)
  >>> keys = find_key_tokens(
  ...   text, evaluator, short_len=32, stride=16, alpha=0.5, beta=-20.0
  ... )
  >>> result = compute_longppl(text, testing.tiny_model(seed=1), keys)
  >>> result.n_key_tokens == int(keys.key_mask.sum())  # both read the same
  True
  >>> result.longppl > 1.0
  True
  """
  require_tokenizer(model)
  texts = [text] if isinstance(text, str) else list(text)
  keys = [keys] if isinstance(keys, KeyTokens) else list(keys)
  check_texts(texts, keys)
  manifest = keys[0].manifest
  scorer = _scorer(model, manifest.windows)
  run = passes.Evaluation(scorer, manifest)
  run.check_bos(texts)
  found = {
    id(done.keys): done.result
    for done in run.evaluate(zip(keys, texts, strict=True))
  }
  return results.summarise(
    [found[id(one)] for one in keys],
    protocol_name=manifest.protocol,
    self_evaluated=run.self_evaluated,
  )


def check_texts(texts: Sequence[str], keys: Sequence[KeyTokens]) -> None:
  """Checks that each text is that of its keys, and all were found alike.

  Raises:
    ValueError: they are not; the document, or the settings that differ. Or
      the keys come from a store of scores alone.
  """
  if len(texts) != len(keys) or not keys:
    raise ValueError(f"{len(texts)} texts and {len(keys)} key tokens")
  require_spans(keys[0].manifest)
  first = keys[0].manifest.to_json()
  for text, one in zip(texts, keys, strict=True):
    if one.manifest != keys[0].manifest:
      own = one.manifest.to_json()
      differing = sorted(
        name
        for name in own | first
        if name != "versions" and own.get(name) != first.get(name)
      )
      raise ValueError(
        f"the key tokens of document {one.doc_id!r} were found with other "
        f"settings than those of the first: {', '.join(differing)} differ"
      )
    if one.text_sha256 != corpus.text_sha256(text):
      raise ValueError(
        f"the key tokens of document {one.doc_id!r} were found in another "
        "text: find them again, or give the text that they belong to"
      )


def longppl_from_log_probs(
  text: str | Sequence[str],
  log_probs: Sequence[Any],
  offsets: Sequence[Any],
  keys: KeyTokens | Sequence[KeyTokens],
) -> LongPplResult:
  """LongPPL from log-probs computed elsewhere: any model, any engine.

  Args:
    text: one document, or a list.
    log_probs: log P(target | full context), nats: [T], or a list of such.
    offsets: characters of the targets in the text: [T, 2], or a list.
    keys: from `find_key_tokens`, one for each text.

  Raises:
    ValueError: a text that is not the one of its keys, or arrays that do not
      fit it; see `foreign.check_log_probs`.

  >>> from longctx_jax import testing
  >>> text = testing.synthetic_document(0, num_words=40)
  >>> evaluator = testing.tiny_model(seed=0)
  >>> keys = find_key_tokens(
  ...   text, evaluator, short_len=32, stride=16, alpha=0.5, beta=-20.0
  ... )
  >>> offsets = [(i, i + 1) for i in range(len(text))]  # a character a token
  >>> log_probs = [-0.5] * len(text)
  >>> result = longppl_from_log_probs(text, log_probs, offsets, keys)
  >>> result.key_nll_sum_nats / result.n_key_tokens
  0.5
  """
  if isinstance(text, str):
    text, log_probs, offsets = [text], [log_probs], [offsets]
  keys = [keys] if isinstance(keys, KeyTokens) else list(keys)
  check_texts(text, keys)
  return results.summarise(
    [
      foreign.result_from_log_probs(*document)
      for document in zip(keys, text, log_probs, offsets, strict=True)
    ],
    protocol_name=keys[0].manifest.protocol,
    self_evaluated=False,
  )
