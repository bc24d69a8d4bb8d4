import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from longctx_jax import loading, testing
from longctx_jax.model import hf, partition


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  return tmp_path / "m"


def edit(folder, change):
  tensors = load_file(folder / "model.safetensors")
  change(tensors)
  save_file(tensors, folder / "model.safetensors")


def test_a_saved_model_loads_to_the_same_logits(folder, mesh):
  ids = np.arange(20)[None]
  made = testing.tiny_model(seed=3, mesh=mesh)
  loaded = loading.load_model(folder, mesh=mesh)
  np.testing.assert_array_equal(made.logits(ids), loaded.logits(ids))
  assert made.checksum == loaded.checksum
  assert loaded.tokenizer.encode("ab", add_special_tokens=True).ids.size == 2


def test_shards_load_to_the_same(folder, mesh):
  whole = loading.load_model(folder, mesh=mesh)
  tensors = load_file(folder / "model.safetensors")
  names = sorted(tensors)
  parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
  for file, own in parts.items():
    save_file({name: tensors[name] for name in own}, folder / file)
  (folder / "model.safetensors").unlink()
  index = {name: file for file, own in parts.items() for name in own}
  (folder / "model.safetensors.index.json").write_text(
    json.dumps({"weight_map": index})
  )
  assert loading.load_model(folder, mesh=mesh).checksum == whole.checksum
  (folder / "b.safetensors").unlink()
  with pytest.raises(FileNotFoundError, match="missing b.safetensors"):
    loading.load_model(folder, mesh=mesh)


@pytest.mark.parametrize(
  "change,message",
  [
    (
      lambda t: t.pop("model.norm.weight"),
      "missing tensors: model.norm.weight",
    ),
    (
      lambda t: t.update(extra=np.zeros(2, np.float32)),
      "does not explain: extra",
    ),
    (
      lambda t: t.update({"model.norm.weight": np.ones(41, np.float32)}),
      r"misshapen tensors: model.norm.weight is \(41,\), not \(40,\)",
    ),
  ],
)
def test_wrong_tensors_are_named(folder, mesh, change, message):
  # cases G1
  edit(folder, change)
  with pytest.raises(ValueError, match=message):
    loading.load_model(folder, mesh=mesh)


def test_a_tied_head_may_be_stored_twice(folder, mesh):
  # cases G2
  edit(
    folder,
    lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}),
  )
  loading.load_model(folder, mesh=mesh)


def test_an_empty_head_is_called_out(folder, mesh, caplog):
  # cases G2
  edit(folder, lambda t: t["model.embed_tokens.weight"].fill(0))
  loading.load_model(folder, mesh=mesh)
  assert "output head looks empty" in caplog.text


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(folder, mesh):
  # cases G8
  config = testing.tiny_config(vocab_size=200)
  testing.RandomSource(config, seed=3).save(folder)
  with pytest.raises(ValueError, match="ids up to 256, the model 200"):
    loading.load_model(folder, mesh=mesh)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_parameters_have_the_dtype_asked_for(folder, mesh, dtype):
  model = loading.load_model(folder, mesh=mesh, dtype=dtype)
  kinds = {leaf.dtype for leaf in hf.flatten(model.params).values()}
  assert kinds == {jnp.dtype(dtype)} and model.dtype == jnp.dtype(dtype).name
  # Identity is of what is stored, not of how it was loaded.
  assert model.checksum == loading.load_model(folder, mesh=mesh).checksum


def test_checksum_is_the_formula_and_sees_permuted_rows(rng):
  bits = rng.integers(0, 2**32, (3, 70_001), dtype=np.uint32)
  flat = [int(b) for b in bits.reshape(-1)]
  expected = sum(b * (1 + i % 65521) for i, b in enumerate(flat)) % 2**32
  assert hf.tensor_checksum(bits) == expected
  assert hf.tensor_checksum(bits[::-1].copy()) != expected
  assert (
    hf.tensor_checksum(bits.astype(np.uint8))
    == sum((b % 256) * (1 + i % 65521) for i, b in enumerate(flat)) % 2**32
  )


def test_no_folder_no_hub_is_a_clear_error(tmp_path):
  # cases L1
  with pytest.raises(FileNotFoundError, match="Copy its config.json"):
    loading.load_model("nobody/nothing")
  with pytest.raises(FileNotFoundError, match="no such file or folder"):
    loading.load_model(tmp_path / "absent")
  (tmp_path / "empty").mkdir()
  with pytest.raises(FileNotFoundError, match="no config.json"):
    loading.load_model(tmp_path / "empty")


@pytest.mark.parametrize(
  "changes",
  [
    {},
    dict(tied=False),
    dict(qkv_bias=True, output_bias=True, mlp_bias=True),
    dict(model_type="qwen3", qk_norm=True),
  ],
)
def test_every_parameter_has_one_rule_and_every_rule_a_parameter(changes):
  from longctx_jax import sharding

  config = dataclasses.replace(testing.tiny_config(vocab_size=264), **changes)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  model = testing.tiny_model(config, mesh=mesh)
  kernel = hf.flatten(model.params)["layers.mlp.up_proj.kernel"][...]
  assert kernel.addressable_shards[0].data.shape == (2, 10, 28)
  with pytest.raises(ValueError, match="'tensor' of size 4.*num_kv_heads=2"):
    partition.parameter_shardings(
      config, {}, sharding.make_mesh({"fsdp": 2, "tensor": 4})
    )
