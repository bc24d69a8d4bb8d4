"""GGUF files: tensors in Hugging Face layout, and facts."""

from __future__ import annotations

import collections
import os
import pathlib
import re
from collections.abc import Mapping

import gguf
import ml_dtypes
import numpy as np
from gguf.constants import GGMLQuantizationType

from longctx_jax.checkpoints.gguf import facts, header
from longctx_jax.checkpoints.gguf.header import StoredTensor
from longctx_jax.runtime import foreign_files

_TENSOR = re.compile(r"(blk\.\d+\.)?(\w+)\.(weight|bias)")


_NAMES = {
  "token_embd": "model.embed_tokens",
  "output_norm": "model.norm",
  "output": "lm_head",
  "attn_norm": "input_layernorm",
  "attn_q": "self_attn.q_proj",
  "attn_k": "self_attn.k_proj",
  "attn_v": "self_attn.v_proj",
  "attn_q_norm": "self_attn.q_norm",
  "attn_k_norm": "self_attn.k_norm",
  "attn_output": "self_attn.o_proj",
  "ffn_norm": "post_attention_layernorm",
  "ffn_gate": "mlp.gate_proj",
  "ffn_up": "mlp.up_proj",
  "ffn_down": "mlp.down_proj",
}


# Names that an architecture has beside, or instead of, those.
_GEMMA = {
  "post_attention_norm": "post_attention_layernorm",
  "ffn_norm": "pre_feedforward_layernorm",
  "post_ffw_norm": "post_feedforward_layernorm",
}


_OWN_NAMES = {
  "gemma2": _GEMMA,
  "gemma3": _GEMMA,
  "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
}


# {} is the expert: the stored tensor stacks them.
_MIXTURES = {
  "llama": {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
  },
  "qwen3moe": {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
  },
}


# Factors of rotary frequencies: part of the facts.
_ROPE_TABLES = ("rope_freqs", "rope_factors_long", "rope_factors_short")
# Types that are read as stored: their values and their bits.
_PLAIN = {
  GGMLQuantizationType.F32: (np.float32, np.uint32),
  GGMLQuantizationType.F16: (np.float16, np.uint16),
  GGMLQuantizationType.BF16: (ml_dtypes.bfloat16, np.uint16),
}


class GgufSource:
  """A GGUF file as a source of tensors.

  Attributes:
    path: of the file.
    fields: its metadata; arrays of numbers are NumPy arrays.
    config: the facts, in the form of a config.json. A sliding window that the
      file does not state (early Mistral) cannot be known.
    shapes: Hugging Face names and shapes of the tensors.
    weight_format: such as "gguf Q4_1", by the type of most matrices.
  """

  def __init__(self, path: str | os.PathLike[str]):
    """Reads the header; tensors stay on disk until they are read.

    Raises:
      ValueError: naming what is damaged or not supported: the file, its
        architecture, a fact, a tensor.
    """
    self.path = os.fspath(path)
    foreign_files.require_content(pathlib.Path(path))
    self._file = np.memmap(self.path, np.uint8, mode="r")
    self._tensors: dict[str, StoredTensor] = {}
    self._orders: dict[str, np.ndarray] = {}
    self._last: tuple = (None, None)
    try:
      self.fields, stored = header.read_header(self._file)
      family = facts.read_family(self.fields)
      tables = {
        name: self._table(stored.pop(f"{name}.weight"))
        for name in _ROPE_TABLES
        if f"{name}.weight" in stored
      }
      self._add_tensors(family, stored)
      self.shapes = {name: item.shape for name, item in self._tensors.items()}
      self.config = facts.read_config(family, self.fields, self.shapes, tables)
    except ValueError as error:
      raise ValueError(f"{self.path}: {error}") from error
    if family == "llama":
      self._add_orders()
    self._norm_shift = 1 if family in ("gemma2", "gemma3") else 0
    kinds = collections.Counter(
      item.kind.name for item in stored.values() if len(item.shape) > 1
    )
    self.weight_format = f"gguf {kinds.most_common(1)[0][0]}"

  def _table(self, stored: StoredTensor) -> np.ndarray:
    if stored.kind != GGMLQuantizationType.F32:
      raise ValueError(f"rotary factors of type {stored.kind.name}")
    return self._file[stored.begin : stored.end].view(np.float32)

  def _add_tensors(
    self, family: str, stored: Mapping[str, StoredTensor]
  ) -> None:
    known = _NAMES | _OWN_NAMES.get(family, {})
    if facts.is_mixture(family, self.fields):
      known |= _MIXTURES[family]
    for name, item in stored.items():
      match = _TENSOR.fullmatch(name)
      if match is None or match[2] not in known:
        raise ValueError(f"tensor {name} is not understood")
      layer = (match[1] or "").replace("blk.", "model.layers.")
      theirs = f"{layer}{known[match[2]]}.{match[3]}"
      if "{}" not in theirs:
        self._tensors[theirs] = item
        continue
      count, size = item.shape[0], (item.end - item.begin) // item.shape[0]
      for expert in range(count):
        begin = item.begin + expert * size
        self._tensors[theirs.format(expert)] = StoredTensor(
          item.shape[1:], item.kind, begin, begin + size
        )

  def _add_orders(self) -> None:
    """Where the rows of queries and keys are stored.

    The two rotary halves of a head alternate there; they are put in a row.
    """
    heads = {
      "q_proj": self.config["num_attention_heads"],
      "k_proj": self.config["num_key_value_heads"],
    }
    for name, shape in self.shapes.items():
      projection = name.split(".")[-2]
      if projection in heads:
        rows = np.arange(shape[0]).reshape(heads[projection], -1, 2)
        self._orders[name] = rows.swapaxes(1, 2).reshape(-1)

  def _bits(self, name: str, rows: slice) -> np.ndarray:
    shape, kind, begin, end = self._tensors[name]
    bits = np.asarray(self._file[begin:end]).reshape(*shape[:-1], -1)
    if kind in _PLAIN:
      bits = bits.view(_PLAIN[kind][1])
    return bits[self._orders[name][rows] if name in self._orders else rows]

  def raw(self, name: str) -> np.ndarray:
    """The stored bits, rows in Hugging Face order.

    Returns:
      uint32 or uint16 of the tensor's shape; uint8 [..., bytes of a row] where
      it is quantised.
    """
    return self._bits(name, slice(None))

  def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    """A part of a tensor, or all of it.

    Returns:
      The stored dtype; float32 where it is quantised. Gemma's norms without
      the 1 that the file adds to them.

    Raises:
      ValueError: for a quantisation that cannot be read, naming it.
    """
    rows, *columns = index or (slice(None),)
    key = name, rows.start, rows.stop
    # Several devices take columns of the same rows, one after the other.
    if self._last[0] != key:
      self._last = key, self._read_rows(name, rows)
    return self._last[1][(slice(None), *columns)]

  def _read_rows(self, name: str, rows: slice) -> np.ndarray:
    kind = self._tensors[name].kind
    bits = self._bits(name, rows)
    if kind in _PLAIN:
      values = bits.view(_PLAIN[kind][0])
      if self._norm_shift and name.endswith("norm.weight"):
        values = values - values.dtype.type(self._norm_shift)
      return values
    try:
      return gguf.dequantize(bits, kind)
    except NotImplementedError as error:
      raise ValueError(
        f"{self.path}: tensor {name} is {kind.name}, which cannot be read; "
        "use a file of BF16 or Q8_0"
      ) from error
