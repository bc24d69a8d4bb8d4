"""A store of key tokens, against the definitions."""

import dataclasses
import hashlib

import numpy as np
import pyarrow.parquet as pq

from fuzz import truth
from fuzz.faults import words
from fuzz.texts import TEXTS
from longctx_jax.key_tokens import store as store_lib

# Of the tiny models: what a store states where nothing is cut.
_NO_LIMIT = 4096
_PART = ".parquet"


def sha256(text):
  """What a text is known by; "" for one that can't be read."""
  return "" if text is None else hashlib.sha256(text.encode()).hexdigest()


_BY_HASH = {sha256(text): text for text in (*TEXTS.values(), None)}


@dataclasses.dataclass(frozen=True)
class Held:
  """What a store says of itself.

  Attributes:
    seed: weights of the evaluator.
    thresholds: alpha and beta.
    limit: ids that were read; None where nothing was cut.
    detail: tokens, keys or scores.
    hashes: id -> hash of the text.
  """

  seed: int
  thresholds: tuple
  limit: int | None
  detail: str
  hashes: dict

  def is_full(self, facts):
    """Whether it says as much as a store made for these thresholds."""
    asked = facts["alpha"], facts["beta"]
    return self.detail == "tokens" and self.thresholds == asked


def open_store(workdir):
  """(store, what it says); the program's own errors where it can't be read."""
  store = store_lib.read_store(workdir)
  manifest = store.manifest
  if not isinstance(manifest, dict):
    manifest = manifest.to_json()
  limit = manifest["max_length"]
  held = Held(
    truth.checksums()[manifest["checksum"]],
    (manifest["alpha"], manifest["beta"]),
    limit if limit < _NO_LIMIT else None,
    manifest["detail"],
    dict(store.hashes),
  )
  return store, held


def read(workdir):
  """What a store says of itself; None without a store that can be read."""
  try:
    return open_store(workdir)[1]
  except Exception:  # noqa: BLE001  whatever a damaged file does
    return None


def check(workdir, *, is_damaged, wrong):
  """Compares every row with that of its text.

  Args:
    workdir: holds key_tokens/.
    is_damaged: bits were flipped: the program may refuse the store, if it
      names the file.
    wrong: called with the kind and the detail of a fault.

  Returns:
    Id -> hash of the rows; None where the store is refused.
  """
  if not any((workdir / "key_tokens").glob(f"*{_PART}")):
    return {}
  try:
    store, held = open_store(workdir)
    rows = list(store)
  except Exception as error:  # noqa: BLE001
    if not is_damaged:
      wrong(f"a store that nothing damaged is refused: {words(error)}", error)
    elif str(workdir) not in str(error):
      wrong("a damaged store is refused without its file", error)
    return None
  for row in rows:
    rules = held.seed, *held.thresholds, held.limit
    _check_row(row, truth.keys(_BY_HASH[row.text_sha256], *rules), held, wrong)
  return held.hashes


def check_files(workdir, hashes, wrong):
  """That tools which read the folder alone see the store's rows, each once."""
  folder = workdir / "key_tokens"
  if odd := [path.name for path in folder.iterdir() if path.suffix != _PART]:
    wrong("key_tokens/ holds more than Parquet files", odd)
  rows = [
    row
    for path in folder.glob(f"*{_PART}")
    for row in pq.read_table(
      path, columns=["doc_id", "text_sha256"]
    ).to_pylist()
  ]
  found = sorted((row["doc_id"], row["text_sha256"]) for row in rows)
  if found != sorted(hashes.items()):
    detail = f"{[doc_id for doc_id, _ in found]}, and are {sorted(hashes)}"
    wrong("the files hold other rows than the store", detail)


def _check_row(row, expected, held, wrong):
  def compare(name, found, value):
    if found != value:
      wrong(f"a row's {name}", f"{row.doc_id}: {found}, and is {value}")

  if held.detail != "scores":
    compare("reason", row.reason, expected.reason)
  if expected.key is None:
    return
  compare("n_chars", row.n_chars, expected.n_chars)
  compare("n_key_tokens", row.scores["n_key_tokens"], expected.key.sum())
  for name in ("copied_share", "n_mirror", "n_near_threshold"):
    if row.scores[name] is None and expected.key.any():
      wrong(f"a row's {name} is null", row.doc_id)
  if held.detail == "scores":
    return
  chosen = expected.key if held.detail == "keys" else slice(None)
  for name in ("long", "short"):
    found = getattr(row, f"{name}_log_probs")
    value = getattr(expected, name)[chosen]
    if not np.allclose(found, value, atol=1e-3, equal_nan=True):
      wrong(f"a row's {name} log-probs", row.doc_id)
