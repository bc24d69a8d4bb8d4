"""A user's folder: texts, models and what commands made of them."""

import pathlib
import re
import shutil

import numpy as np
from support.tiny_runs import D, K

from fuzz import results, rules, stores, truth
from fuzz.faults import Wrong, words
from fuzz.terminal import INTERRUPTED, KILLED
from fuzz.texts import THRESHOLDS, corpus_lines, slice_text, text_of
from fuzz.truth import Facts

WINDOWS = (f"--config.longppl.short_len={K}", f"--config.longppl.stride={D}")
_LONGEST = 10  # passes that a document of the fuzzer takes at most


class World:
  """What a user has, what they do to it, and what must be true afterwards.

  Attributes:
    root: the folder.
    corpora: name -> [(id, name of a text)].
    weights: name of a model -> seed.
    slices: spans in slices/, by number.
    ignored: kinds of faults that are passed over.
    fresh: results of an empty folder to compare with, or None.
  """

  def __init__(self, root, terminal, models):
    self.root = pathlib.Path(root)
    self.corpora, self.weights, self.slices = {}, {}, []
    self.ignored, self.fresh = set(), None
    self._terminal, self._models = terminal, models
    # By workdir and model: what its files, and its ledger, may be made of.
    self._expected, self._ledgers = {}, {}
    # Workdirs whose store may be refused: bits were flipped.
    self._damaged = set()
    # Workdirs of evaluations where a process was killed since.
    self._killed = set()
    # Of a workdir and model: the last evaluation did not come to its end.
    self._unsettled = set()
    # What a workdir held that no run may lose.
    self._held = {}
    # Workdirs that commands write to now, and that those that ended wrote to.
    self._open, self._closed = [], []
    self._nested = []
    for seed in range(3):
      self.set_weights(f"m{seed}", seed)

  def run(self, step):
    """Runs a step, and another one during it where it says so."""
    options = dict(step.options)
    inner = options.pop("during", None)
    if inner is not None:
      options["then"] = lambda: self._run_inside(inner)
    getattr(self, step.verb)(**options)
    if self._nested:
      raise self._nested.pop()

  def _run_inside(self, step):
    # The command around it would take the exception for one of its own.
    try:
      self.run(step)
    except Wrong as wrong:
      self._nested.append(wrong)

  def _wrong(self, kind, detail=""):
    if kind not in self.ignored:
      raise Wrong(kind, detail)

  # What the user does to files.

  def write_corpus(self, name, documents):
    """Writes texts as JSON lines; a text that is not known can't be read."""
    self.corpora[name] = list(documents)
    lines = corpus_lines(self._documents(name))
    (self.root / f"{name}.jsonl").write_text(lines)

  def set_weights(self, name, seed):
    """Puts the weights of a seed into a model's folder."""
    self.weights[name] = seed
    shutil.copytree(
      self._models / f"m{seed}", self.root / name, dirs_exist_ok=True
    )

  def write_slices(self, corpus, step=1):
    """Writes each step-th key token of a corpus as slice files."""
    folder = self.root / "slices"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    self.slices = []
    for i, (_, text) in enumerate(self.corpora[corpus]):
      key = truth.keys(text_of(text), 0, *THRESHOLDS[0], None).key
      places = [] if key is None else np.flatnonzero(key)[::step]
      # Target t is character t + 1.
      self.slices.append(tuple((int(t) + 1, int(t) + 2) for t in places))
      text = slice_text(self.slices[-1])
      (folder / f"slice_{i}.txt").write_text(text)

  def damage(self, workdir, place):
    """Flips a bit of a part of a store."""
    parts = sorted((self.root / workdir / "key_tokens").glob("*.parquet"))
    if parts:
      part = parts[place % len(parts)]
      data = bytearray(part.read_bytes())
      data[place % len(data)] ^= 1 << place % 8
      part.write_bytes(data)
      self._damaged.add(workdir)

  def repair(self, workdir):
    """Removes the part that a reader of the store complains of."""
    try:
      list(stores.open_store(self.root / workdir)[0])
    except Exception as error:  # noqa: BLE001  whatever a damaged file does
      if named := re.search(r"\S+\.parquet", str(error)):
        pathlib.Path(named[0]).unlink(missing_ok=True)

  # Commands, and what must be true after each.

  def score(
    self, workdir, corpus, evaluator="m0", thresholds=THRESHOLDS[0], rows=None,
    shard=None, detail="tokens", limit=None, overwrite=False, prune=False,
    flush=False, **event,
  ):  # fmt: skip
    """scripts/score.py; `flush` writes each document at once."""
    documents = self._documents(corpus)
    if rows:
      documents = documents[slice(*rows)]
    if shard:
      documents = documents[shard[0] :: shard[1]]
    excuse = rules.of_scoring(
      stores.read(self.root / workdir), documents, seed=self.weights[evaluator],
      thresholds=thresholds, detail=detail, limit=limit, prune=prune,
      overwrite=overwrite, is_damaged=workdir in self._damaged,
      is_part=bool(rows or shard),
    )  # fmt: skip
    entered = self._enter(workdir, shard)
    self._hold(workdir, overwrite)
    done = self._terminal.run(
      "scripts/score.py", "--evaluator", self.root / evaluator,
      "--data", self.root / f"{corpus}.jsonl", "--workdir", self.root / workdir,
      *WINDOWS, *_thresholds(thresholds), "--detail", detail,
      *([f"--row_range={rows[0]}:{rows[1]}"] if rows else []),
      *([f"--shard={shard[0]}/{shard[1]}"] if shard else []),
      *([f"--max_length={limit}"] if limit else []),
      *(["--overwrite"] if overwrite else []),
      *(["--prune"] if prune else []),
      *(["--config.scoring.flush_seconds=0"] if flush else []),
      **event,
    )  # fmt: skip
    met = self._leave(workdir, shard, entered)
    if overwrite and met:
      self._held[workdir] = {}  # Which of the two came first is not known.
    self._after_scoring(workdir, documents, done, prune)
    self._check_end(done, "score", excuse or met)
    return done

  def merge(self, workdir, sources, **event):
    """scripts/data.py merge."""
    held = [stores.read(self.root / source) for source in sources]
    excuse = rules.of_merging(
      held,
      self._damaged & {workdir, *sources},
      stores.read(self.root / workdir),
    )
    entered = self._enter(workdir)
    done = self._terminal.run(
      "scripts/data.py", "merge", *(self.root / source for source in sources),
      "--output", self.root / workdir, **event,
    )  # fmt: skip
    excuse = excuse or self._leave(workdir, None, entered)
    found = self.check_store(workdir)
    self._check_end(done, "merge", excuse)
    if done.status == 0 and found is not None:
      missing = [d for one in held for d in one.hashes if d not in found]
      if missing:
        self._wrong("merge: status 0, and documents are missing", missing)
      stores.check_files(self.root / workdir, found, self._wrong)
    return done

  def evaluate(
    self, workdir, corpus, models, keys=None, evaluator="m0", thresholds=None,
    limit=None, per_token=False, overwrite=False, intersection=False, **event,
  ):  # fmt: skip
    """scripts/eval.py; `keys` is a workdir, "slices", or None: scores first."""
    documents = self._documents(corpus)
    source = self.root / (keys or workdir)

    def rules_now():
      return rules.of_evaluation(
        stores.read(source), documents, keys, seed=self.weights[evaluator],
        thresholds=thresholds, limit=limit, overwrite=overwrite,
        is_damaged=(keys or workdir) in self._damaged, slices=self.slices,
        intersection=intersection,
      )  # fmt: skip

    excuse, key_facts = rules_now()
    weights = {name: self.weights[name] for name in models}

    def made_of(key_facts):
      return {
        name: (Facts(model=seed, limit=limit, **key_facts), per_token)
        for name, seed in (weights.items() if key_facts else ())
      }

    made = made_of(key_facts)
    before = dict(self._expected), dict(self._ledgers)
    for name, facts in made.items():
      place = workdir, name
      if self._ledgers.get(place, {facts}) != {facts} and not overwrite:
        excuse = excuse or "a ledger of other facts"
      if not facts[0].result["n_tokens"]:
        excuse = excuse or "nothing to evaluate"
      self._expected[place] = [*self._expected.get(place, []), facts]
      self._ledgers[place] = self._ledgers.get(place, set()) | {facts}
    entered = self._enter(workdir)
    words_of_keys = ["--keys", source]
    if keys is None:
      words_of_keys = ["--evaluator", self.root / evaluator, *WINDOWS]
      self._hold(workdir, overwrite)
    elif keys == "slices":
      words_of_keys = ["--keys", f"slices:{source}"]
    done = self._terminal.run(
      "scripts/eval.py", *words_of_keys,
      *(word for name in models for word in ("--model", self.root / name)),
      "--data", self.root / f"{corpus}.jsonl", "--workdir", self.root / workdir,
      *(_thresholds(thresholds) if thresholds else []),
      *([f"--max_length={limit}"] if limit else []),
      *(["--per_token"] if per_token else []),
      *(["--overwrite"] if overwrite else []),
      *(["--intersection"] if intersection else []),
      **event,
    )  # fmt: skip
    met = self._leave(workdir, None, entered)
    excuse = excuse or met
    if keys is None:
      if overwrite and met:
        self._held[workdir] = {}
      self._after_scoring(workdir, documents, done)
    elif "then" in event and rules_now()[1] != key_facts:
      # Another command made the store anew: both states are true.
      excuse = excuse or "key tokens that change"
      for name, facts in made_of(rules_now()[1]).items():
        place = workdir, name
        self._expected[place] = [*self._expected.get(place, []), facts]
        self._ledgers[place] = self._ledgers.get(place, set()) | {facts}
    if done.status == KILLED:
      self._killed.add(workdir)
    places = {(workdir, name) for name in models}
    if done.status or met:
      self._unsettled |= places
    else:
      self._unsettled -= places
    self._settle(workdir, made, done, before)
    found = self._check_results(workdir)
    self._check_end(done, "eval", excuse)
    if done.status == 0:
      if not made:
        self._wrong("eval: status 0 without key tokens of these documents")
      for name in made:
        if not (self.root / workdir / "results" / f"{name}.json").exists():
          self._wrong("eval: status 0, and a model has no result", name)
      held = stores.read(source)
      if self.fresh and (keys == "slices" or held.is_full(key_facts)):
        self._compare_with_fresh(workdir, found, made)
      named = {line.split()[0] for line in done.out.splitlines() if line}
      beside = {name: facts for name, facts in found.items() if name in named}
      results.check_alike(beside, "eval's table", self._wrong)
    return done

  def _compare_with_fresh(self, workdir, found, made):
    for name in made.keys() & found.keys():
      path = self.root / workdir / "results" / f"{name}.json"
      if field := self.fresh.difference(path, found[name]):
        self._wrong(f"not what a fresh run says: {field}", name)

  def compare(self, workdir, **event):
    """scripts/report.py compare."""
    found = self._check_results(workdir)
    done = self._terminal.run(
      "scripts/report.py", "compare", self.root / workdir, "--format", "csv",
      **event,
    )  # fmt: skip
    alike = {facts.alike() for facts in found.values()}
    excuse = "unlike" if len(alike) != 1 else ""
    excuse = excuse or (workdir in self._killed and "files of two runs")
    self._check_end(done, "compare", excuse)
    if done.status == 0:
      results.check_alike(found, "compare", self._wrong)
      results.check_table(done.out, found, self._wrong)
    return done

  def html(self, workdir, corpus, keys, **event):
    """scripts/report.py html."""
    found = self._check_results(workdir)
    done = self._terminal.run(
      "scripts/report.py", "html", self.root / workdir, "--keys",
      self.root / keys, "--data", self.root / f"{corpus}.jsonl", **event,
    )  # fmt: skip
    self._check_end(done, "html", "texts and keys of others")
    if done.status == 0:
      page = (self.root / workdir / "report.html").read_text()
      results.check_alike(found, "html", self._wrong)
      results.check_page(page, found, self._wrong)
    return done

  def sweep(self, workdir, keys, **event):
    """scripts/report.py sweep, at all thresholds that a command may name."""
    found = self._check_results(workdir)
    source = self.root / keys
    held = stores.read(source)
    values = {
      name: sorted({pair[i] for pair in THRESHOLDS})
      for i, name in enumerate(("alpha", "beta"))
    }
    excuse = rules.of_sweep(
      held, found.values(), is_damaged=keys in self._damaged
    )
    if any((workdir, name) in self._unsettled for name in found):
      excuse = excuse or "an evaluation that did not come to its end"
    done = self._terminal.run(
      "scripts/report.py", "sweep", self.root / workdir, "--keys", source,
      "--format", "csv",
      *(f"--{name}={','.join(map(str, values[name]))}" for name in values),
      **event,
    )  # fmt: skip
    excuse = excuse or (workdir in self._killed and "files of two runs")
    self._check_end(done, "sweep", excuse)
    if done.status == 0:
      results.check_alike(found, "sweep", self._wrong)
      results.check_sweep(done.out, found, self._wrong)
    return done

  def check_store(self, workdir):
    """Compares the rows with those of their texts; id -> hash, or None."""
    return stores.check(
      self.root / workdir,
      is_damaged=workdir in self._damaged,
      wrong=self._wrong,
    )

  def _documents(self, corpus):
    return tuple((d, text_of(text)) for d, text in self.corpora[corpus])

  def _enter(self, workdir, shard=None):
    """Begins to write to a workdir; hand the result to `_leave`."""
    is_second = any(_meet(one, (workdir, shard)) for one in self._open)
    self._open.append((workdir, shard))
    return len(self._closed), is_second

  def _leave(self, workdir, shard, entered):
    """Ends it; why the command may have been refused, or ""."""
    n_closed, is_second = entered
    self._open.pop()
    met = any(_meet(one, (workdir, shard)) for one in self._closed[n_closed:])
    self._closed.append((workdir, shard))
    return "two at once" if is_second or met else ""

  def _hold(self, workdir, overwrite):
    held = None if overwrite else stores.read(self.root / workdir)
    self._held[workdir] = held.hashes if held else {}

  def _after_scoring(self, workdir, documents, done, prune=False):
    if done.status == 0:
      self._damaged.discard(workdir)
    found = self.check_store(workdir)
    if found is None:
      return
    now = {doc_id: stores.sha256(text) for doc_id, text in documents}
    lost = [
      doc_id
      for doc_id, sha256 in self._held[workdir].items()
      if doc_id not in found
      and (not prune if doc_id not in now else now[doc_id] == sha256)
    ]
    if lost:
      self._wrong("score: a stored document is lost", lost)
    self._held[workdir] = found
    if len(now) < len(documents) and (done.loads or not done.status):
      self._wrong("score: an id that comes twice is not seen before the model")
    if done.status == INTERRUPTED and done.passes > _LONGEST and not found:
      self._wrong("score: an interrupted run keeps nothing")
    if done.status == 0:
      missing = [d for d in now if found.get(d) != now[d]]
      if missing:
        self._wrong("score: status 0, and documents are missing", missing)
      if prune and found.keys() - now.keys():
        self._wrong("score: status 0, and documents are not pruned")
      if not self._open:
        stores.check_files(self.root / workdir, found, self._wrong)

  def _settle(self, workdir, made, done, before):
    """What results and ledgers may hold after a command."""
    expected, ledgers = before
    for name, facts in made.items():
      place = workdir, name
      if done.status == 0:
        # What was known before is gone; what came between may have stayed.
        known = [f for f in expected.get(place, []) if f != facts]
        now = [f for f in self._expected[place] if f not in known]
        self._expected[place], self._ledgers[place] = now, set(now)
      elif done.status == 2 and place in ledgers:
        # A refusal changes nothing, but of several models some may be done.
        if facts not in self._checked_facts(workdir, name):
          self._ledgers[place] = ledgers[place]

  def _checked_facts(self, workdir, name):
    found = results.check(
      self.root / workdir, self._by_model(workdir), lambda *fault: None
    )
    return [f for f in self._expected[workdir, name] if f[0] == found.get(name)]

  def _by_model(self, workdir):
    return {
      name: facts
      for (place, name), facts in self._expected.items()
      if place == workdir
    }

  def _check_results(self, workdir):
    return results.check(
      self.root / workdir,
      self._by_model(workdir),
      self._wrong,
      is_killed=workdir in self._killed,
    )

  def _check_end(self, done, what, excuse):
    """Status 0, killed, interrupted, or refused in a line where that is due."""
    if done.status in (0, KILLED, INTERRUPTED):
      return
    last = (done.err.strip().splitlines() or [""])[-1]
    if done.status != 2 or not last.startswith("error: "):
      self._wrong(f"{what}: {words(last)}", done.err[-600:])
    elif not excuse:
      self._wrong(f"{what} is refused: {words(last)}", last)


def _meet(one, other):
  """Whether two (workdir, shard) may not be at work at once."""
  (place, shard), (other_place, other_shard) = one, other
  if place != other_place:
    return False
  if shard is None or other_shard is None:
    return True
  return shard[1] != other_shard[1] or shard[0] == other_shard[0]


def _thresholds(thresholds):
  return (
    f"--config.longppl.alpha={thresholds[0]}",
    f"--config.longppl.beta={thresholds[1]}",
  )
