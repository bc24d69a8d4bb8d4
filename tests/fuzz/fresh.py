"""The same numbers from commands in an empty folder, where nothing is stale."""

import json
import math
import pathlib
import tempfile

from fuzz.texts import corpus_lines, slice_text

# Of the run or its place, not of what was measured. The last covers places.
_OF_THE_RUN = (
  "name", "evaluator", "versions", "source", "seconds", "tokens_per_second",
  "padding_share", "n_reused", "documents_sha256", "made",
)  # fmt: skip


class Fresh:
  """Results by their facts, each computed once."""

  def __init__(self, terminal, models, windows, known):
    """Takes flags of the windows, and the dict that holds the results."""
    self._terminal, self._models, self._windows = terminal, models, windows
    self._known = known

  def difference(self, path, facts):
    """The first field of a result that a fresh run has otherwise, or ""."""
    if facts not in self._known:
      self._known[facts] = self._run(facts)
    expected = self._known[facts]
    if expected is None:
      return "a fresh run fails"
    return _difference(json.loads(path.read_text()), expected)

  def _run(self, facts):
    with tempfile.TemporaryDirectory() as folder:
      root = pathlib.Path(folder)
      data = root / "corpus.jsonl"
      data.write_text(corpus_lines(facts.documents))
      keys, thresholds = self._key_tokens(root, facts, data)
      done = keys and self._terminal.run(
        "scripts/eval.py", "--keys", keys, "--data", data, "--workdir",
        root / "e", "--model", self._models / f"m{facts.model}", *thresholds,
        *_length(facts.limit),
      )  # fmt: skip
      if not done or done.status:
        return None
      path = root / "e" / "results" / f"m{facts.model}.json"
      return json.loads(path.read_text())

  def _key_tokens(self, root, facts, data):
    """(--keys, flags of the thresholds)."""
    if facts.spans is not None:
      folder = root / "slices"
      folder.mkdir()
      for i, spans in enumerate(facts.spans):
        (folder / f"slice_{i}.txt").write_text(slice_text(spans))
      return f"slices:{folder}", ()
    thresholds = (
      f"--config.longppl.alpha={facts.alpha}",
      f"--config.longppl.beta={facts.beta}",
    )
    done = self._terminal.run(
      "scripts/score.py", "--evaluator", self._models / f"m{facts.evaluator}",
      "--data", data, "--workdir", root / "k", *self._windows, *thresholds,
      *_length(facts.evaluator_limit),
    )  # fmt: skip
    return "" if done.status else root / "k", thresholds


def _length(limit):
  return [f"--max_length={limit}"] if limit else []


def _difference(found, expected, name="result"):
  if isinstance(expected, dict):
    if found.keys() != expected.keys():
      return f"{name} has other fields"
    pairs = [(n, found[n], expected[n]) for n in expected]
    pairs = [pair for pair in pairs if pair[0] not in _OF_THE_RUN]
  elif isinstance(expected, list) and isinstance(found, list):
    if len(found) != len(expected):
      return name
    pairs = zip(map(str, range(len(found))), found, expected, strict=True)
  elif isinstance(expected, float) and isinstance(found, float):
    close = math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    return "" if close else name
  else:
    return "" if found == expected else name
  inner = (_difference(a, b, f"{name}.{n}") for n, a, b in pairs)
  return next(filter(None, inner), "")
