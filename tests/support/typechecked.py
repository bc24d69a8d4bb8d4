"""What the tests put before every function of the package: its array shapes."""

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, get_args, get_origin

import beartype
from jaxtyping import AbstractArray


def check(function: Callable) -> Callable:
  """Beartype for arrays alone: doubles may stand for anything else."""
  hints = {
    name: _of_any_library(hint) if "jaxtyping." in repr(hint) else Any
    for name, hint in function.__annotations__.items()
  }
  if all(hint is Any for hint in hints.values()):
    return function
  function.__annotations__ = hints
  return beartype.beartype(function)


def _of_any_library(hint):
  """The hint without the kind of array: JAX takes NumPy's for its own."""
  if isinstance(hint, type) and issubclass(hint, AbstractArray):
    return hint.dtype[Any, hint.dim_str]
  parts = [_of_any_library(part) for part in get_args(hint)]
  if get_origin(hint) is tuple:
    return tuple[*parts]
  if get_origin(hint) in (types.UnionType, typing.Union):
    return functools.reduce(operator.or_, parts)
  return hint


def unchecked(function: Callable) -> Callable:
  """The function as users call it, who must get its own error."""
  return inspect.unwrap(function)
