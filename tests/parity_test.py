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
    rope.inverse_frequencies(ours, head_dim), theirs.inv_freq.numpy(), 2
  )
  np.testing.assert_allclose(
    ours.attention_factor, theirs.attention_scaling, rtol=1e-7
  )
  positions = np.array([[0, 1, 257, 4095, 8193]])
  expected = theirs(torch.zeros(1), torch.from_numpy(positions))
  table = rope.rope_table(ours, head_dim, jnp.asarray(positions))
  for mine, other in zip(table, expected, strict=True):
    half = other.numpy()[..., : head_dim // 2]
    np.testing.assert_allclose(mine, half, atol=1e-3)


def test_every_rope_type_is_compared():
  assert {table.rope_type for table in ROPES.values()} == set(rope.ROPE_TYPES)


def save_model(folder, config, *, seed, add_bos=False):
  testing.RandomSource(config, seed=seed).save(folder, add_bos=add_bos)
  return folder


def save_other_tokenizer(folder, text):
  """Puts a tokenizer with merges, learnt from the text, in place."""
  tokenizer = testing.byte_tokenizer()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=400,
    special_tokens=[testing.BOS],
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator([text], trainer)
  tokenizer.save(str(folder / "tokenizer.json"))


ASCII = testing.synthetic_document(5, num_words=230)
OTHER = "".join(
  c if i % 7 else c + "é🙂中"[i % 3] for i, c in enumerate(ASCII[:900])
)


def check_against_reference(
  text, model, evaluator, torch_model, torch_evaluator, **thresholds
):
  """Everything of both, for one document; returns theirs and our result."""
  sizes = {name: thresholds.pop(name) for name in ("short_len", "stride")}
  theirs = torch_reference.run_reference(
    text, *torch_model, *torch_evaluator, **sizes, **thresholds
  )
  keys = lc.find_key_tokens(text, evaluator, **sizes, **thresholds)
  ids = evaluator.tokenizer.encode(text, add_special_tokens=True).ids
  np.testing.assert_array_equal(ids, theirs.ids)
  np.testing.assert_allclose(
    -keys.long_log_probs, theirs.long_nll, rtol=0, atol=5e-4
  )
  np.testing.assert_allclose(
    -keys.short_log_probs, theirs.short_nll, rtol=0, atol=5e-4
  )
  # Precondition: no token so near a threshold that rounding may decide.
  gain = theirs.short_nll - theirs.long_nll
  margins = [
    np.nanmin(np.abs(gain - thresholds["alpha"])),
    np.abs(theirs.long_nll + thresholds["beta"]).min(),
  ]
  assert min(margins) > 2e-5, margins
  result = lc.compute_longppl(text, model, keys)
  offsets = model.tokenizer.encode(text, add_special_tokens=False).offsets
  targets = spans.project(keys.spans, offsets[1:], policy="contained")
  assert np.flatnonzero(targets).tolist() == theirs.targets
  assert result.n_key_tokens == len(theirs.targets) >= 50
  np.testing.assert_allclose(result.longppl, theirs.longppl, rtol=2e-5)
  np.testing.assert_allclose(result.ppl, theirs.ppl, rtol=2e-5)
  return theirs, keys


@pytest.mark.parametrize("text", [ASCII, OTHER], ids=["ascii", "multibyte"])
@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("name", ["llama_llama3", "mistral", "qwen2", "qwen3"])
def test_key_tokens_are_the_references(name, add_bos, text, mesh, tmp_path):
  # cases A5, C9: the evaluator reads a BOS, the model under test never
  folder = save_model(tmp_path, tiny(name), seed=4, add_bos=add_bos)
  ours, theirs = (
    lc.load_model(folder, mesh=mesh),
    torch_reference.load_folder(folder),
  )
  run, keys = check_against_reference(
    text,
    ours,
    ours,
    theirs,
    theirs,
    short_len=100,
    stride=30,
    alpha=0.03,
    beta=-7.0,
  )
  keys.to_slices(tmp_path / "slices.txt")
  slices = spans.read_slices(tmp_path / "slices.txt").tolist()
  print("KEYS", len(run.targets))
