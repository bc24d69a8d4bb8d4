"""Several processes as one program, on the hosts of a pod or on one machine."""

from __future__ import annotations

import re

import jax

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
