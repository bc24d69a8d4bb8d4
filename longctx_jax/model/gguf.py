"""GGUF files: tensors in Hugging Face layout, facts, and the tokenizer."""

from __future__ import annotations

import collections
import os
import re

import gguf
import ml_dtypes
import numpy as np
import tokenizers
from absl import logging
from gguf.constants import GGMLQuantizationType, TokenType
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from longctx_jax.model import gguf_header

ARCHITECTURES = {
  "llama": "LlamaForCausalLM",
  "qwen2": "Qwen2ForCausalLM",
  "qwen3": "Qwen3ForCausalLM",
}
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
# Types that are read as stored: their values and their bits.
_PLAIN = {
  GGMLQuantizationType.F32: (np.float32, np.uint32),
  GGMLQuantizationType.F16: (np.float16, np.uint16),
  GGMLQuantizationType.BF16: (ml_dtypes.bfloat16, np.uint16),
}

# Keys behind the architecture's name, and the fields of a config.json.
_FACTS = {
  "embedding_length": "hidden_size",
  "feed_forward_length": "intermediate_size",
  "block_count": "num_hidden_layers",
  "attention.head_count": "num_attention_heads",
  "attention.layer_norm_rms_epsilon": "rms_norm_eps",
  "context_length": "max_position_embeddings",
}
_YARN = {
  "rope.scaling.original_context_length": "original_max_position_embeddings",
  "rope.scaling.yarn_beta_fast": "beta_fast",
  "rope.scaling.yarn_beta_slow": "beta_slow",
}
# Read by name below, or without influence on the numbers.
_OTHERS = {
  "attention.head_count_kv",
  "attention.key_length",
  "attention.value_length",
  "attention.sliding_window",
  "rope.dimension_count",
  "rope.freq_base",
  "rope.scaling.type",
  "rope.scaling.factor",
  "rope.scaling.finetuned",
  "tensor_data_layout",
  "vocab_size",
}
_NEUTRAL = {"attention.causal": True, "rope.scaling.yarn_ext_factor": 1.0}

