"""How far published models reach, by what their configs state."""

import copy
import json

import pytest
from support import family_cases, published_models
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.checkpoints import loading
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.training.context import rope_override

PUBLISHED = {
  name: fields for name, (_, fields) in published_models.MODELS.items()
}


def yarn(factor, original, **more):
  return {
    "type": "yarn",
    "factor": factor,
    "original_max_position_embeddings": original,
    **more,
  }


def linear(factor):
  return {"type": "linear", "factor": factor}


# name -> (published fields, changes, context)
CONTEXTS = {
  "Llama-2-7b": ("Llama-2-7b-hf", {}, 4096),
  "CodeLlama-7b": ("CodeLlama-7b-hf", {}, 16384),
  "Yi-6B-200K": ("Yi-6B-200K", {}, 200000),
  "FILM-7B": ("FILM-7B", {}, 32768),
  "Mistral-7B-v0.1": ("Mistral-7B-v0.1", {}, 32768),
  # Llama 3 states its length after the stretch.
  "Llama-3.1-8B": ("Llama-3.1-8B", {}, 131072),
  "Llama-3.2-1B": ("Llama-3.2-1B", {}, 131072),
  "Qwen3-8B": ("Qwen3-8B", {}, 40960),
  # The documented YaRN of both states the length before it.
  "Qwen2.5-0.5B, YaRN": (
    "Qwen2.5-0.5B",
    {"rope_scaling": yarn(4.0, 32768)},
    131072,
  ),
  "Qwen3-8B, YaRN": ("Qwen3-8B", {"rope_scaling": yarn(4.0, 32768)}, 131072),
  "Yarn-Llama-2-7b-64k": ("Yarn-Llama-2-7b-64k", {}, 65536),
  "Yarn-Mistral-7b-128k": ("Yarn-Mistral-7b-128k", {}, 131072),
  "like DeepSeek-V2": (
    "Llama-2-7b-hf",
    {
      "max_position_embeddings": 163840,
      "rope_scaling": yarn(40, 4096, mscale=0.707, mscale_all_dim=0.707),
    },
    163840,
  ),
  "Phi-3-mini-128k": ("Phi-3-mini-128k-instruct", {}, 131072),
  "Phi-3-mini-4k": ("Phi-3-mini-4k-instruct", {}, 4096),
  "vicuna-7b-v1.5-16k": (
    "Llama-2-7b-hf",
    {"rope_scaling": linear(4.0), "max_sequence_length": 16384},
    16384,
  ),
  "longchat-7b-v1.5-32k": (
    "Llama-2-7b-hf",
    {"rope_scaling": linear(8.0), "max_sequence_length": 32768},
    32768,
  ),
  "linear, the tokenizer's length": (
    "Llama-2-7b-hf",
    {"rope_scaling": linear(4.0), "model_max_length": 16384},
    16384,
  ),
  "linear, an endless tokenizer": (
    "Llama-2-7b-hf",
    {"rope_scaling": linear(4.0), "model_max_length": 1e30},
    4096,
  ),
  "dynamic": (
    "Llama-2-7b-hf",
    {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    16384,
  ),
  "Gemma-3-1b": ("gemma-3-1b-pt", {}, 32768),
  "Gemma-3-4b, text": (
    "gemma-3-1b-pt",
    {
      "max_position_embeddings": 131072,
      "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    131072,
  ),
}


def fields_of(name):
  published, changes, context = CONTEXTS[name]
  fields = copy.deepcopy(PUBLISHED[published]) | changes
  scaling = fields.get("rope_scaling") or {}
  for factor in {"short_factor", "long_factor"} & set(scaling):
    scaling[factor] = [1.0] * scaling[factor]
  return fields, context


@pytest.mark.parametrize("name", CONTEXTS)
def test_a_model_reaches_as_far_as_its_table(name):
  fields, context = fields_of(name)
  config = config_json.from_hf(fields, source=name)
  assert config.max_position == context
  written = config_json.to_hf(config)
  assert config_json.from_hf(written, source="written") == config


def test_a_stretch_whose_end_no_field_states_is_said(tmp_path, caplog):
  said = {
    name
    for name in CONTEXTS
    if config_json.doubtful_context(fields_of(name)[0])
  }
  assert said == {"linear, an endless tokenizer"}
  fields, _ = fields_of("linear, an endless tokenizer")
  assert config_json.doubtful_context(fields) == (
    "RoPE is stretched x 4: if 4,096 is the original length, give --max_length "
    "16384"
  )
  # What we write states it.
  config = config_json.from_hf(fields, source="")
  assert not config_json.doubtful_context(config_json.to_hf(config))
  # A tokenizer beside the weights may, too.
  testing.RandomSource(testing.tiny_config(), seed=0).save(tmp_path)
  path = tmp_path / "config.json"
  stated = json.loads(path.read_text())
  del stated["rope_parameters"]
  path.write_text(json.dumps(stated | {"rope_scaling": linear(2.0)}))
  model = loading.load_model(tmp_path, mesh=one_device_mesh())
  assert model.config.max_position == 4096
  assert "give --max_length 8192" in caplog.text
  caplog.clear()
  path = tmp_path / "tokenizer_config.json"
  stated = json.loads(path.read_text()) | {"model_max_length": 8192}
  path.write_text(json.dumps(stated))
  model = loading.load_model(tmp_path, mesh=one_device_mesh())
  assert model.config.max_position == 8192
  assert "max_length" not in caplog.text


def test_a_trained_table_reaches_as_far_as_its_export():
  config = config_json.from_hf(family_cases.CASES["llama"], source="")
  for table in (
    dict(rope_type="yarn", factor=4.0, original_max_position=2048),
    dict(rope_type="dynamic", factor=4.0, max_position=2048),
  ):
    made = rope_override(config, **table)
    assert made.max_position == 8192
    assert config_json.from_hf(config_json.to_hf(made), source="") == made
