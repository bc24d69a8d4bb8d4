"""A fault of the bookkeeping, told apart from others by its words."""

import re


class Wrong(AssertionError):
  """The bookkeeping told a falsehood, or refused the truth.

  Attributes:
    kind: the fault, in words that do not depend on the sequence.
  """

  def __init__(self, kind, detail=""):
    super().__init__(f"{kind}: {detail}" if detail else kind)
    self.kind = kind


def words(error):
  """An error without its values: the same for the same fault."""
  text = re.sub(r"'[^']*'|\S*/\S*|[\d.]+", "_", str(error))
  return " ".join(text.split())[:110]
