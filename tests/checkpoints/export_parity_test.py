"""What we export, in stock transformers."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from support import family_cases

from longctx_jax import testing
from longctx_jax.checkpoints import convert, loading
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import sharding

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

# Every family, and each way to get there.
CASES = [
  ("llama, llama3", "hf"),
  ("mistral, yarn", "hf"),
  ("mixtral", "orbax"),
  ("qwen2", "hf"),
  ("qwen3", "hf"),
  ("qwen3_moe", "hf"),
  ("phi3, longrope", "hf"),
  ("gemma2", "orbax"),
  ("gemma3_text", "hf"),
]


@pytest.mark.parametrize("name,fmt", CASES)
def test_an_exported_folder_has_our_logits_in_transformers(name, fmt, tmp_path):
  """Cases G5, G9, F3: sharded, with index, tokenizer and generation config."""
  family_cases.skip_where_unread(name, transformers.__version__)
  fields = family_cases.CASES[name]
  config = config_json.from_hf(fields, source=name)
  testing.RandomSource(config, seed=4).save(tmp_path / "in")
  (tmp_path / "in" / "config.json").write_text(json.dumps(fields))
  generation = {"bos_token_id": 1, "eos_token_id": 2}
  (tmp_path / "in" / "generation_config.json").write_text(
    json.dumps(generation)
  )
  target = str(tmp_path / "out")
  if fmt == "hf":
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    model = loading.load_model(tmp_path / "in", mesh=mesh)
    convert.write_model(
      model, target, fmt="hf", origin=tmp_path / "in", max_shard_bytes=40_000
    )
  else:
    convert.convert(str(tmp_path / "in"), str(tmp_path / "o"), fmt="orbax")
    convert.convert(str(tmp_path / "o"), target, fmt="hf", dtype="bfloat16")
    model = loading.load_model(target, dtype=jnp.float32)
  stated = transformers.AutoConfig.from_pretrained(target).dtype
  assert stated == (torch.float32 if fmt == "hf" else torch.bfloat16)
  # In float32 from the start: Gemma rounds a constant to the first dtype.
  theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
    target,
    attn_implementation="eager",
    dtype=torch.float32,
    output_loading_info=True,
  )
  assert not any(report.values()), report
  assert theirs.generation_config.eos_token_id == 2
  tokenizer = transformers.AutoTokenizer.from_pretrained(target)
  assert tokenizer("ab")["input_ids"] == [
    int(i) for i in model.tokenizer.encode("ab", add_special_tokens=True).ids
  ]
  ids = np.random.default_rng(0).integers(3, 256, (8, 24))
  with torch.no_grad():
    expected = theirs(torch.from_numpy(ids)).logits.numpy()
  np.testing.assert_allclose(model.logits(ids), expected, atol=1e-4)
