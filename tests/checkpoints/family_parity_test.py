"""Every family and RoPE type against transformers, live.

Beyond the original context and the window, in a batch of padded rows.
"""

import copy

import jax
import numpy as np
import pytest
import transformers
from flax import nnx
from support import family_cases
from support.checks import one_device_mesh

from longctx_jax.checkpoints import hf_folder, weights
from longctx_jax.checkpoints.facts import config_json

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

# One beyond the original context of 16, the context itself, far beyond both.
LENGTHS = (17, 16, 45)
PADDED = 48


def torch_model(fields, seed=0):
  """A random model far from uniform, in float32."""
  torch.manual_seed(seed)
  fields = copy.deepcopy(fields)
  config = transformers.AutoConfig.for_model(
    **fields, attn_implementation="eager", initializer_range=0.2
  )
  model = transformers.AutoModelForCausalLM.from_config(
    config, attn_implementation="eager"
  )
  with torch.no_grad():
    for parameter in model.parameters():
      if parameter.ndim == 1:
        parameter += 0.3 * torch.randn_like(parameter)
  return model.float().eval()


def torch_logits(model, ids):
  # Dynamic RoPE keeps the longest pass so far in the model.
  model = copy.deepcopy(model)
  with torch.no_grad():
    return model(torch.from_numpy(ids)[None]).logits[0].numpy()


def ragged_rows(vocab_size):
  rng = np.random.default_rng(0)
  ids = rng.integers(3, vocab_size, (len(LENGTHS), PADDED))
  ids *= np.arange(PADDED) < np.array(LENGTHS)[:, None]
  return ids


def load(folder):
  source = hf_folder.SafetensorsSource(folder)
  config = config_json.from_hf(source.config, source=str(folder))
  graphdef, params = weights.load_parameters(
    source, config, dtype=np.float32, mesh=one_device_mesh()
  )

  @jax.jit
  def logits(params, ids, lengths):
    model = nnx.merge(graphdef, params)
    return model.logits(model(ids, lengths=lengths))

  return config, lambda *inputs: np.asarray(logits(params, *inputs))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", family_cases.CASES)
def test_logits_are_those_of_transformers(name, tmp_path):
  """Cases F2 to F6, F8, D7; both schemas read, both written."""
  family_cases.skip_where_unread(name, transformers.__version__)
  fields = family_cases.CASES[name]
  model = torch_model(fields)
  model.save_pretrained(tmp_path)
  config, logits = load(tmp_path)
  # The published schema says the same as the one that was just written.
  assert config_json.from_hf(fields, source=name) == config
  ids = ragged_rows(config.vocab_size)
  got = logits(ids, np.array(LENGTHS, np.int32))
  fresh = torch_model(config_json.to_hf(config) | {"pad_token_id": 0})
  fresh.load_state_dict(model.state_dict())
  for row, length in enumerate(LENGTHS):
    expected = torch_logits(model, ids[row, :length])
    assert expected.std() > 0.3
    np.testing.assert_allclose(got[row, :length], expected, atol=1e-4)
    np.testing.assert_array_equal(
      torch_logits(fresh, ids[row, :length]), expected
    )


@pytest.mark.filterwarnings("ignore")
def test_the_text_of_a_model_that_sees_images(tmp_path):
  """A `gemma3` checkpoint: other tensor names, and tensors of no concern."""
  text = {
    name: value
    for name, value in family_cases.GEMMA3.items()
    # As published: what the class says anyway is left out.
    if name not in ("final_logit_softcapping", "rope_theta")
  }
  vision = dict(
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    image_size=28,
    patch_size=14,
  )
  fields = {
    "model_type": "gemma3",
    "text_config": text,
    "vision_config": vision,
    "mm_tokens_per_image": 4,
    "image_token_index": 263,
  }
  torch.manual_seed(0)
  model = transformers.AutoModelForImageTextToText.from_config(
    transformers.AutoConfig.for_model(**copy.deepcopy(fields)),
    attn_implementation="eager",
  ).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter += 0.2 * torch.randn_like(parameter)
  model.save_pretrained(tmp_path)
  config, logits = load(tmp_path)
  assert config_json.from_hf(fields, source="published") == config
  ids = ragged_rows(config.vocab_size - 2)
  got = logits(ids, np.array(LENGTHS, np.int32))
  for row, length in enumerate(LENGTHS):
    expected = torch_logits(model, ids[row, :length])
    np.testing.assert_allclose(got[row, :length], expected, atol=1e-4)
