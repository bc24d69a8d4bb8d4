"""Live against torch, transformers and the paper's own code, longppl 0.3.0."""

import dataclasses
import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
import transformers
from support import family_cases

import longctx_jax as lc
from longctx_jax import testing
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.gguf import tensors as tensors_lib
from longctx_jax.experiments import demo
from longctx_jax.model import rope
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper import spans

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
sys.path.append(str(pathlib.Path(__file__).parents[1] / "tools"))
import torch_reference  # noqa: E402

# The machine's cores are the test processes'.
torch.set_num_threads(1)

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
FAMILIES = {
  f"llama_{name}": dict(ropes=(table,)) for name, table in ROPES.items()
}
FAMILIES |= {
  "llama_untied": dict(tied=False),
  "llama_biased": dict(qkv_bias=True, output_bias=True, mlp_bias=True),
  "mistral": dict(model_type="mistral", windows=(WINDOW, WINDOW), tied=False),
  "mistral_full": dict(model_type="mistral"),
  "qwen2": dict(model_type="qwen2", qkv_bias=True),
  "qwen2_mixed": dict(
    model_type="qwen2", qkv_bias=True, windows=(0, WINDOW), tied=False
  ),
  "qwen2_yarn": dict(model_type="qwen2", qkv_bias=True, ropes=(YARN,)),
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
  assert config_json.from_hf(theirs.to_dict(), source=name) == config
  # Nor does an older reader, which knows of no types of layers, go astray.
  fields = config_json.to_hf(config)
  fields.pop("layer_types", None)
  theirs = type(theirs).from_dict(fields)
  assert config_json.from_hf(theirs.to_dict(), source=name) == config


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
    ropes=(table,), head_dim=head_dim, max_position=131072
  )
  fields = config_json.to_hf(config)
  if schema == "new":
    del fields["rope_theta"], fields["rope_scaling"]
  else:
    del fields["rope_parameters"]
  if schema == "oldest" and fields["rope_scaling"]:
    fields["rope_scaling"].pop("rope_type", None)
  if name == "yarn" and fields.get("rope_scaling"):
    # Where none is stated, it follows from the factor.
    del fields["rope_scaling"]["attention_factor"]
  theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(
    transformers.LlamaConfig.from_dict(fields)
  )
  ours = config_json.from_hf(fields, source=name).rope
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
  """Those that depend on length are in family_parity_test; no EABF there."""
  compared = {table.rope_type for table in ROPES.values()}
  compared |= {
    table.rope_type
    for name, fields in family_cases.CASES.items()
    for table in config_json.from_hf(fields, source=name).ropes
  }
  assert compared == set(rope.ROPE_TYPES) - {"eabf"}


def save_other_tokenizer(folder, text):
  """Puts a tokenizer with merges, learnt from the text, in a folder."""
  tokenizer = testing.byte_tokenizer()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=400,
    special_tokens=[testing.BOS],
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator([text], trainer)
  tokenizer.save(str(folder / "tokenizer.json"))


def find_both(
  text, evaluator, torch_model, torch_evaluator, folder, **settings
):
  """Key tokens of ours and the reference's run, compared as far as both go.

  torch_model and torch_evaluator are (model, tokenizer).
  """
  run = torch_reference.run_reference(
    text, *torch_model, *torch_evaluator, **settings
  )
  keys = lc.find_key_tokens(text, evaluator, **settings)
  ids = evaluator.tokenizer.encode(text, add_special_tokens=True).ids
  np.testing.assert_array_equal(ids, run.ids)
  for log_probs, nll in (
    (keys.long_log_probs, run.long_nll),
    (keys.short_log_probs, run.short_nll),
  ):
    np.testing.assert_allclose(-log_probs, nll, rtol=0, atol=5e-4)
  # Precondition: no token so near a threshold that rounding decides.
  alpha, beta = settings["alpha"], settings["beta"]
  gain = run.short_nll - run.long_nll
  near_beta = np.abs(run.long_nll + beta)[gain > alpha - 1e-3]
  assert min(np.nanmin(np.abs(gain - alpha)), near_beta.min()) > 1e-5
  targets = (gain > alpha) & (run.long_nll < -beta)
  np.testing.assert_array_equal(keys.key_mask, targets)
  keys.to_slices(folder / "ours.txt")
  (folder / "theirs.txt").write_text(run.slices)
  if text.isascii():
    assert (folder / "ours.txt").read_text() == run.slices
  # The reference keeps the repeated spans of one character's bytes apart.
  np.testing.assert_array_equal(
    keys.spans,
    spans.merge_adjacent(spans.read_slices(folder / "theirs.txt")),
  )
  return keys, run


