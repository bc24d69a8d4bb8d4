"""Tiny models, a byte tokenizer and synthetic documents: for tests and trials.

Nothing here needs the network or a file.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from safetensors.numpy import save_file

from longctx_jax.checkpoints import tensor_map, weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import parameters, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.model.rope import RopeConfig
from longctx_jax.text.tokenizer import TextTokenizer

BOS = "<bos>"


def byte_tokenizer(*, add_bos: bool = False) -> tokenizers.Tokenizer:
  """A real byte-level tokenizer without merges: 256 bytes and a BOS.

  Args:
    add_bos: whether a default call puts the BOS first.
  """
  alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
  tokenizer = tokenizers.Tokenizer(
    tokenizers.models.BPE({char: i for i, char in enumerate(alphabet)}, [])
  )
  byte_level = dict(add_prefix_space=False, use_regex=False)
  tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(**byte_level)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  tokenizer.add_special_tokens([BOS])
  if add_bos:
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
      single=f"{BOS} $A",
      special_tokens=[(BOS, tokenizer.token_to_id(BOS))],
    )
  return tokenizer


def tiny_config(**changes) -> ModelConfig:
  """A two-layer Llama over bytes; `changes` replace fields.

  The sizes differ from each other, so that a mix-up of axes cannot pass.
  """
  config = ModelConfig(
    model_type="llama",
    vocab_size=263,
    embed_dim=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    mlp_dim=56,
    norm_eps=1e-6,
    max_position=4096,
    ropes=(RopeConfig("default", 10000.0),),
    tied=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    windows=(0, 0),
  )
  return dataclasses.replace(config, **changes)


def tiny_model(
  config: ModelConfig | None = None,
  *,
  seed: int = 0,
  mesh: jax.sharding.Mesh | None = None,
  add_bos: bool = False,
  dtype=jnp.float32,
) -> LoadedModel:
  """A random model that is not near uniform, with the byte tokenizer."""
  config = config or tiny_config()
  mesh = mesh or sharding.make_mesh({"fsdp": -1})
  source = RandomSource(config, seed=seed)
  graphdef, params = weights.load_parameters(
    source, config, dtype=dtype, mesh=mesh
  )
  return LoadedModel(
    name=f"tiny-{seed}",
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=TextTokenizer(byte_tokenizer(add_bos=add_bos), name="bytes"),
    mesh=mesh,
    checksum=weights.checksum(source),
    revision="",
    weight_format=source.weight_format,
  )


class RandomSource:
  """Random tensors under Hugging Face names: a checkpoint made up."""

  path = "random"
  weight_format = "random F32"

  def __init__(self, config: ModelConfig, *, seed: int):
    self.config = config_json.to_hf(dataclasses.replace(config, sink_len=0))
    shapes = parameters.parameter_shapes(config)
    table = tensor_map.parameter_table(config, shapes)
    self.shapes = weights.tensor_shapes(table, shapes)
    rng = np.random.default_rng(seed)
    self._tensors = {
      name: np.empty(shape, np.float32) for name, shape in self.shapes.items()
    }
    for name, refs in table.items():
      for ref in refs:
        target = self._tensors[ref.tensor][slice(*(ref.rows or (None,)))]
        noise = rng.normal(size=target.shape).astype(np.float32)
        if name.endswith("scale"):
          noise = (not config.norm_plus_one) + 0.1 * noise
        elif name.endswith("bias"):
          noise *= 0.1
        else:
          noise /= np.sqrt(target.shape[-1])
        target[...] = noise

  def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
    """The tensor, or a part of it, float32."""
    return self._tensors[name][index]

  def raw(self, name: str) -> np.ndarray:
    """Its bits."""
    return self._tensors[name].view(np.uint32)

  def save(self, folder: str | pathlib.Path, *, add_bos: bool = False) -> None:
    """Writes a Hugging Face folder: config, weights, byte tokenizer."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(self.config))
    save_file(self._tensors, folder / "model.safetensors")
    byte_tokenizer(add_bos=add_bos).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
      json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS}
      )
    )


def synthetic_document(seed: int, *, num_words: int) -> str:
  """English-like text in which names and numbers come back much later."""
  rng = np.random.default_rng(seed)
  consonants, vowels = list("bcdfghklmnprstvz"), list("aeiou")

  def word():
    count = rng.integers(1, 4)
    return "".join(
      rng.choice(consonants) + rng.choice(vowels) for _ in range(count)
    )

  common = [word() for _ in range(60)]
  tensor_map = [f"{word().title()}{rng.integers(100, 999)}" for _ in range(12)]
  words = [
    str(rng.choice(tensor_map if rng.random() < 0.1 else common))
    for _ in range(num_words)
  ]
  sentences = [
    " ".join(words[i : i + 11]).capitalize() + "."
    for i in range(0, num_words, 11)
  ]
  return " ".join(sentences)
