"""One model on several processes: what process 0 reads, all of them score.

Process 0 reads, tokenises and writes. It tells the others which model to load
and the ids of each document; so all scorers get one stream of jobs, cut the
same batches from it and run them together. What a scorer does must follow from
the stream alone: never from a clock.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import jax
import numpy as np
from absl import logging

from longctx_jax.model.loaded import LoadedModel
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import channel, failures, machine
from longctx_jax.runtime.progress import Usage
from longctx_jax.scoring.eval_step import SumJob, Summer
from longctx_jax.scoring.scorer import Job, Scorer

_STOP = "longctx/stop"
_FAILED = "error"
_LOOK_SECONDS = 1.0


class _Broken(Exception):
  """Process 0 gave a pass up while it read: the others do the same."""


class _Shared:
  """What process 0 runs, and the others with it."""

  def __init__(self, own: Any, group: Group):
    self._own = own
    self._group = group

  @property
  def model(self) -> LoadedModel:
    """What scores."""
    return self._own.model

  @property
  def usage(self) -> Usage:
    """Counts so far."""
    return self._own.usage

  def _run(self, kind: str, jobs: Iterable[Any]) -> Iterator[Any]:
    told = _Told(jobs, kind, self._group)
    whole = False
    try:
      with self._group.in_pass():
        yield from getattr(self._own, kind)(told)
      whole = True
    except jax.errors.JaxRuntimeError as error:
      # Not the model's fault alone: the others are somewhere in this pass.
      raise channel.Ended(
        f"a pass failed in process 0: {failures.explain(error) or error}", 2
      ) from error
    finally:
      # Where the jobs themselves end with an error, all stop at one place.
      # After any other the passes of the processes are no longer the same.
      if not whole and not told.broken:
        self._group.lost = True


class SharedScorer(_Shared):
  """A `Scorer` that all processes run."""

  @property
  def windows(self) -> Windows:
    """Of the short contexts."""
    return self._own.windows

  def score_long(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """See `Scorer.score_long`."""
    return self._run("score_long", jobs)

  def score(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """See `Scorer.score`."""
    return self._run("score", jobs)


class SharedSummer(_Shared):
  """A `Summer` that all processes run."""

  def sum(self, jobs: Iterable[Any]) -> Iterator[Any]:
    """See `Summer.sum`."""
    return self._run("sum", jobs)


def _written(job: Job | SumJob) -> tuple[dict[str, Any], bytes]:
  """A job as a message; its key stays in process 0."""
  ids = np.asarray(job.ids, np.int32)
  if isinstance(job, Job):
    return {"do": "job", "prefix_len": job.prefix_len}, ids.tobytes()
  head = {"do": "sum_job", "count": len(ids)}
  arrays = ids, job.expected.astype(np.float32), job.key_mask.astype(bool)
  return head, b"".join(array.tobytes() for array in arrays)


def _read(head: Mapping[str, Any], body: bytes) -> Job | SumJob:
  if head["do"] == "job":
    return Job(None, np.frombuffer(body, np.int32), head["prefix_len"])
  count = head["count"]
  ids = np.frombuffer(body, np.int32, count)
  expected = np.frombuffer(body, np.float32, count - 1, offset=4 * count)
  key_mask = np.frombuffer(body, bool, count - 1, offset=8 * count - 4)
  return SumJob(None, ids, key_mask, expected)


class _Told:
  """Jobs on their way to the scorer of process 0; each is told first."""

  def __init__(self, jobs: Iterable[Any], kind: str, group: Group):
    self._jobs = jobs
    self._kind = kind
    self._group = group
    self.broken = False

  def __iter__(self) -> Iterator[Any]:
    self._group.tell({"do": self._kind})
    try:
      for job in self._jobs:
        self._group.raise_if_stopped()
        if isinstance(job, Job | SumJob):
          self._group.tell(*_written(job))
        yield job
    except GeneratorExit:
      raise
    except channel.Ended:
      self.broken = True
      raise
    except BaseException:
      self.broken = True
      self._group.tell({"do": "break"})
      raise
    self._group.tell({"do": "done"})


class Group:
  """The processes that score together; one alone tells nobody anything.

  Attributes:
    leads: whether this is process 0, which reads and writes.
    lost: whether the passes of the processes can no longer be the same.
  """

  def __init__(self):
    self.lost = False
    self.leads = channel.index() == 0
    self._several = channel.count() > 1
    self._channel = channel.Channel("scoring")
    self._passes = 0
    self._loads = 0
    self._looked = 0.0
    self._told = False

  def tell(self, head: Mapping[str, Any], body: bytes = b"") -> None:
    """Process 0: a message to the others.

    Raises:
      channel.Ended: they can't follow any more.
    """
    if not self._several:
      return
    if self.lost:
      raise channel.Ended(
        "a pass was given up in process 0, so that the others are no longer "
        "at the same place",
        2,
      )
    self._channel.tell(head, body)

  def lead(self, own: Scorer | Summer) -> Any:
    """The same; in process 0 of several, one that the others run with it."""
    if not (self._several and self.leads):
      return own
    kind = SharedSummer if isinstance(own, Summer) else SharedScorer
    return kind(own, self)

  def load(
    self,
    path: str,
    load: Callable[[], LoadedModel],
    identify: Callable[[LoadedModel], Mapping[str, Any]],
  ) -> LoadedModel:
    """Loads a model in all processes, and compares what they found.

    Args:
      path: of the model.
      load: called in each process.
      identify: what determines its log-probs; "" is what is not known here.

    Raises:
      settings.OtherSettings: the models are not the same.
      ValueError: another process could not load it; it is named.
      channel.Ended: a process was told to end.
    """
    if not self._several:
      return load()
    if self.leads:
      self.raise_if_stopped()
      self.tell({"do": "load", "path": path})
    self._loads += 1
    question = f"model/{self._loads}"
    try:
      model = load()
    except Exception as error:
      said = failures.explain(error) or f"{type(error).__name__}: {error}"
      channel.gather(question, {_FAILED: said})
      raise
    found = channel.gather(question, dict(identify(model)))
    for other, facts in enumerate(found):
      if _FAILED in facts:
        raise ValueError(f"process {other}: {facts[_FAILED]}")
    known = [{n: v for n, v in facts.items() if v != ""} for facts in found]
    channel.require_alike([found[0] | facts for facts in known])
    return model

  def follow(self, prepare: Callable[[str], tuple[Scorer, Summer]]) -> None:
    """Any process but 0: does what process 0 does, to the end.

    Args:
      prepare: from the path of a model to what runs it, by `load`.

    Raises:
      channel.Ended: another process ended.
    """
    runs: dict[str, Callable] = {}
    while True:
      head, _ = self._channel.hear()
      if head["do"] == "end":
        return
      if head["do"] == "load":
        runs = {}  # Two models need not fit.
        try:
          scorer, summer = prepare(head["path"])
          runs = {
            "score": scorer.score,
            "score_long": scorer.score_long,
            "sum": summer.sum,
          }
        except Exception as error:  # noqa: BLE001  process 0 decides
          logging.debug("%s could not be loaded: %s", head["path"], error)
      else:
        self._follow_pass(runs, head["do"])

  def _follow_pass(self, runs: Mapping[str, Callable], kind: str) -> None:
    with contextlib.suppress(_Broken), self.in_pass():
      for _ in runs[kind](self._heard(runs)):
        pass

  def _heard(self, runs: Mapping[str, Callable]) -> Iterator[Job | SumJob]:
    while True:
      head, body = self._channel.hear()
      match head["do"]:
        case "done":
          return
        case "break":
          raise _Broken
        case "stop":
          raise channel.Ended(head["said"], head["status"])
        case "job" | "sum_job":
          yield _read(head, body)
        case kind:
          # A pass of its own before the first document: the check of the BOS.
          self._follow_pass(runs, kind)

  @contextlib.contextmanager
  def in_pass(self) -> Iterator[None]:
    """A signal does not end a process inside: the others wait for it."""
    self._passes += 1
    try:
      yield
    finally:
      self._passes -= 1

  def raise_if_stopped(self) -> None:
    """Process 0, between two documents: ends all if one was told to end.

    Raises:
      channel.Ended: one was.
    """
    now = time.monotonic()
    if not self._several or now - self._looked < _LOOK_SECONDS:
      return
    self._looked = now
    number = channel.peek(_STOP)
    if number:
      who, number = map(int, number.split())
      said = f"process {who} of {channel.count()} was told to end"
      status = 128 + number
      self.tell({"do": "stop", "said": said, "status": status})
      raise channel.Ended(said, status)

  @contextlib.contextmanager
  def stoppable(self) -> Iterator[None]:
    """SIGTERM and Ctrl-C of any process end all after the same document.

    A second Ctrl-C ends at once.
    """
    before = {}
    if self._several:
      # JAX listens for SIGTERM in a pass that no step of ours would end.
      for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, self._hear_signal)
    try:
      yield
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def _hear_signal(self, number: int, frame: FrameType | None) -> None:
    kind = {
      signal.SIGTERM: machine.Terminated,
      signal.SIGINT: KeyboardInterrupt,
    }
    channel.raise_if_ended()
    again, self._told = self._told, True
    channel.put_once(_STOP, f"{channel.index()} {number}")
    if not self._passes or (again and number == signal.SIGINT):
      raise kind[number]


@functools.cache
def group() -> Group:
  """The processes of this program."""
  return Group()
