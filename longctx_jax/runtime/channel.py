"""What the processes of one program tell each other, beside their devices.

It goes through the store of keys and values that JAX keeps in process 0, so
that no message waits for what a device is doing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

# JAX gives its store no public name; Orbax takes it from here too.
from jax._src import distributed

from longctx_jax.runtime import settings

_ENDED = "longctx/ended"
# A wait is cut, so that Ctrl-C and the end of another process are heard.
_WAIT_MS = 1000
# Messages that are kept until all have read them.
_KEPT = 256
# Of the fields in which two processes differ, those that a message names.
_NAMED = 12


class Ended(KeyboardInterrupt):
  """Another process ended, or was told to: as Ctrl-C, from over there.

  Attributes:
    status: what this process ends with.
  """

  def __init__(self, sentence: str, status: int):
    super().__init__(sentence)
    self.status = status


def is_open() -> bool:
  """Whether this process was joined with others; touches no device."""
  return distributed.global_state.client is not None


def index() -> int:
  """Which of the processes this is; 0 is the one that reads and writes."""
  return distributed.global_state.process_id if is_open() else 0


def count() -> int:
  """How many processes there are."""
  return distributed.global_state.num_processes if is_open() else 1


def put(key: str, value: str) -> None:
  """Writes a value over what is there."""
  _client().key_value_set(key, value, allow_overwrite=True)


def put_once(key: str, value: str) -> bool:
  """Writes a value where there is none; whether this was the first."""
  try:
    _client().key_value_set(key, value)
  except jax.errors.JaxRuntimeError as error:
    if "ALREADY_EXISTS" not in str(error):
      raise
    return False
  return True


def peek(key: str) -> str | None:
  """A value, or None where there is none yet."""
  try:
    return _client().key_value_try_get(key)
  except jax.errors.JaxRuntimeError as error:
    if "NOT_FOUND" not in str(error):
      raise
    return None


def wait(key: str) -> bytes:
  """A value, as soon as it is there.

  Raises:
    Ended: another process ended before.
  """
  while True:
    try:
      return _client().blocking_key_value_get_bytes(key, _WAIT_MS)
    except jax.errors.JaxRuntimeError as error:
      if "DEADLINE_EXCEEDED" not in str(error):
        raise
    raise_if_ended()


def end(end: Ended) -> None:
  """Tells all that one process ends; the first to do so is heard."""
  put_once(_ENDED, json.dumps([str(end), end.status]))


def ended() -> Ended | None:
  """The end of another process, once it was told."""
  told = peek(_ENDED)
  return Ended(*json.loads(told)) if told else None


def raise_if_ended() -> None:
  """Raises Ended once another process told that it ends."""
  if found := ended():
    raise found


class Channel:
  """Messages of process 0 to all others, in one order.

  One thread at a time tells, or hears. What was told stays in process 0 until
  all have read it, and process 0 is at most 512 messages ahead.
  """

  def __init__(self, name: str):
    """A channel; all processes open those of one name alike."""
    self._name = f"longctx/{name}"
    self._place = 0

  def tell(self, head: Mapping[str, Any], body: bytes = b"") -> None:
    """Process 0: a message, JSON and bytes.

    Raises:
      Ended: another process ended before it read.
    """
    block, first = divmod(self._place, _KEPT)
    if not first and block > 1:
      for other in range(1, count()):
        wait(f"{self._name}/read/{block - 2}/{other}")
      for part in ("told", "read"):
        _client().key_value_delete(f"{self._name}/{part}/{block - 2}/")
    text = json.dumps(head).encode() + b"\n"
    _client().key_value_set_bytes(self._key(), text + body)
    self._place += 1

  def hear(self) -> tuple[dict[str, Any], bytes]:
    """Another process: the next message.

    Raises:
      Ended: another process ended before.
    """
    head, _, body = wait(self._key()).partition(b"\n")
    block, last = divmod(self._place, _KEPT)
    if last == _KEPT - 1:
      put(f"{self._name}/read/{block}/{index()}", "")
    self._place += 1
    return json.loads(head), body

  def _key(self) -> str:
    return f"{self._name}/told/{self._place // _KEPT}/{self._place}"


def gather(name: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
  """What each process states, in their order.

  Args:
    name: of the question; each is asked once.
    facts: of this process, as JSON.

  Raises:
    Ended: another process ended before it answered.
  """
  put(f"longctx/{name}/{index()}", json.dumps(facts))
  return [
    json.loads(wait(f"longctx/{name}/{other}")) for other in range(count())
  ]


def require_alike(stated: list[Mapping[str, Any]]) -> None:
  """Raises OtherSettings, in every process, where one differs from the first.

  Args:
    stated: see `gather`; flat.
  """
  for other, facts in enumerate(stated):
    found = settings.differences(stated[0], facts)
    if found:
      named = [
        f"{name} is {first} in process 0 and {here} in process {other}"
        for name, first, here in found[:_NAMED]
      ]
      more = len(found) - _NAMED
      raise settings.OtherSettings(
        f"the processes differ: {'; '.join(named)}"
        f"{f'; and {more} more' if more > 0 else ''}. Give all of them the "
        "same command, models and versions"
      )


def retry(
  done: Callable[[], bool], *, seconds: float, pause: float = 0.2
) -> bool:
  """Asks until it is so; whether it came to be in time."""
  last = time.monotonic() + seconds
  while not done():
    if time.monotonic() > last:
      return False
    time.sleep(pause)
  return True


def _client() -> Any:
  return distributed.global_state.client
