"""What the tests put before every function of the package: its array shapes."""

import inspect
from collections.abc import Callable
from typing import Any

import beartype


def check(function: Callable) -> Callable:
  """Beartype for arrays alone: doubles may stand for anything else."""
  hints = {
    name: hint if "jaxtyping." in repr(hint) else Any
    for name, hint in function.__annotations__.items()
  }
  if all(hint is Any for hint in hints.values()):
    return function
  function.__annotations__ = hints
  return beartype.beartype(function)


def unchecked(function: Callable) -> Callable:
  """The function as users call it, who must get its own error."""
  return inspect.unwrap(function)
