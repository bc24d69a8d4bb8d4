"""Which results may stand side by side: what they were made of is compared."""

from collections.abc import Sequence
from typing import Any

from longctx_jax.evaluation import identity
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.key_tokens.store import KeyTokenStore
from longctx_jax.runtime import settings

_SETTINGS = ("protocol", "alpha", "beta", "n_documents")
_SHORT_HASH = 8


class NotComparable(ValueError):
  """Two results were made from different key tokens or protocols."""


def check_comparable(results: Sequence[ModelResult]) -> None:
  """Refuses results that were not made alike (cases J2).

  Compares protocol, thresholds, what determines the key tokens, and the
  documents: their ids, texts and key tokens. A model that failed has no
  numbers and is not asked.

  Raises:
    NotComparable: names the field and both values.
  """
  first, *others = [r for r in results if r.has_numbers] or [None]
  for other in others:
    if difference := _difference(first, other):
      raise NotComparable(
        f"{first.name!r} and {other.name!r} differ in {difference}. Evaluate "
        "both from one key-token store under one protocol, or pass force to "
        "compare them as they are."
      )


def beside(
  results: Sequence[ModelResult], others: Sequence[ModelResult]
) -> tuple[list[ModelResult], dict[str, str]]:
  """Results with those of other runs that may stand in one table with them.

  Args:
    results: of one run; they take the place of others of their name.
    others: of other runs.

  Returns:
    The results to show; name -> what is different, of those left out.
  """
  shown, left_out = list(results), {}
  names = {result.name for result in results}
  reference = next((r for r in results if r.has_numbers), None)
  for other in others:
    if other.name in names:
      continue
    difference = ""
    if other.has_numbers:
      difference = _difference(reference, other) if reference else "all of it"
    if difference:
      left_out[other.name] = difference
    else:
      shown.append(other)
  return shown, left_out


def check_keys(
  results: Sequence[ModelResult], store: KeyTokenStore, *, where: object
) -> None:
  """Refuses key tokens that are not those of the results.

  Args:
    results: of one workdir.
    store: the key tokens, under the thresholds of the results.
    where: the store's place, for the message.

  Raises:
    NotComparable: names the field, or the document, and both values.
  """
  theirs = identity.of_keys(store.manifest.to_json())
  theirs |= {
    f"text of {doc_id!r}": digest[:_SHORT_HASH]
    for doc_id, digest in store.hashes.items()
  }
  for result in results:
    if not result.has_numbers:
      continue
    own = identity.of_keys(result.keys)
    texts = {
      f"text of {one.doc_id!r}": one.text_sha256[:_SHORT_HASH]
      for one in result.documents
      if one.text_sha256
    }
    known = {n: v for n, v in theirs.items() if n in own or n in texts}
    for name, one, another in settings.differences(known, own | texts):
      raise NotComparable(
        f"{where} holds other key tokens than those of {result.name!r}: they "
        f"differ in {name}: {one} and {another}. Name the store that the "
        "models were evaluated on with --keys."
      )


def _difference(first: ModelResult, other: ModelResult) -> str:
  """The first field in which two results differ, with both values; or ""."""
  for facts in (_settings, _documents):
    for name, one, another in settings.differences(facts(first), facts(other)):
      return f"{name}: {one} and {another}"
  return ""


def _settings(result: ModelResult) -> dict[str, Any]:
  facts = {name: getattr(result, name) for name in _SETTINGS}
  return facts | identity.of_keys(result.keys)


def _documents(result: ModelResult) -> dict[str, Any]:
  """Each document's text and key tokens, as far as the result knows them."""
  return {
    f"document {one.doc_id!r} (text, keys)": ", ".join(
      digest[:_SHORT_HASH] or "not recorded"
      for digest in (one.text_sha256, one.keys_sha256)
    )
    for one in result.documents
  }
