"""Random sequences of commands, and the shortest that shows the same fault."""

import contextlib
import dataclasses
import random
import shutil
import tempfile

import pytest

from fuzz import truth
from fuzz.disk import Disk
from fuzz.faults import Wrong
from fuzz.fresh import Fresh
from fuzz.terminal import Terminal
from fuzz.texts import GOOD, LIMIT, TEXTS, THRESHOLDS, UNREADABLE
from fuzz.world import WINDOWS, World

_ODD = (*(name for name in TEXTS if name not in GOOD), UNREADABLE)
START = {
  "A": [("d0", "t0"), ("d1", "t1"), ("d2", "t2")],
  "B": [("d0", "t3"), ("d1", "t4")],
}
_MODELS = ("m1", "m2", "m0")
_TRIES = 250  # runs of a shrinker


@dataclasses.dataclass(frozen=True)
class Step:
  """A method of `World` and its arguments."""

  verb: str
  options: dict

  def __str__(self):
    words = (f"{name}={_text(value)}" for name, value in self.options.items())
    return f"{self.verb}({', '.join(words)})"


def _text(value):
  return str(value) if isinstance(value, Step) else repr(value)


def make(seed, *, length=10):
  """A sequence; the same for the same seed."""
  return _Maker(random.Random(seed)).make(length)


def make_killed(seed):
  """A sequence of processes that are killed, and nothing at once."""
  return [_without(step, "during", "interrupt_at") for step in make(seed)]


