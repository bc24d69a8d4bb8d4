"""What every checkpoint is from within: named tensors, read in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class TensorSource(Protocol):
  """Tensors under Hugging Face names.

  Attributes:
    path: of the file or folder, for messages.
    config: the facts, in the form of a config.json.
    shapes: tensor name -> shape.
    weight_format: e.g. "safetensors BF16".
  """

  path: str
  config: dict[str, Any]
  shapes: Mapping[str, tuple[int, ...]]
  weight_format: str

  def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    """A part of the tensor, or all of it."""

  def raw(self, name: str) -> np.ndarray:
    """The stored bits as unsigned integers."""