# How Llama 3 and Qwen 2 split words; they differ in the length of numbers.
_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_PRE_TOKENIZERS = {
  "smollm": [pre_tokenizers.Digits(individual_digits=True), _GPT2],
  "llama-bpe": [
    pre_tokenizers.Split(tokenizers.Regex(_WORDS % "{1,3}"), "isolated"),
    _BYTES,
  ],
  "qwen2": [
    pre_tokenizers.Split(tokenizers.Regex(_WORDS % ""), "isolated"),
    _BYTES,
  ],
  "gpt-2": [_GPT2],
  "default": [_GPT2],
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
    self._file = np.memmap(self.path, np.uint8, mode="r")
    try:
      self.fields, tensors = gguf_header.read_header(self._file)
      family = _family(self.fields)
      self._tensors = {_hf_name(name): tensors[name] for name in tensors}
      self.shapes = {name: item.shape for name, item in self._tensors.items()}
      self.config = _config(family, self.fields, self.shapes)
    except ValueError as error:
      raise ValueError(f"{self.path}: {error}") from error
    self._interleaved = {}
    if family == "llama":
      self._interleaved = {
        "q_proj": self.config["num_attention_heads"],
        "k_proj": self.config["num_key_value_heads"],
      }
    kinds = collections.Counter(
      item.kind.name for item in tensors.values() if len(item.shape) > 1
    )
    self.weight_format = f"gguf {kinds.most_common(1)[0][0]}"

  def raw(self, name: str) -> np.ndarray:
    """The stored bits, rows in Hugging Face order.

    Returns:
      uint32 or uint16 of the tensor's shape; uint8 [..., bytes of a row] where
      it is quantised.
    """
    shape, kind, begin, end = self._tensors[name]
    bits = np.asarray(self._file[begin:end]).reshape(*shape[:-1], -1)
    if kind in _PLAIN:
      bits = bits.view(_PLAIN[kind][1])
    projection = name.split(".")[-2]
    if projection not in self._interleaved:
      return bits
    # Rows of a head's two rotary halves alternate; they are put in a row.
    pairs = bits.reshape(self._interleaved[projection], -1, 2, *bits.shape[1:])
    return pairs.swapaxes(1, 2).reshape(bits.shape)

  def read(self, name: str) -> np.ndarray:
    """A tensor in its stored dtype; float32 where it is quantised.

    Raises:
      ValueError: for a quantisation that cannot be read, naming it.
    """
    shape, kind, _, _ = self._tensors[name]
    bits = self.raw(name)
    if kind in _PLAIN:
      return bits.view(_PLAIN[kind][0])
    try:
      return gguf.dequantize(bits, kind).reshape(shape)
    except NotImplementedError as error:
      raise ValueError(
        f"{self.path}: tensor {name} is {kind.name}, which cannot be read; "
        "use a file of BF16 or Q8_0"
      ) from error


def _need(fields, key):
  if key not in fields:
    raise ValueError(f"{key} is missing")
  return fields[key]


def _family(fields):
  family = fields.get("general.architecture")
  if family not in ARCHITECTURES:
    raise ValueError(
      f"architecture {family!r} is not supported (supported: "
      f"{', '.join(ARCHITECTURES)}); use the safetensors checkpoint"
    )
  if (fields.get("split.count") or 1) > 1:
    raise ValueError(
      f"one of {fields['split.count']} parts; join them with "
      "llama-gguf-split --merge"
    )
  return family


def _hf_name(name):
  """Hugging Face's name of a stored tensor."""
  if name == "rope_freqs.weight":
    raise ValueError(
      "rope_freqs.weight stands for llama3 RoPE scaling, whose parameters the "
      "file does not state; use the safetensors checkpoint"
    )
  match = _TENSOR.fullmatch(name)
  if match is None or match[2] not in _NAMES:
    raise ValueError(f"tensor {name} is not understood")
  layer = (match[1] or "").replace("blk.", "model.layers.")
  return f"{layer}{_NAMES[match[2]]}.{match[3]}"


def _config(family, fields, shapes):
  """The facts in the form of a config.json."""
  facts = {
    key.removeprefix(f"{family}."): value
    for key, value in fields.items()
    if key.startswith(f"{family}.")
  }
  for key, value in facts.items():
    if isinstance(value, np.ndarray | list):
      raise ValueError(f"{family}.{key} differs between layers")
    known = key in _FACTS or key in _YARN or key in _OTHERS
    if not known and (key not in _NEUTRAL or value != _NEUTRAL[key]):
      raise ValueError(
        f"{family}.{key}={value} is not understood and could change the "
        "numbers; use the safetensors checkpoint"
      )
  config = {theirs: _need(facts, key) for key, theirs in _FACTS.items()}
  heads = config["num_attention_heads"]
  head_dim = facts.get("attention.key_length") or config["hidden_size"] // heads
  for key in ("attention.value_length", "rope.dimension_count"):
    if facts.get(key) not in (None, head_dim):
      raise ValueError(f"{family}.{key}={facts[key]}, but head_dim={head_dim}")
  config |= {
    "model_type": family,
    "num_key_value_heads": facts.get("attention.head_count_kv") or heads,
    "head_dim": head_dim,
    "vocab_size": _need(shapes, "model.embed_tokens.weight")[0],
    "hidden_act": "silu",
    "rope_parameters": _rope(facts),
    "tie_word_embeddings": "lm_head.weight" not in shapes,
    "architectures": [ARCHITECTURES[family]],
  }
  if family == "llama":
    layer = "model.layers.0."
    config["attention_bias"] = f"{layer}self_attn.q_proj.bias" in shapes
    config["mlp_bias"] = f"{layer}mlp.gate_proj.bias" in shapes
  if window := facts.get("attention.sliding_window"):
    if family != "llama":
      raise ValueError(
        f"{family}.attention.sliding_window={window}: the file does not state "
        "which layers have it; use the safetensors checkpoint"
      )
    config["model_type"] = "mistral"
    config["architectures"] = ["MistralForCausalLM"]
    config["sliding_window"] = window
  for name in ("bos_token_id", "eos_token_id"):
    if f"tokenizer.ggml.{name}" in fields:
      config[name] = fields[f"tokenizer.ggml.{name}"]
  return config


def _rope(facts):
  """`rope_parameters`, without a base where the file states none."""
  factor = facts.get("rope.scaling.factor")
  kind = facts.get("rope.scaling.type") or ("linear" if factor else "none")
  if kind not in ("none", "linear", "yarn"):
    raise ValueError(
      f"RoPE scaling {kind!r} is not supported (supported: none, linear, "
      "yarn); use the safetensors checkpoint"
    )
  rope = {"rope_type": "default" if kind == "none" else kind}
  if "rope.freq_base" in facts:
    rope["rope_theta"] = facts["rope.freq_base"]
  if kind != "none":
    rope["factor"] = _need(facts, "rope.scaling.factor")
  if kind == "yarn":
    _need(facts, "rope.scaling.original_context_length")
    rope |= {_YARN[key]: facts[key] for key in _YARN if key in facts}
  return rope


def load_gguf_tokenizer(source: GgufSource) -> tokenizers.Tokenizer:
  """The tokenizer inside a GGUF file.

  Raises:
    ValueError: naming the tokenizer model or pre-tokenizer, where it cannot be
      rebuilt faithfully.
  """
  prefix = "tokenizer.ggml."
  fields = {
    key.removeprefix(prefix): value
    for key, value in source.fields.items()
    if key.startswith(prefix)
  }
  try:
    tokens = _need(fields, "tokens")
    match _need(fields, "model"):
      case "gpt2":
        tokenizer = _byte_level(fields, tokens)
      case "llama":
        tokenizer = _sentencepiece(fields, tokens)
      case model:
        raise ValueError(
          f"tokenizer model {model!r} is not supported (supported: gpt2, llama)"
        )
    _add_specials(tokenizer, fields, tokens)
  except ValueError as error:
    raise ValueError(
      f"{source.path}: {error}. Give a folder with the model's tokenizer files"
    ) from error
  return tokenizer


def _byte_level(fields, tokens):
  """GPT-2's kind of BPE."""
  pre = fields.get("pre")
  if pre not in _PRE_TOKENIZERS:
    raise ValueError(
      f"pre-tokenizer {pre!r} is not supported (supported: "
      f"{', '.join(_PRE_TOKENIZERS)})"
    )
  if pre == "default":
    logging.warning("the file records no pre-tokenizer: GPT-2's is assumed")
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)},
      merges=[tuple(pair.split(" ")) for pair in _need(fields, "merges")],
      ignore_merges=pre == "llama-bpe",
    )
  )
  if pre == "qwen2":
    tokenizer.normalizer = normalizers.NFC()
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_PRE_TOKENIZERS[pre])
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _sentencepiece(fields, tokens):
  """SentencePiece's BPE: the pair of the best-scored result merges first."""
  kinds, scores = _need(fields, "token_type"), _need(fields, "scores")
  normal = np.flatnonzero(kinds == TokenType.NORMAL)
  if (scores[normal] % 1).any():
    raise ValueError("the scores are those of a unigram model")
  for key in ("remove_extra_whitespaces", "precompiled_charsmap"):
    if np.any(fields.get(key)):
      raise ValueError(f"tokenizer.ggml.{key} is not supported")
  vocab = {token: i for i, token in enumerate(tokens)}
  mergeable = {tokens[i]: scores[i] for i in normal}
  merges = [
    (-score, vocab[piece[:i]], vocab[piece[i:]])
    for piece, score in mergeable.items()
    for i in range(1, len(piece))
    if piece[:i] in mergeable and piece[i:] in mergeable
  ]
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      vocab=vocab,
      merges=[(tokens[a], tokens[b]) for _, a, b in sorted(merges)],
      unk_token=tokens[_need(fields, "unknown_token_id")],
      fuse_unk=True,
      byte_fallback=True,
    )
  )
  spaces = [normalizers.Replace(" ", "\u2581")]
  decoding = [
    decoders.Replace("\u2581", " "),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if fields.get("add_space_prefix") is not False:
    spaces.insert(0, normalizers.Prepend("\u2581"))
    decoding.append(decoders.Strip(" ", 1, 0))
  tokenizer.normalizer = normalizers.Sequence(spaces)
  tokenizer.decoder = decoders.Sequence(decoding)
  return tokenizer


def _add_specials(tokenizer, fields, tokens):
  """Registers control and user-defined tokens; puts BOS and EOS as stated."""
  kinds = _need(fields, "token_type")
  special = np.isin(kinds, [TokenType.CONTROL, TokenType.UNKNOWN])
  for i in np.flatnonzero(special | (kinds == TokenType.USER_DEFINED)):
    added = tokenizers.AddedToken(
      tokens[i], special=bool(special[i]), normalized=False
    )
    tokenizer.add_tokens([added])
  if tokenizer.get_vocab_size() != len(tokens):
    raise ValueError("some tokens occur twice")
  add_bos = fields.get("add_bos_token")
  if add_bos is None:  # What llama.cpp does where the file says nothing.
    add_bos = fields["model"] == "llama" or fields["pre"] == "llama-bpe"
  bos = [_need(fields, "bos_token_id")] if add_bos else []
  eos = [_need(fields, "eos_token_id")] if fields.get("add_eos_token") else []
  if bos or eos:
    tokenizer.post_processor = processors.TemplateProcessing(
      single=[*(tokens[i] for i in bos), "$A", *(tokens[i] for i in eos)],
      special_tokens=[(tokens[i], i) for i in bos + eos],
    )
