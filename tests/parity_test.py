"""Live against torch, transformers and the paper's own code, longppl 0.3.0."""

import dataclasses
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

import longctx_jax as lc
from longctx_jax import demo, sharding, spans, testing
from longctx_jax.model import config as config_lib
from longctx_jax.model import rope
from longctx_jax.model.rope import RopeConfig

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tools"))
import torch_reference  # noqa: E402

ORIGINAL = 32
WINDOW = 5
# Well past both.
LENGTH = 151

LLAMA3 = RopeConfig(
  "llama3",
  500000.0,
  factor=8.0,
  low_freq_factor=1.0,
  high_freq_factor=4.0,
  original_max_position=ORIGINAL,
)
YARN = RopeConfig(
  "yarn",
  10000.0,
  factor=4.0,
  original_max_position=ORIGINAL,
  attention_factor=rope.yarn_attention_factor(4.0),
)
ROPES = {
  "default": RopeConfig("default", 10000.0),
  "linear": RopeConfig("linear", 10000.0, factor=3.0),
  "llama3": LLAMA3,
  "yarn": YARN,
  "yarn_whole": dataclasses.replace(YARN, truncate=False),
  "yarn_stated": dataclasses.replace(
    YARN, attention_factor=1.7, beta_fast=20.0, beta_slow=2.0
  ),
}
FAMILIES = {f"llama_{name}": dict(rope=table) for name, table in ROPES.items()}
FAMILIES |= {
  "llama_untied": dict(tied=False),
  "llama_biased": dict(qkv_bias=True, output_bias=True, mlp_bias=True),
  "mistral": dict(model_type="mistral", windows=(WINDOW, WINDOW), tied=False),
  "mistral_full": dict(model_type="mistral"),
  "qwen2": dict(model_type="qwen2", qkv_bias=True),
  "qwen2_mixed": dict(
    model_type="qwen2", qkv_bias=True, windows=(0, WINDOW), tied=False
  ),
  "qwen2_yarn": dict(model_type="qwen2", qkv_bias=True, rope=YARN),
  "qwen3": dict(model_type="qwen3", qk_norm=True, tied=False),
  "qwen3_biased": dict(
    model_type="qwen3", qk_norm=True, qkv_bias=True, output_bias=True
  ),
  "qwen3_mixed": dict(model_type="qwen3", qk_norm=True, windows=(0, WINDOW)),
}


def tiny(name):
  return dataclasses.replace(testing.tiny_config(), **FAMILIES[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers(name, mesh, rng, tmp_path):
  # cases F1, F6, F8, G2: in a batch, one row padded
  testing.RandomSource(tiny(name), seed=1).save(tmp_path)
  theirs, _ = torch_reference.load_folder(tmp_path)
  ours = lc.load_model(tmp_path, mesh=mesh)
  ids = rng.integers(0, 256, (2, LENGTH))
  real = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 20]])
  with torch.no_grad():
    expected = theirs(
      torch.from_numpy(ids), attention_mask=torch.from_numpy(real).long()
    ).logits.numpy()
  logits = np.asarray(ours.logits(jnp.asarray(ids)))
  assert expected.std() > 0.5
  np.testing.assert_allclose(logits[real], expected[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_survives_transformers(name, tmp_path):
  # cases F2, F3: what transformers writes reads back to the same facts
  config = tiny(name)
  testing.RandomSource(config, seed=1).save(tmp_path / "ours")
  theirs = transformers.AutoConfig.from_pretrained(str(tmp_path / "ours"))
  assert config_lib.from_hf(theirs.to_dict(), source=name) == config




@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("schema", ["new", "old", "oldest"])
@pytest.mark.parametrize("name", ROPES)
def test_rope_tables_are_those_of_transformers(name, schema, head_dim):
  # cases F1, F2, F4, F6, at the sizes of real models
  table = dataclasses.replace(
    ROPES[name],
    theta=500000.0,
    original_max_position=8192 if ROPES[name].original_max_position else 0,
  )
  config = testing.tiny_config(
    rope=table, head_dim=head_dim, max_position=131072
  )
  fields = config_lib.to_hf(config)
  if schema == "new":
    del fields["rope_theta"], fields["rope_scaling"]
  else:
    del fields["rope_parameters"]
  if schema == "oldest" and fields["rope_scaling"]:
    fields["rope_scaling"]["type"] = fields["rope_scaling"].pop("rope_type")
  if name == "yarn" and fields.get("rope_scaling"):
    # Where none is stated, it follows from the factor.
    del fields["rope_scaling"]["attention_factor"]
  theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
    transformers.LlamaConfig.from_dict(fields)
  )
  ours = config_lib.from_hf(fields, source=name).rope
  assert ours == table
  np.testing.assert_array_max_ulp(
    rope.inverse_frequencies(ours, head_dim), theirs.inv_freq.numpy(), 4
  )
  np.testing.assert_allclose(
    ours.attention_factor, theirs.attention_scaling, rtol=1e-7
  )
  positions = np.array([[0, 1, 257, 4095, 8193, 131071]])
  cos, sin = theirs(torch.zeros(1), torch.from_numpy(positions))
  half = head_dim // 2
  for mine, other in zip(
    rope.rope_table(ours, head_dim, jnp.asarray(positions)),
    (cos, sin),
    strict=True,
  ):
    print(name, schema, head_dim, np.abs(mine-other.numpy()[...,:half]).max())
    np.testing.assert_allclose(mine, other.numpy()[..., :half], atol=1e-3)


def test_every_rope_type_is_compared():
  assert {table.rope_type for table in ROPES.values()} == set(rope.ROPE_TYPES)
