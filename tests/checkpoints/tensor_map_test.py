import collections

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import family_cases

from longctx_jax.checkpoints import tensor_map
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.tensor_map import TensorRef
from longctx_jax.model import parameters
from longctx_jax.model.transformer import Transformer


def table_of(name):
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  abstract = nnx.eval_shape(lambda: Transformer(config, dtype=jnp.float32))
  params = parameters.flatten(nnx.state(abstract, nnx.Param))
  shapes = {name: leaf.shape for name, leaf in params.items()}
  return tensor_map.parameter_table(config, shapes), shapes


@pytest.mark.parametrize(
  "name",
  ["llama, biases", "qwen2", "mixtral", "qwen3_moe", "phi3", "gemma3_text"],
)
def test_parameters_and_tensors_cover_each_other_once(name):
  table, shapes = table_of(name)
  assert table.keys() == shapes.keys()
  rows = collections.defaultdict(list)
  for parameter, refs in table.items():
    shape = shapes[parameter]
    depth = len(refs[0].place)
    filled = np.zeros(shape[:depth], int)
    for ref in refs:
      filled[ref.place] += 1
      piece = shape[depth:][::-1] if ref.transpose else shape[depth:]
      start, stop = ref.rows or (0, piece[0])
      assert stop - start == piece[0]
      rows[ref.tensor].append((start, stop))
    assert (filled == 1).all()
  for tensor, spans in rows.items():
    ends = [0, *(stop for _, stop in sorted(spans))]
    assert [start for start, _ in sorted(spans)] == ends[:-1], tensor


def test_a_kernel_is_the_transpose_of_a_tensor():
  table, _ = table_of("llama, biases")
  (first, *_) = table["layers.mlp.up_proj.kernel"]
  tensor = "model.layers.0.mlp.up_proj"
  assert first == TensorRef(f"{tensor}.weight", (0,), None, True)
  (first, *_) = table["layers.mlp.up_proj.bias"]
  assert first == TensorRef(f"{tensor}.bias", (0,), None, False)
  assert table["output"] == [TensorRef("lm_head.weight")]


def test_fused_projections_lie_one_after_the_other():
  # 4 heads of 10 dimensions and 2 of keys and values: 40, 20 and 20 rows.
  table, _ = table_of("phi3")
  tensor = "model.layers.1.self_attn.qkv_proj.weight"
  for part, rows in (("q", (0, 40)), ("k", (40, 60)), ("v", (60, 80))):
    refs = table[f"layers.attention.{part}_proj.kernel"]
    assert refs[1] == TensorRef(tensor, (1,), rows, True)
  (up, *_) = table["layers.mlp.up_proj.kernel"]
  assert (up.tensor, up.rows) == (
    "model.layers.0.mlp.gate_up_proj.weight",
    (56, 112),
  )


@pytest.mark.parametrize(
  ("name", "router", "down"),
  [
    ("mixtral", "block_sparse_moe.gate", "block_sparse_moe.experts.4.w2"),
    ("qwen3_moe", "mlp.gate", "mlp.experts.4.down_proj"),
  ],
)
def test_experts_have_a_tensor_each(name, router, down):
  table, shapes = table_of(name)
  count = shapes["layers.mlp.down_proj.kernel"][1]
  assert table["layers.mlp.router.kernel"][2].tensor == (
    f"model.layers.2.{router}.weight"
  )
  ref = table["layers.mlp.down_proj.kernel"][2 * count + 4]
  tensor = f"model.layers.2.{down}.weight"
  assert ref == TensorRef(tensor, (2, 4), None, True)


def test_gemma_norms_four_times():
  table, _ = table_of("gemma3_text")
  tensors = [
    table[f"layers.{name}.scale"][0].tensor.removeprefix("model.layers.0.")
    for name in (
      "attention_norm",
      "attention_post_norm",
      "mlp_norm",
      "mlp_post_norm",
    )
  ]
  assert tensors == [
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "post_feedforward_layernorm.weight",
  ]


@pytest.mark.parametrize(
  ("stored", "plain"),
  [
    ("language_model.model.norm.weight", "model.norm.weight"),
    ("model.language_model.norm.weight", "model.norm.weight"),
    ("language_model.lm_head.weight", "lm_head.weight"),
    ("lm_head.weight", "lm_head.weight"),
    ("model.vision_tower.head.weight", None),
    ("multi_modal_projector.mm_soft_emb_norm.weight", None),
  ],
)
def test_names_in_a_model_that_sees_images(stored, plain):
  assert tensor_map.text_tensor(stored, "gemma3") == plain
  assert tensor_map.text_tensor(stored, "llama") == stored
