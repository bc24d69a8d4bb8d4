"""The facts of GGUF files, and the models that they make.

Every family that such files hold, against the same model's safetensors. The
files are written here as llama.cpp's converter writes them.
"""

import dataclasses

import gguf
import numpy as np
import pytest
from support import family_cases, gguf_files
from support.checks import refuses
from tokenizers import pre_tokenizers

from longctx_jax import testing
from longctx_jax.checkpoints import loading
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.gguf.tensors import GgufSource
from longctx_jax.model import parameters as parameters_lib

BLOCK = {
  "input_layernorm": "attn_norm",
  "self_attn.q_proj": "attn_q",
  "self_attn.k_proj": "attn_k",
  "self_attn.v_proj": "attn_v",
  "self_attn.o_proj": "attn_output",
  "self_attn.q_norm": "attn_q_norm",
  "self_attn.k_norm": "attn_k_norm",
  "self_attn.qkv_proj": "attn_qkv",
  "post_attention_layernorm": "ffn_norm",
  "mlp.gate_proj": "ffn_gate",
  "mlp.up_proj": "ffn_up",
  "mlp.down_proj": "ffn_down",
  "mlp.gate_up_proj": "ffn_up",
  "block_sparse_moe.gate": "ffn_gate_inp",
  "block_sparse_moe.experts.{}.w1": "ffn_gate_exps",
  "block_sparse_moe.experts.{}.w2": "ffn_down_exps",
  "block_sparse_moe.experts.{}.w3": "ffn_up_exps",
  "mlp.gate": "ffn_gate_inp",
  "mlp.experts.{}.gate_proj": "ffn_gate_exps",
  "mlp.experts.{}.down_proj": "ffn_down_exps",
  "mlp.experts.{}.up_proj": "ffn_up_exps",
}
GEMMA_BLOCK = BLOCK | {
  "post_attention_layernorm": "post_attention_norm",
  "pre_feedforward_layernorm": "ffn_norm",
  "post_feedforward_layernorm": "post_ffw_norm",
}
TOP = {
  "model.embed_tokens": "token_embd",
  "model.norm": "output_norm",
  "lm_head": "output",
}


