"""Where transformers 4 and 5 read the same files differently; needs 4.57.

The parity groups of tests/checkpoints run with it too: `make
test-transformers4`.
"""

import json

import numpy as np
import pytest
import tokenizers
import transformers
from support import family_cases

from longctx_jax import testing
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import rope
from longctx_jax.text.tokenizer import TextTokenizer

pytestmark = [
  pytest.mark.transformers4,
  pytest.mark.skipif(
    not transformers.__version__.startswith("4."),
    reason=f"transformers {transformers.__version__} is not 4",
  ),
  pytest.mark.filterwarnings("ignore"),
]


def write_tokenizer(folder, post, **stated):
  tokenizer = testing.byte_tokenizer(add_bos=post == "bos")
  if post == "bytes":
    tokenizer.post_processor = tokenizers.processors.ByteLevel()
  tokenizer.save(str(folder / "tokenizer.json"))
  stated |= {"bos_token": testing.BOS, "eos_token": testing.BOS}
  (folder / "tokenizer_config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("post", ["", "bytes", "bos"])
@pytest.mark.parametrize(
  ("kind", "follows_config"),
  [
    ("LlamaTokenizerFast", True),
    ("GemmaTokenizerFast", True),
    ("PreTrainedTokenizerFast", False),
    ("Qwen2TokenizerFast", False),
  ],
)
def test_who_follows_the_config_and_who_the_post_processor(
  tmp_path, caplog, kind, follows_config, post, stated
):
  """We follow the post-processor, as 5 does, and say where 4 may not."""
  write_tokenizer(tmp_path, post, tokenizer_class=kind, add_bos_token=stated)
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
  ours = TextTokenizer.from_folder(tmp_path)
  has_bos = theirs("a")["input_ids"][0] == ours.vocab_size - 1
  assert has_bos == (stated if follows_config else post == "bos")
  assert (ours.leading_bos is not None) == (post == "bos")
  differ = stated != (post == "bos")
  assert ("is followed, as transformers 5" in caplog.text) == differ


@pytest.mark.parametrize("name", family_cases.CASES)
def test_what_we_write_states_the_same_facts(name, tmp_path):
  """A config.json of ours, read and written by 4, is the same model."""
  family_cases.skip_where_unread(name, transformers.__version__)
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  theirs = transformers.AutoConfig.for_model(**config_json.to_hf(config))
  theirs.save_pretrained(tmp_path)
  again = json.loads((tmp_path / "config.json").read_text())
  assert config_json.from_hf(again, source=name) == config


def test_a_full_dump_of_a_config_is_read():
  """`to_dict` of 4 states how to generate, too."""
  for kind in ("llama", "qwen2", "phi3", "gemma2", "mistral"):
    fields = transformers.AutoConfig.for_model(kind).to_dict()
    fields["head_dim"] = fields.get("head_dim") or 64
    config = config_json.from_hf(fields, source=kind)
    assert config.max_position == fields["max_position_embeddings"]


@pytest.mark.parametrize("kind", ["linear", "dynamic", "eabf"])
def test_old_readers_find_their_two_fields(kind):
  """transformers before 4.43 refuses any third."""
  table = dict(factor=2.0)
  if kind != "linear":
    table["original_max_position"] = 64
  config = testing.tiny_config(
    ropes=(rope.RopeConfig(kind, 1e4, **table),), max_position=128
  )
  written = config_json.to_hf(config)
  assert set(written["rope_scaling"]) == {"type", "factor"}
  assert written["rope_scaling"]["factor"] == 2.0
  if kind == "eabf":  # Of the paper alone.
    return
  rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
  del written["rope_parameters"]
  found = rotary(transformers.LlamaConfig.from_dict(written)).inv_freq.numpy()
  expected = rope.inverse_frequencies(config.rope, config.head_dim)
  np.testing.assert_allclose(found, expected, rtol=1e-6)
