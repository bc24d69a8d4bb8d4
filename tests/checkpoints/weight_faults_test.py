import json
import re

import numpy as np
import pytest
from support import saved_models

from longctx_jax import testing
from longctx_jax.checkpoints import (
  loading,
  weights,
)
from longctx_jax.model import rope
from longctx_jax.model.rope import RopeConfig


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  return tmp_path / "m"


@pytest.mark.parametrize(
  "name,value,message",
  [
    ("model.embed_tokens.weight", 0.0, "the output head looks empty"),
    ("model.embed_tokens.weight", 1e-7, "the output head looks empty"),
    ("model.norm.weight", 0.0, "model.norm.weight is all zero"),
    ("model.layers.1.mlp.up_proj.weight", 0.0, "up_proj.weight is all zero"),
    (
      "model.layers.1.input_layernorm.weight",
      np.nan,
      "input_layernorm.weight has NaN",
    ),
  ],
)
def test_odd_weights_are_called_out(folder, mesh, caplog, name, value, message):
  # cases G2
  saved_models.edit(folder, lambda tensors: tensors[name].fill(value))
  loading.load_model(folder, mesh=mesh)
  assert message in caplog.text


@pytest.mark.parametrize(
  "fields,stored_theta,message",
  [
    ({}, 1e4, ""),
    # Stored before scaling, and in half precision.
    (
      {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "max_sequence_length": 8192,
      },
      1e4,
      "",
    ),
    ({}, 5e5, "rotary_emb.inv_freq: the RoPE table that the checkpoint stores"),
    (
      {"max_position_embeddings": 8000},
      1e4,
      r"default\(theta 10000\) turns once in 6,283 .* layers that see 8,000",
    ),
  ],
)
def test_an_odd_rope_table_is_called_out(
  folder, mesh, caplog, fields, stored_theta, message
):
  # cases F3, F7
  path = folder / "config.json"
  stored = json.loads(path.read_text())
  del stored["rope_parameters"]
  path.write_text(json.dumps(stored | fields))
  table = RopeConfig("default", stored_theta)
  frequencies = rope.inverse_frequencies(table, 8).astype(np.float16)
  name = "model.layers.0.self_attn.rotary_emb.inv_freq"
  saved_models.edit(folder, lambda tensors: tensors.update({name: frequencies}))
  loading.load_model(folder, mesh=mesh)
  assert re.search(message, caplog.text) if message else not caplog.text


def test_usual_weights_are_not_called_out(mesh, caplog):
  # Zero is Gemma's identity, and a bias may be 0.
  for name in ("gemma2", "qwen2"):
    config, source = saved_models.family_source(name)
    for tensor in source.shapes:
      if tensor.endswith(("norm.weight", ".bias")) and name == "gemma2":
        source.read(tensor)[...] = 0
      if tensor.endswith(".bias"):
        source.read(tensor)[...] = 0
    weights.load_parameters(source, config, dtype=np.float32, mesh=mesh)
  assert "looks wrong" not in caplog.text