class _Maker:
  def __init__(self, rng):
    self._rng = rng
    self._corpora = {name: list(docs) for name, docs in START.items()}
    self._planned = []

  def make(self, length):
    steps = []
    while len(steps) < length:
      if self._planned and self._chance(0.8):
        step = self._planned.pop(0)
        event = step.verb in _COMMANDS
        steps.append(self._with_event(step) if event else step)
        continue
      if self._chance(0.15):
        plan = self._rng.choices((self._several_hands, self._edited), (2, 1))
        self._planned = plan[0]()
      steps.append(self._next(steps))
    return steps

  def _several_hands(self):
    """A corpus that is scored in parts, which an evaluation takes together."""
    if self._chance(0.5):
      score = Step("score", {"workdir": "k0", "corpus": "A", "flush": True})
      steps = [_with(score, shard=(i, 2)) for i in (0, 1)]
      if self._chance(0.5):
        steps = [_with(steps[0], at=self._place(), during=steps[1])]
      return [*steps, self._evaluate("A", "k0")]
    parts = {"k2": (0, 1), "k3": (1, 9)}
    steps = [
      Step("score", {"workdir": workdir, "corpus": "A", "rows": rows})
      for workdir, rows in parts.items()
    ]
    merge = Step("merge", {"workdir": "k4", "sources": tuple(parts)})
    return [*steps, merge, self._evaluate("A", "k4")]

  def _edited(self):
    """The same command before and after a change of what it reads."""
    options = {"workdir": "e0", "corpus": "A", "models": ("m1",)}
    if self._chance(0.5):
      evaluate = Step("evaluate", options | {"keys": "slices"})
      slices = [
        Step("write_slices", {"corpus": "A", "step": i}) for i in (1, 2)
      ]
      return [slices[0], evaluate, slices[1], evaluate]
    score = Step("score", {"workdir": "k0", "corpus": "A", "prune": True})
    evaluate = Step("evaluate", options | {"keys": "k0"})
    return [score, evaluate, self._write_corpus(), score, evaluate]

  def _place(self):
    """A write or pass of a command, early ones more often."""
    return min(int(self._rng.expovariate(1 / 12)) + 1, 60)

  def _next(self, steps):
    rng, commands = self._rng, [s for s in steps if s.verb in _COMMANDS]
    if steps and steps[-1].verb == "write_corpus" and self._chance(0.4):
      corpus = steps[-1].options["name"]
      score = self._score(corpus)
      return _with(score, overwrite=True) if self._chance(0.3) else score
    if steps and steps[-1].verb == "score" and self._chance(0.3):
      return self._with_event(self._evaluate(steps[-1].options["corpus"]))
    hit = steps and {"at", "interrupt_at"} & steps[-1].options.keys()
    if commands and rng.random() < (0.7 if hit else 0.25):
      again = commands[-1] if hit else rng.choice(commands)
      return _without(again, "at", "interrupt_at", "during")
    if steps and steps[-1].verb == "damage" and rng.random() < 0.7:
      return Step("repair", {"workdir": steps[-1].options["workdir"]})
    verbs, weights = zip(*_VERBS.items(), strict=True)
    verb = rng.choices(verbs, weights)[0]
    step = getattr(self, f"_{verb}")()
    return self._with_event(step) if verb in _COMMANDS else step

  def _chance(self, share):
    return self._rng.random() < share

  def _with_event(self, step):
    """Kills it, interrupts it, or lets another command run during it."""
    if "at" in step.options or not self._chance(0.35):
      return step
    place = self._place()
    kind = self._rng.choices(("kill", "interrupt", "during"), (6, 1, 2))[0]
    if kind == "kill":
      return _with(step, at=place)
    if kind == "interrupt":
      return _with(step, interrupt_at=place)
    if step.verb == "score" and self._chance(0.5):
      # Two that share the rows of one corpus among them.
      inner = _with(step, rows=(1, 9))
      return _with(step, rows=(0, 1), at=place, during=inner)
    verb = self._rng.choice(("score", "evaluate"))
    inner = step if self._chance(0.4) else getattr(self, f"_{verb}")()
    return _with(step, at=place, during=inner)

  def _write_corpus(self):
    rng, name = self._rng, self._rng.choice("AAB")
    documents = self._corpora[name]
    place = rng.randrange(len(documents) + 1)
    free = [f"d{i}" for i in range(9) if f"d{i}" not in dict(documents)]
    kind = rng.choices(
      ("add", "change", "remove", "turn", "double"), (5, 4, 3, 1, 1)
    )[0]
    if kind == "add":
      documents.insert(rng.choice((0, place)), (free[0], self._text()))
    elif kind == "change" and documents:
      place %= len(documents)
      documents[place] = (documents[place][0], self._text())
    elif kind == "remove" and len(documents) > 1:
      del documents[place % len(documents)]
    elif kind == "double" and documents:
      return Step(
        "write_corpus",
        {"name": name, "documents": [*documents, documents[0]]},
      )
    else:
      documents.reverse()
    return Step("write_corpus", {"name": name, "documents": list(documents)})

  def _text(self):
    return self._rng.choice(_ODD if self._chance(0.25) else GOOD)

  def _set_weights(self):
    return Step(
      "set_weights",
      {"name": self._rng.choice(("m0", "m1", "m1")),
       "seed": self._rng.choice((0, 1, 3))},
    )  # fmt: skip

  def _write_slices(self):
    return Step(
      "write_slices",
      {"corpus": self._rng.choice("AAB"), "step": self._rng.choice((1, 2))},
    )

  def _damage(self):
    return Step(
      "damage",
      {"workdir": self._rng.choice(("k0", "k0", "k1")),
       "place": self._rng.randrange(100_000)},
    )  # fmt: skip

  def _store_of(self, corpus):
    """Each corpus has a store of its own, most of the time."""
    return {"A": "k0", "B": "k1"}[corpus if self._chance(0.85) else "A"]

  def _score(self, corpus=None):
    corpus = corpus or self._rng.choice("AAB")
    options = {"workdir": self._store_of(corpus), "corpus": corpus}
    if self._chance(0.05):
      options["evaluator"] = "m1"
    if self._chance(0.15):
      options["thresholds"] = self._rng.choice(THRESHOLDS)
    if self._chance(0.15):
      options["rows"] = self._rng.choice(((0, 1), (1, 9), (0, 2), (2, 9)))
    if self._chance(0.07):
      options["detail"] = self._rng.choice(("keys", "scores"))
    if self._chance(0.07):
      options["limit"] = LIMIT
    if self._chance(0.15):
      options["overwrite"] = True
    elif "rows" not in options and self._chance(0.1):
      options["shard"] = self._rng.choice(((0, 2), (1, 2), (1, 3)))
    elif "rows" not in options and self._chance(0.1):
      options["prune"] = True
    if self._chance(0.4):
      options["flush"] = True
    return Step("score", options)

  def _evaluate(self, corpus=None, keys=None):
    rng = self._rng
    corpus = corpus or rng.choice("AAB")
    options = {
      "workdir": rng.choices(("e0", "e1"), (4, 1))[0],
      "corpus": corpus,
      "models": tuple(rng.choices(_MODELS, (4, 1, 1))),
      "keys": rng.choices((self._store_of(corpus), "slices", None), (7, 1, 2))[
        0
      ],
    }
    if keys:
      options["keys"] = keys
    if self._chance(0.3):
      options["models"] = tuple(rng.sample(_MODELS, 2))
    if options["keys"] is None or self._chance(0.5):
      options["thresholds"] = THRESHOLDS[0]
    if options["keys"] == "slices":
      options.pop("thresholds", None)
    elif self._chance(0.1):
      options["thresholds"] = rng.choice(THRESHOLDS)
    if self._chance(0.07):
      options["limit"] = LIMIT
    if self._chance(0.2):
      options["per_token"] = True
    if self._chance(0.1):
      options["intersection"] = True
    if self._chance(0.15):
      options["overwrite"] = True
    return Step("evaluate", options)

  def _compare(self):
    return Step("compare", {"workdir": self._rng.choice(("e0", "e0", "e1"))})

  def _html(self):
    return Step(
      "html",
      {"workdir": self._rng.choice(("e0", "e0", "e1")),
       "corpus": self._rng.choice("AAB"),
       "keys": self._rng.choice(("k0", "k1"))},
    )  # fmt: skip

  def _sweep(self):
    return Step(
      "sweep",
      {"workdir": self._rng.choice(("e0", "e0", "e1")),
       "keys": self._rng.choice(("k0", "k0", "k1"))},
    )  # fmt: skip