def key_targets(keys, model, text):
  """Key targets of a model, and the characters of its targets."""
  encoding = model.tokenizer.encode(text, add_special_tokens=False)
  offsets = encoding.offsets[1:]
  contained = spans.project(keys.spans, offsets, policy="contained")
  return np.flatnonzero(contained).tolist(), offsets


def check_result(keys, run, model, text):
  """Key targets, LongPPL and PPL of a model under test."""
  assert key_targets(keys, model, text)[0] == run.targets
  result = lc.compute_longppl(text, model, keys)
  assert result.n_key_tokens == len(run.targets) >= 50
  np.testing.assert_allclose(result.longppl, run.longppl, rtol=2e-5)
  np.testing.assert_allclose(result.ppl, run.ppl, rtol=2e-5)


ASCII = testing.synthetic_document(5, num_words=230)
MULTIBYTE = "".join(
  char if i % 9 else f"{char}{'é🙂中'[i % 3]}"
  for i, char in enumerate(ASCII[:1000])
)
# Ids are bytes here; two of these windows reach further than the short context.
SIZES = dict(short_len=100, stride=60)
WIDE = dict(model_type="mistral", windows=(90, 90))


@pytest.mark.parametrize(
  "changes,add_bos,text",
  [
    (FAMILIES["llama_llama3"], False, ASCII),
    (FAMILIES["llama_llama3"], True, MULTIBYTE),
    (WIDE, True, ASCII),
    (FAMILIES["qwen2"], False, MULTIBYTE),
    (FAMILIES["qwen3"], False, ASCII),
  ],
  ids=["llama", "llama_bos", "mistral_bos", "qwen2", "qwen3"],
)
def test_one_model_gets_the_references_values(
  changes, add_bos, text, mesh, tmp_path
):
  # cases A5, C9; a BOS is read by the evaluator, and not by the model
  source = testing.RandomSource(testing.tiny_config(**changes), seed=4)
  source.save(tmp_path, add_bos=add_bos)
  ours = lc.load_model(tmp_path, mesh=mesh)
  theirs = torch_reference.load_folder(tmp_path)
  keys, run = find_both(
    text, ours, theirs, theirs, tmp_path, **SIZES, alpha=0.1, beta=-7.0
  )
  check_result(keys, run, ours, text)


def two_models(text, folder, mesh):
  """Ours and theirs: a model with a tokenizer of its own, and an evaluator."""
  folders = [folder / "model", folder / "evaluator"]
  config = testing.tiny_config(vocab_size=401, **FAMILIES["qwen3"])
  testing.RandomSource(config, seed=6).save(folders[0])
  save_other_tokenizer(folders[0], text)
  testing.RandomSource(testing.tiny_config(), seed=4).save(folders[1])
  return (
    [lc.load_model(folder, mesh=mesh) for folder in folders],
    [torch_reference.load_folder(folder) for folder in folders],
  )


# Low, so that spans are long enough to hold tokens of several bytes.
LOW = dict(alpha=-0.1, beta=-7.0)


def test_another_tokenizer_gets_the_references_values(mesh, tmp_path):
  # cases A7
  (model, evaluator), theirs = two_models(ASCII, tmp_path, mesh)
  keys, run = find_both(ASCII, evaluator, *theirs, tmp_path, **SIZES, **LOW)
  check_result(keys, run, model, ASCII)


def test_only_tokens_over_split_characters_can_be_key_here_alone(
  mesh, tmp_path
):
  # cases A5: the reference does not merge spans that repeat a character.
  text = MULTIBYTE
  (model, evaluator), theirs = two_models(text, tmp_path, mesh)
  keys, run = find_both(text, evaluator, *theirs, tmp_path, **SIZES, **LOW)
  targets, offsets = key_targets(keys, model, text)
  assert len(run.targets) >= 50 and set(run.targets) <= set(targets)
  alone = [
    text[slice(*offsets[t])] for t in sorted(set(targets) - set(run.targets))
  ]
  assert alone and not any(characters.isascii() for characters in alone)


def test_smollm2_reads_and_scores_as_on_torch(mesh, tmp_path):
  path = demo.embedded_model()
  theirs = torch_reference.load_gguf(path)
  source = tensors_lib.GgufSource(path)
  tensors = theirs[0].state_dict()
  for name in source.shapes:
    np.testing.assert_array_equal(source.read(name), tensors[name])
  ours = lc.load_model(path, mesh=mesh)
  text = testing.synthetic_document(2, num_words=1500)
  offsets = ours.tokenizer.encode(text, add_special_tokens=False).offsets
  text = text[: offsets[767, 1]]
  keys, run = find_both(
    text,
    ours,
    theirs,
    theirs,
    tmp_path,
    short_len=192,
    stride=96,
    alpha=1.0,
    beta=-3.0,
  )
  check_result(keys, run, ours, text)
