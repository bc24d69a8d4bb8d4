"""Several processes as one program, on the hosts of a pod or on one machine."""

from __future__ import annotations

import re
import signal
import threading
from types import FrameType

import jax
from jax.experimental import multihost_utils

_ADDRESS = re.compile(r"(?P<host>[^,]+:\d+),(?P<count>\d+),(?P<index>\d+)")


def join(text: str, *, timeout: int = 300) -> None:
  """Joins the other processes, before any device is used; "" joins none.

  Args:
    text: "auto" where the machine knows the others (TPU pods, SLURM, Open
      MPI), else "HOST:PORT,COUNT,INDEX": address of process 0, number of
      processes, and which of them this is.
    timeout: seconds to wait for all of them.

  Raises:
    ValueError: another text, or processes that did not come in time.
  """
  if not text:
    return
  match = _ADDRESS.fullmatch(text)
  if not match and text != "auto":
    raise ValueError(
      f"distributed={text!r} is neither 'auto' nor HOST:PORT,COUNT,INDEX, e.g. "
      "host0:1234,4,0"
    )
  where = {}
  if match:
    where = dict(
      coordinator_address=match["host"],
      num_processes=int(match["count"]),
      process_id=int(match["index"]),
    )
    if where["process_id"] >= where["num_processes"]:
      raise ValueError(
        f"distributed={text!r}: of {match['count']} processes the last has "
        f"index {int(match['count']) - 1}"
      )
  try:
    jax.distributed.initialize(**where, initialization_timeout=timeout)
  except (RuntimeError, ValueError) as error:
    reason = str(error).splitlines()[0]
    raise ValueError(
      f"distributed={text!r}: not all processes met within {timeout} s: "
      f"{reason}"
    ) from error


def meet(name: str) -> None:
  """Waits until all processes are here; `name` is for the message."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


class Preemption:
  """Listens for SIGTERM and Ctrl-C while it is open.

  Clouds send SIGTERM half a minute before they take a machine. Of several
  processes any may get it; JAX listens in each, and all agree on the step
  after which they end. A second Ctrl-C ends at once.

  Attributes:
    status: what a shell reports of a program that the signal ended.
  """

  def __enter__(self) -> Preemption:
    """Starts to listen, where Python lets it: in the main thread."""
    self._told = False
    self.status = 128 + signal.SIGTERM
    self._several = jax.process_count() > 1
    in_main = threading.current_thread() is threading.main_thread()
    self._before = {}
    if in_main and not self._several:
      for number in (signal.SIGTERM, signal.SIGINT):
        self._before[number] = signal.signal(number, self._hear)
    return self

  def __exit__(self, *error: object) -> None:
    """Gives the signals back."""
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _hear(self, number: int, frame: FrameType | None) -> None:
    self._told, self.status = True, 128 + number
    if number == signal.SIGINT:
      signal.signal(number, self._before[number])

  def is_due(self, step: int) -> bool:
    """Whether the run is to end after this step; call it after each."""
    if self._several:
      return multihost_utils.reached_preemption_sync_point(step)
    return self._told