def interleaved(rows, heads):
  """Rows of queries or keys as llama's are stored, one by one."""
  stored = np.empty_like(rows)
  size = len(rows) // heads
  for head in range(heads):
    for i in range(size // 2):
      for half in range(2):
        row = head * size + half * size // 2 + i
        stored[head * size + 2 * i + half] = rows[row]
  return stored


def tensors_of(arch, config, source):
  """(stored name, array) of every tensor."""
  block = GEMMA_BLOCK if arch.startswith("gemma") else BLOCK

  def convert(name, tensor):
    if arch.startswith("gemma") and name.endswith("norm"):
      return tensor + np.float32(1)
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
    last = name.split(".")[-1]
    if arch == "llama" and last in heads:
      return interleaved(tensor, heads[last])
    return tensor

  for theirs, stored in TOP.items():
    if f"{theirs}.weight" in source.shapes:
      tensor = source.read(f"{theirs}.weight")
      yield f"{stored}.weight", convert(theirs, tensor)
  for layer in range(config.num_layers):
    for theirs, stored in block.items():
      for leaf in ("weight", "bias"):
        name = f"model.layers.{layer}.{theirs}.{leaf}"
        if name.format(0) not in source.shapes:
          continue
        if "{}" in name:
          experts = range(config.num_experts)
          tensor = np.stack([source.read(name.format(e)) for e in experts])
        else:
          tensor = source.read(name)
        yield f"blk.{layer}.{stored}.{leaf}", convert(theirs, tensor)


def add_tokenizer(writer):
  """256 bytes, one merge and a BOS."""
  bytes_ = sorted(pre_tokenizers.ByteLevel.alphabet())
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre("gpt-2")
  writer.add_token_list([*bytes_, "ab", "<bos>"])
  writer.add_token_types([1] * 257 + [3])
  writer.add_token_merges(["a b"])
  writer.add_bos_token_id(257)


def write(path, arch, config, source, facts=(), tables=()):
  writer = gguf.GGUFWriter(path, arch)
  writer.add_block_count(config.num_layers)
  writer.add_context_length(config.max_position)
  writer.add_embedding_length(config.embed_dim)
  writer.add_feed_forward_length(config.mlp_dim)
  writer.add_head_count(config.num_heads)
  writer.add_head_count_kv(config.num_kv_heads)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  writer.add_rope_freq_base(config.ropes[0].theta)
  writer.add_key_length(config.head_dim)
  writer.add_value_length(config.head_dim)
  for add, value in facts:
    getattr(writer, add)(value)
  for name, tensor in (*tables, *tensors_of(arch, config, source)):
    writer.add_tensor(name, tensor)
  add_tokenizer(writer)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


PHI3 = family_cases.PHI3 | {"sliding_window": None}
LONGROPE = family_cases.CASES["phi3, longrope"]
CASES = {
  "llama": ("llama", family_cases.llama(), []),
  "mistral": ("llama", family_cases.MISTRAL, [("add_sliding_window", 8)]),
  "mixtral": (
    "llama",
    family_cases.MIXTRAL,
    [("add_expert_count", 5), ("add_expert_used_count", 2)],
  ),
  "qwen2": (
    "qwen2",
    family_cases.QWEN2 | {"use_sliding_window": False},
    [],
  ),
  "qwen3": ("qwen3", family_cases.QWEN3 | {"attention_bias": False}, []),
  "qwen3moe": (
    "qwen3moe",
    family_cases.QWEN3_MOE,
    [
      ("add_expert_count", 6),
      ("add_expert_used_count", 2),
      ("add_expert_feed_forward_length", 24),
    ],
  ),
  "phi3": ("phi3", PHI3, [("add_sliding_window", 0)]),
  "phi3, longrope": (
    "phi3",
    LONGROPE,
    [
      ("add_sliding_window", 8),
      ("add_rope_scaling_orig_ctx_len", 16),
      # As Phi-3 defines it: sqrt(1 + ln(64 / 16) / ln(16)).
      ("add_rope_scaling_attn_factors", float(np.sqrt(1.5))),
    ],
  ),
  "gemma2": (
    "gemma2",
    family_cases.GEMMA2 | {"query_pre_attn_scalar": 12},
    [
      ("add_sliding_window", 8),
      ("add_attn_logit_softcapping", 2.0),
      ("add_final_logit_softcapping", 3.0),
    ],
  ),
  "gemma3": (
    "gemma3",
    family_cases.GEMMA3
    | {"query_pre_attn_scalar": 12, "sliding_window_pattern": 6},
    [
      ("add_sliding_window", 8),
      ("add_rope_scaling_type", gguf.RopeScalingType.LINEAR),
      ("add_rope_scaling_factor", 8.0),
    ],
  ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gguf_file_gives_the_model_of_its_safetensors(name, tmp_path, mesh):
  """Cases G3: under GQA 4/2, to the last bit."""
  arch, fields, facts = CASES[name]
  config = config_json.from_hf(fields, source=name)
  source = testing.RandomSource(config, seed=5)
  source.save(tmp_path / "hf")
  tables = []
  if name == "phi3, longrope":
    tables = [
      (
        f"rope_factors_{kind}.weight",
        np.array(LONGROPE["rope_scaling"][f"{kind}_factor"], np.float32),
      )
      for kind in ("long", "short")
    ]
  path = tmp_path / "m.gguf"
  write(path, arch, config, source, facts, tables)
  expected = loading.load_model(tmp_path / "hf", mesh=mesh)
  found = loading.load_model(path, mesh=mesh)
  differing = [
    field.name
    for field in dataclasses.fields(config)
    if getattr(config, field.name) != getattr(found.config, field.name)
  ]
  assert differing == ["ropes"] * (name == "phi3, longrope")
  parameters = parameters_lib.flatten(expected.params)
  for parameter, value in parameters_lib.flatten(found.params).items():
    np.testing.assert_allclose(
      value[...],
      parameters[parameter][...],
      err_msg=parameter,
      rtol=0,
      # Gemma's file stores 1 + scale, rounded.
      atol=1e-6 if arch.startswith("gemma") else 0,
    )
  if name == "llama":
    ids = np.arange(20)[None]
    np.testing.assert_array_equal(found.logits(ids), expected.logits(ids))


@pytest.mark.parametrize("arch", ["gemma2", "gemma3"])
def test_the_largest_gemma_scales_queries_by_the_mean_width(
  arch, tmp_path, mesh
):
  """What llama.cpp computes for 27B without the file saying so."""
  layers = {"gemma2": 46, "gemma3": 62}[arch]
  fields = {"gemma2": family_cases.GEMMA2, "gemma3": family_cases.GEMMA3}[arch]
  fields = fields | {"num_hidden_layers": layers, "query_pre_attn_scalar": 10}
  config = config_json.from_hf(fields, source=arch)
  facts = [("add_sliding_window", 8)]
  source = testing.RandomSource(config, seed=5)
  write(tmp_path / "m.gguf", arch, config, source, facts)
  read = loading.open_source(tmp_path / "m.gguf").config
  assert read["query_pre_attn_scalar"] == 10  # 40 / 4, where head_dim is 12.


def test_facts_are_those_of_a_config_json(tmp_path, rng):
  path = gguf_files.write(tmp_path / "m.gguf", gguf_files.hf_weights(rng))
  source = GgufSource(path)
  assert source.config == {
    "model_type": "llama",
    "hidden_size": gguf_files.EMBED,
    "intermediate_size": gguf_files.MLP,
    "num_hidden_layers": 1,
    "num_attention_heads": gguf_files.HEADS,
    "num_key_value_heads": gguf_files.KV_HEADS,
    "head_dim": gguf_files.HEAD_DIM,
    "vocab_size": gguf_files.VOCAB,
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
  source = GgufSource(
    gguf_files.write(
      tmp_path / "m.gguf", gguf_files.hf_weights(rng), facts=facts
    )
  )
  assert source.config["rope_parameters"] == {
    "rope_type": "default",
    "rope_theta": 50000.0,
    **expected,
  }
  config_json.from_hf(source.config, source=source.path)


def test_the_table_of_llama_3_1_is_recognised(tmp_path, rng):
  """As llama.cpp computes it, for factor 32 (Llama 3.2)."""
  factors = []
  for i in range(0, gguf_files.HEAD_DIM, 2):
    wavelength = 2 * np.pi * 500000.0 ** (i / gguf_files.HEAD_DIM)
    smooth = (8192 / wavelength - 1) / (4 - 1)
    if wavelength < 8192 / 4:
      factors.append(1.0)
    elif wavelength > 8192:
      factors.append(32.0)
    else:
      factors.append(1 / ((1 - smooth) / 32 + smooth))
  assert len(set(factors)) == 3
  extra = [("rope_freqs.weight", np.array(factors, np.float32))]
  path = gguf_files.write(
    tmp_path / "m.gguf", gguf_files.hf_weights(rng), extra=extra, theta=500000.0
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
  source = GgufSource(
    gguf_files.write(
      tmp_path / "m.gguf", gguf_files.hf_weights(rng), facts=facts
    )
  )
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
  path = gguf_files.write(
    tmp_path / "m.gguf", gguf_files.hf_weights(rng), **options
  )
  with refuses(f"m.gguf: .*{message}"):
    GgufSource(path)