_VERBS = {
  "write_corpus": 5, "set_weights": 1, "write_slices": 1, "damage": 0.5,
  "score": 6, "evaluate": 7, "compare": 1, "html": 1, "sweep": 1.5,
}  # fmt: skip
_COMMANDS = ("score", "merge", "evaluate", "compare", "html", "sweep")


def _with(step, **options):
  return Step(step.verb, step.options | options)


def _without(step, *names):
  kept = {n: v for n, v in step.options.items() if n not in names}
  return Step(step.verb, kept)


class Player:
  """Plays sequences, each in a folder of its own.

  Attributes:
    ignored: kinds of faults that are passed over.
  """

  def __init__(self, models, *, ignored=(), open_terminal=None):
    """Takes a folder with m0 to m3.

    Args:
      models: the folder.
      ignored: kinds of faults that are passed over.
      open_terminal: root -> what runs commands; default: this process.
    """
    self.ignored = set(ignored)
    self._models, self._open_terminal = models, open_terminal
    self._kept, self._fresh = {}, {}

  @contextlib.contextmanager
  def world(self):
    """A new world, with two corpora and three models."""
    root = tempfile.mkdtemp()
    try:
      with pytest.MonkeyPatch.context() as monkeypatch:
        if self._open_terminal:
          terminal = self._open_terminal(root)
        else:
          seeds = truth.checksums()
          terminal = Terminal(Disk(root), monkeypatch, self._kept, seeds)
        world = World(root, terminal, self._models)
        world.ignored = self.ignored
        if self._open_terminal is None:
          world.fresh = Fresh(terminal, self._models, WINDOWS, self._fresh)
        for name, documents in START.items():
          world.write_corpus(name, documents)
        world.write_slices("A")
        yield world
    finally:
      shutil.rmtree(root)

  def play(self, steps):
    """The fault that a sequence shows, or None."""
    with self.world() as world:
      for step in steps:
        try:
          world.run(step)
        except Wrong as wrong:
          return wrong
    return None

  def shrink(self, steps, kind):
    """The shortest sequence found that shows a fault of this kind."""
    tries, smaller = _TRIES, True
    while smaller:
      smaller = None
      for candidate in _smaller(steps):
        tries -= 1
        if tries < 0:
          return steps
        fault = self.play(candidate)
        if fault and fault.kind == kind:
          steps = smaller = candidate
          break
    return steps


def _smaller(steps):
  """Sequences with one step less, then with less to one step."""
  for i in reversed(range(len(steps))):
    yield steps[:i] + steps[i + 1 :]
  for i, step in enumerate(steps):
    for simpler in _simpler(step):
      yield [*steps[:i], simpler, *steps[i + 1 :]]


def _simpler(step):
  """The step with less to it."""
  for name, value in step.options.items():
    if name in _OPTIONAL:
      yield _without(step, name, *(["at"] if name == "during" else []))
    if name == "models" and len(value) > 1:
      yield from (_with(step, models=(one,)) for one in value)
    if name == "documents":
      for i in range(len(value)):
        if len(value) > 1:
          yield _with(step, documents=value[:i] + value[i + 1 :])
    if name == "at" and value > 1:
      yield from (_with(step, at=at) for at in (value // 2, value - 1))
    if name == "during":
      yield from (_with(step, during=inner) for inner in _simpler(value))


_OPTIONAL = (
  "evaluator", "thresholds", "rows", "detail", "limit", "overwrite", "flush",
  "per_token", "at", "interrupt_at", "during", "shard", "prune",
  "intersection",
)  # fmt: skip
