"""Long documents first, as far as a bounded memory can look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

# What is held to be sorted, whichever is reached first: documents, and their
# characters, which take up to four bytes each.
_MOST, _MOST_CHARS = 4096, 1 << 26


def longest_first(
  items: Iterable[T], *, size: Callable[[T], int]
) -> Iterator[T]:
  """The items of each look-ahead, the largest first; equal ones as they came.

  What needs most memory is met at the start, and the last passes are short. An
  error of `items` comes after those before it.

  Args:
    items: read up to a look-ahead at a time: 4,096 of them, or 2^26 characters.
    size: characters of an item.
  """
  stream, error = iter(items), None
  while error is None:
    held, chars = [], 0
    try:
      while len(held) < _MOST and chars < _MOST_CHARS:
        item = next(stream)
        held.append((size(item), item))
        chars += held[-1][0]
    except StopIteration as end:
      error = end
    except Exception as raised:
      error = raised
    held.sort(key=lambda pair: -pair[0])
    for _, item in held:
      yield item
  if not isinstance(error, StopIteration):
    raise error
