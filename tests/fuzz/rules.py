"""When a command may be refused, and what determines its key tokens.

A command that nothing excuses must go through: a refusal there is a fault.
"""

from fuzz import truth
from fuzz.stores import sha256

# Of configs/longppl.py and of slice files.
_DEFAULTS = (2.0, -2.0)


def of_scoring(
  held, documents, *, seed, thresholds, detail, limit, overwrite, is_damaged,
  is_part=False, prune=False,
):  # fmt: skip
  """Why scoring may be refused, or "".

  Args:
    held: `stores.Held` of the workdir, or None.
    documents: (id, text) that are to be scored.
    seed: weights of the evaluator.
    thresholds, detail, limit, overwrite, prune: of the command.
    is_damaged: bits of its files were flipped.
    is_part: the documents are some of a corpus: a shard, or rows.
  """
  if len(dict(documents)) < len(documents):
    return "an id comes twice"
  if not any(truth.is_scored(text, seed, limit) for _, text in documents):
    return "nothing to score"
  if is_part and prune:
    return "what --prune may not do"
  if overwrite:
    return "what --overwrite may not do" if is_part else ""
  if is_damaged:
    return "flipped bits"
  if not held:
    return ""
  if (held.seed, held.detail, held.limit) != (seed, detail, limit):
    return "a store of other settings"
  if held.detail != "tokens" and held.thresholds != thresholds:
    return "a store of other thresholds"
  return ""


def of_merging(stores, is_damaged, output):
  """Why stores may not be merged, or "".

  Args:
    stores: `stores.Held` of each, or None.
    is_damaged: bits of their files were flipped.
    output: `stores.Held` of the output, or None.
  """
  if is_damaged:
    return "flipped bits"
  if output or None in stores:
    return "a store that is there, or one that is not"
  if len({(s.seed, s.thresholds, s.limit, s.detail) for s in stores}) > 1:
    return "stores of other settings"
  texts = {(doc_id, h) for s in stores for doc_id, h in s.hashes.items() if h}
  return "other texts" if len(dict(texts)) < len(texts) else ""


def of_evaluation(
  held, documents, keys, *, seed, thresholds, limit, overwrite, is_damaged,
  slices, intersection,
):  # fmt: skip
  """(why it may be refused or "", what determines its key tokens or None).

  Args:
    held: `stores.Held` of the key tokens' workdir, or None.
    documents: (id, text) of the corpus.
    keys: a workdir, "slices", or None where the documents are scored first.
    seed: weights of the evaluator.
    thresholds: alpha and beta, or None where the user names none.
    limit, overwrite: of the command.
    is_damaged: bits of its files were flipped.
    slices: spans by document.
    intersection: evaluate what both hold.
  """
  hashes = {doc_id: sha256(text) for doc_id, text in documents}
  if len(hashes) < len(documents) or not documents:
    return "an id comes twice, or no documents", None
  if keys is None:
    thresholds = thresholds or _DEFAULTS
    excuse = of_scoring(
      held, documents, seed=seed, thresholds=thresholds, detail="tokens",
      limit=limit, overwrite=overwrite, is_damaged=is_damaged,
    )  # fmt: skip
    if held and not overwrite and held.hashes.keys() - hashes.keys():
      if not intersection:
        excuse = excuse or "documents that are gone from the corpus"
    return excuse, _facts(documents, seed, thresholds, limit)
  if keys == "slices":
    return _of_slices(slices, documents, thresholds)
  if held is None:
    return "no store", None
  shared = tuple(d for d in documents if held.hashes.get(d[0]) == hashes[d[0]])
  documents = shared if intersection else documents
  asked = thresholds or held.thresholds
  facts = _facts(documents, held.seed, asked, held.limit)
  if not documents or (held.hashes != hashes and not intersection):
    return "a store of other documents", facts
  if is_damaged:
    return "flipped bits", facts
  if held.detail == "scores":
    return "a store without key tokens", facts
  if held.detail == "keys" and thresholds not in (None, held.thresholds):
    return "a store of other thresholds", facts
  return "", facts


def of_sweep(held, found, *, is_damaged):
  """Why thresholds may not be swept, or "".

  Args:
    held: `stores.Held` of the key tokens' workdir, or None.
    found: facts of the models that have numbers.
    is_damaged: bits of its files were flipped.
  """
  if is_damaged:
    return "flipped bits"
  if held is None or held.detail != "tokens":
    return "no store of all log-probs"
  if not any(facts.result["n_tokens"] for facts in found):
    return "no numbers"
  if len({facts.alike() for facts in found}) > 1:
    return "unlike"
  for facts in found:
    if facts.spans is not None:
      return "slices, which have no log-probs"
    if (facts.evaluator, facts.evaluator_limit) != (held.seed, held.limit):
      return "key tokens of another evaluator"
    if any(held.hashes.get(d) != sha256(text) for d, text in facts.documents):
      return "a store of other documents"
  return ""


def _of_slices(slices, documents, thresholds):
  if len(slices) != len(documents):
    return "slices of other documents", None
  excuse = "" if thresholds in (None, _DEFAULTS) else "thresholds of slices"
  for (_, text), spans in zip(documents, slices, strict=True):
    if spans and spans[-1][1] > len(text or ""):
      excuse = "slices of other documents"
  facts = _facts(documents, None, _DEFAULTS, None)
  return excuse, facts | {"spans": tuple(slices)}


def _facts(documents, seed, thresholds, limit):
  alpha, beta = thresholds
  return dict(
    documents=documents, evaluator=seed, alpha=alpha, beta=beta,
    evaluator_limit=limit,
  )  # fmt: skip
