"""Which checkpoint tensors a parameter comes from, and which it goes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from longctx_jax.model.config import ModelConfig

_TOP = {
  "embedding": "model.embed_tokens.weight",
  "norm.scale": "model.norm.weight",
  "output": "lm_head.weight",
}


# Within a layer, without "layers." here and "model.layers.{layer}." there.
_LAYER = {
  "attention_norm.scale": "input_layernorm.weight",
  "mlp_norm.scale": "post_attention_layernorm.weight",
  "attention.q_norm.scale": "self_attn.q_norm.weight",
  "attention.k_norm.scale": "self_attn.k_norm.weight",
} | {
  f"{ours}.{leaf}": f"{theirs}.{their_leaf}"
  for ours, theirs in (
    ("attention.q_proj", "self_attn.q_proj"),
    ("attention.k_proj", "self_attn.k_proj"),
    ("attention.v_proj", "self_attn.v_proj"),
    ("attention.o_proj", "self_attn.o_proj"),
    ("mlp.gate_proj", "mlp.gate_proj"),
    ("mlp.up_proj", "mlp.up_proj"),
    ("mlp.down_proj", "mlp.down_proj"),
  )
  for leaf, their_leaf in (("kernel", "weight"), ("bias", "bias"))
}


# Gemma norms the output of both halves too, and uses a name again.
_POST_NORMS = {
  "attention_post_norm.scale": "post_attention_layernorm.weight",
  "mlp_norm.scale": "pre_feedforward_layernorm.weight",
  "mlp_post_norm.scale": "post_feedforward_layernorm.weight",
}


# By family; {} is the expert.
_EXPERTS = {
  "mixtral": {
    "mlp.router.kernel": "block_sparse_moe.gate.weight",
    "mlp.gate_proj.kernel": "block_sparse_moe.experts.{}.w1.weight",
    "mlp.down_proj.kernel": "block_sparse_moe.experts.{}.w2.weight",
    "mlp.up_proj.kernel": "block_sparse_moe.experts.{}.w3.weight",
  },
  "qwen3_moe": {
    "mlp.router.kernel": "mlp.gate.weight",
    "mlp.gate_proj.kernel": "mlp.experts.{}.gate_proj.weight",
    "mlp.down_proj.kernel": "mlp.experts.{}.down_proj.weight",
    "mlp.up_proj.kernel": "mlp.experts.{}.up_proj.weight",
  },
}


# Phi-3: several of our kernels are the rows of one tensor, in this order.
_FUSED = {
  "self_attn.qkv_proj.weight": (
    "attention.q_proj.kernel",
    "attention.k_proj.kernel",
    "attention.v_proj.kernel",
  ),
  "mlp.gate_up_proj.weight": ("mlp.gate_proj.kernel", "mlp.up_proj.kernel"),
}


# A checkpoint that sees images too holds the text model under another name.
_TEXT_PREFIXES = {
  "language_model.model.": "model.",
  "language_model.lm_head.": "lm_head.",
  "model.language_model.": "model.",
}


_NO_TEXT = (
  "vision_tower.",
  "multi_modal_projector.",
  "model.vision_tower.",
  "model.multi_modal_projector.",
)


# A tensor within the layer, and its rows [a, b).
FusedRows = tuple[str, tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class TensorRef:
  """Where one piece of a parameter lies in a checkpoint.

  Attributes:
    tensor: Hugging Face tensor name.
    place: leading indices of our parameter: (), (layer,) or (layer, expert).
    rows: rows [a, b) of the tensor that are the piece; None is all of them.
    transpose: whether the tensor is [out, in] where we keep [in, out].
  """

  tensor: str
  place: tuple[int, ...] = ()
  rows: tuple[int, int] | None = None
  transpose: bool = False


def parameter_table(
  config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, list[TensorRef]]:
  """Dotted parameter name -> its pieces; every tensor row is in one piece.

  Args:
    config: the facts of the model.
    shapes: parameter name -> shape, layers stacked.
  """
  names = _layer_names(config)
  spans = _fused_rows(config, shapes)
  return {
    name: list(_pieces(name, shape, names, spans))
    for name, shape in shapes.items()
  }


def text_tensor(name: str, model_type: str | None) -> str | None:
  """A stored name as `parameter_table` has it; None for no part of the text.

  Only `gemma3` checkpoints hold more than a text model.

  Args:
    name: tensor name in the file.
    model_type: as in the file's config.json, top level.
  """
  if model_type != "gemma3":
    return name
  if name.startswith(_NO_TEXT):
    return None
  for theirs, plain in _TEXT_PREFIXES.items():
    if name.startswith(theirs):
      return plain + name.removeprefix(theirs)
  return name


def _layer_names(config: ModelConfig) -> dict[str, str]:
  names = dict(_LAYER)
  if config.post_norms:
    names |= _POST_NORMS
  if config.num_experts:
    names |= _EXPERTS[config.model_type]
  return names


def _fused_rows(
  config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, FusedRows]:
  """Parameter name -> (tensor within the layer, its rows), where fused."""
  spans: dict[str, FusedRows] = {}
  if config.model_type != "phi3":
    return spans
  for tensor, parts in _FUSED.items():
    start = 0
    for part in parts:
      stop = start + shapes[f"layers.{part}"][-1]
      spans[part] = tensor, (start, stop)
      start = stop
  return spans


def _pieces(
  name: str,
  shape: tuple[int, ...],
  names: Mapping[str, str],
  spans: Mapping[str, FusedRows],
) -> Iterator[TensorRef]:
  transpose = name.endswith(".kernel")
  if not name.startswith("layers."):
    yield TensorRef(_TOP[name], transpose=transpose)
    return
  part = name.removeprefix("layers.")
  tensor, rows = spans.get(part) or (names[part], None)
  for layer in range(shape[0]):
    full = f"model.layers.{layer}.{tensor}"
    if "{}" not in tensor:
      yield TensorRef(full, (layer,), rows, transpose)
      continue
    for expert in range(shape[1]):
      yield TensorRef(full.format(expert), (layer, expert), rows, transpose)
