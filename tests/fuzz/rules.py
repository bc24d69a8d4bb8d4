"""When a command may be refused, and what determines its key tokens.

A command that nothing excuses must go through: a refusal there is a fault.
"""

from fuzz.stores import sha256

# Of configs/longppl.py and of slice files.
_DEFAULTS = (2.0, -2.0)


def of_scoring(
  held, documents, *, seed, thresholds, detail, limit, rows, overwrite,
  is_fragile,
):  # fmt: skip
  """Why scoring may be refused, or "".

  Args:
    held: `stores.Held` of the workdir, or None.
    documents: (id, text) of the corpus.
    seed: weights of the evaluator.
    thresholds, detail, limit, rows, overwrite: of the command.
    is_fragile: a process was killed in the workdir, or bits were flipped.
  """
  if len(dict(documents)) < len(documents):
    return "an id comes twice"
  if not documents or (rows and rows[0] >= len(documents)):
    return "no documents"
  if overwrite:
    return ""
  if is_fragile:
    return "what a killed process left"
  if not held:
    return ""
  if (held.seed, held.detail, held.limit) != (seed, detail, limit):
    return "a store of other settings"
  if held.detail != "tokens" and held.thresholds != thresholds:
    return "a store of other thresholds"
  return ""


def of_evaluation(
  held, documents, keys, *, seed, thresholds, limit, overwrite, is_fragile,
  slices,
):  # fmt: skip
  """(why it may be refused or "", facts of its key tokens or None).

  Args:
    held: `stores.Held` of the key tokens' workdir, or None.
    documents: (id, text) of the corpus.
    keys: a workdir, "slices", or None where the documents are scored first.
    seed: weights of the evaluator.
    thresholds: alpha and beta, or None where the user names none.
    limit, overwrite: of the command.
    is_fragile: a process was killed in that workdir, or bits were flipped.
    slices: spans by document.
  """
  hashes = {doc_id: sha256(text) for doc_id, text in documents}
  if len(hashes) < len(documents) or not documents:
    return "an id comes twice, or no documents", None
  if keys is None:
    thresholds = thresholds or _DEFAULTS
    excuse = of_scoring(
      held, documents, seed=seed, thresholds=thresholds, detail="tokens",
      limit=limit, rows=None, overwrite=overwrite, is_fragile=is_fragile,
    )  # fmt: skip
    if held and not overwrite and held.hashes.keys() - hashes.keys():
      excuse = excuse or "documents that are gone from the corpus"
    return excuse, _facts(seed, thresholds, limit)
  if keys == "slices":
    return _of_slices(slices, documents, thresholds)
  if held is None:
    return "no store", None
  facts = _facts(held.seed, thresholds or held.thresholds, held.limit)
  if held.hashes != hashes:
    return "a store of other documents", facts
  if is_fragile:
    return "what a killed process left", facts
  if held.detail == "scores":
    return "a store without key tokens", facts
  if held.detail == "keys" and thresholds not in (None, held.thresholds):
    return "a store of other thresholds", facts
  return "", facts


def _of_slices(slices, documents, thresholds):
  if len(slices) != len(documents):
    return "slices of other documents", None
  excuse = "" if thresholds in (None, _DEFAULTS) else "thresholds of slices"
  for (_, text), spans in zip(documents, slices, strict=True):
    if spans and spans[-1][1] > len(text or ""):
      excuse = "slices of other documents"
  return excuse, _facts(None, _DEFAULTS, None) | {"spans": tuple(slices)}


def _facts(seed, thresholds, limit):
  alpha, beta = thresholds
  return dict(evaluator=seed, alpha=alpha, beta=beta, evaluator_limit=limit)
