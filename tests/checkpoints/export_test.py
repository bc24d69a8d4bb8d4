import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import family_cases

from longctx_jax import testing
from longctx_jax.checkpoints import (
  convert,
  export,
  folder_files,
  loading,
  weights,
)
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import sharding

# One of each way to name and shape tensors.
FAMILIES = ("llama, biases", "qwen3", "qwen3_moe", "mixtral", "phi3", "gemma2")


def family_source(name):
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  return config, testing.RandomSource(config, seed=1)


def tensors_in(folder):
  return {
    name: tensor
    for file in sorted(folder.glob("*.safetensors"))
    for name, tensor in load_file(file).items()
  }


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_was_loaded_comes_out_bit_equal(name, dtype, tmp_path):
  """Cases G5, G9: tensors have their names, shapes and bits again."""
  config, source = family_source(name)
  mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
  _, params = weights.load_parameters(source, config, dtype=dtype, mesh=mesh)
  back = export.ParameterSource(params, config)
  export.write_folder(back, config, tmp_path / "out", dtype=dtype, origin=None)
  found = tensors_in(tmp_path / "out")
  assert set(found) == set(source.shapes)
  for tensor, value in found.items():
    expected = source.read(tensor).astype(dtype)
    np.testing.assert_array_equal(value, expected, tensor, strict=True)
  again = loading.open_source(tmp_path / "out")
  assert config_json.from_hf(again.config, source="again") == config
  assert again.config["dtype"] == np.dtype(dtype).name
  assert weights.checksum(again) == weights.checksum(back)


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  (tmp_path / "m" / "generation_config.json").write_text('{"top_k": 7}')
  fields = json.loads((tmp_path / "m" / "config.json").read_text())
  fields |= {"bos_token_id": 256, "pad_token_id": None}
  (tmp_path / "m" / "config.json").write_text(json.dumps(fields))
  return tmp_path / "m"


def write(folder, target, mesh, **kwargs):
  model = loading.load_model(folder, mesh=mesh)
  convert.write_model(model, target, fmt="hf", origin=folder, **kwargs)
  return model


def test_one_shard_is_one_file_that_stays(folder, tmp_path, mesh):
  """Cases G7, G9: with tokenizer, generation config and both RoPE schemas."""
  model = write(folder, tmp_path / "out", mesh)
  assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
  ]
  again = loading.load_model(tmp_path / "out", mesh=mesh)
  assert again.checksum == model.checksum
  assert again.tokenizer.fingerprint == model.tokenizer.fingerprint
  fields = json.loads((tmp_path / "out" / "config.json").read_text())
  assert fields["rope_theta"] == fields["rope_parameters"]["rope_theta"]
  assert fields["bos_token_id"] == 256 and fields["pad_token_id"] is None
  generation = (tmp_path / "out" / "generation_config.json").read_text()
  assert generation == '{"top_k": 7}'


def test_shards_keep_to_their_size_and_are_indexed(folder, tmp_path, mesh):
  limit = 50_000
  model = write(folder, tmp_path / "out", mesh, max_shard_bytes=limit)
  index = json.loads(
    (tmp_path / "out" / "model.safetensors.index.json").read_text()
  )
  files = sorted((tmp_path / "out").glob("*.safetensors"))
  assert len(files) == 3
  assert files[0].name == "model-00001-of-00003.safetensors"
  for file in files:
    tensors = load_file(file)
    assert sum(tensor.nbytes for tensor in tensors.values()) <= limit
    assert all(index["weight_map"][name] == file.name for name in tensors)
  assert index["metadata"]["total_size"] == sum(
    leaf.nbytes for leaf in jax.tree.leaves(model.params)
  )
  again = loading.load_model(tmp_path / "out", mesh=mesh)
  assert again.checksum == model.checksum


def test_layers_come_in_order_and_a_large_tensor_alone():
  shapes = {
    "model.layers.10.a": (4,),
    "model.layers.2.a": (4,),
    "model.embed_tokens.weight": (100,),
    "model.norm.weight": (4,),
  }
  assert export.plan_shards(shapes, np.dtype(np.float32), 32) == [
    ["model.embed_tokens.weight"],
    ["model.layers.2.a", "model.layers.10.a"],
    ["model.norm.weight"],
  ]
  with pytest.raises(ValueError, match="max_shard_bytes=0"):
    export.plan_shards(shapes, np.dtype(np.float32), 0)
  with pytest.raises(ValueError, match="dtype int32 cannot be written"):
    export.plan_shards(shapes, np.dtype(np.int32), 32)


def test_a_failed_export_leaves_nothing(folder, tmp_path, mesh, monkeypatch):
  read = export.ParameterSource.read

  def fail(self, name, index=()):
    if "layers.1" in name:
      raise OSError("the disk is full")
    return read(self, name, index)

  monkeypatch.setattr(export.ParameterSource, "read", fail)
  with pytest.raises(OSError, match="disk is full"):
    write(folder, tmp_path / "out", mesh)
  assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_folder_with_something_in_it_is_not_touched(folder, mesh):
  before = (folder / "config.json").read_bytes()
  with pytest.raises(FileExistsError, match="give another folder"):
    write(folder, folder, mesh)
  assert (folder / "config.json").read_bytes() == before


@pytest.mark.parametrize(
  "changes,message",
  [
    (dict(sink_len=4, windows=(8, 8)), "sink_len=4"),
    (dict(windows=(8, 8)), "windows"),
    (dict(embed_scale=2.0), "cannot state embed_scale=2.0"),
  ],
)
def test_what_no_config_json_states_fails_before_anything_is_written(
  changes, message, tmp_path
):
  """Cases G6: the rehearsal of a training run's export, at step 0."""
  config = testing.tiny_config(**changes)
  with pytest.raises(ValueError, match=message):
    folder_files.config_fields(config, dtype="float32", origin=None)
  source = testing.RandomSource(testing.tiny_config(), seed=0)
  with pytest.raises(ValueError, match=message):
    export.write_folder(
      source, config, tmp_path / "out", dtype=jnp.float32, origin=None
    )
  assert not list(tmp_path.iterdir())


@pytest.fixture
def rehearsal(mesh):
  """Arguments of `export.rehearse`, of a model that can be exported."""
  config = testing.tiny_config()
  return testing.RandomSource(config, seed=1), config


@pytest.mark.parametrize(
  ("name", "field"),
  [
    ("tokenizer_config.json", "model_max_length"),
    ("generation_config.json", "max_length"),
  ],
)
@pytest.mark.parametrize("stated", [256, 4096, int(1e30)])
def test_a_longer_context_is_stated_wherever_the_former_was(
  tmp_path, mesh, name, field, stated
):
  """What repeats the 4,096 of config.json; other numbers are none of ours."""
  source = testing.RandomSource(testing.tiny_config(), seed=0)
  source.save(tmp_path / "origin")
  path = tmp_path / "origin" / name
  fields = json.loads(path.read_text()) if path.exists() else {}
  path.write_text(json.dumps(fields | {field: stated, "kept": "ü"}))
  config = testing.tiny_config(max_position=32768)
  for position, expected in ((32768, {4096: 32768}), (4096, {})):
    export.write_folder(
      source,
      dataclasses.replace(config, max_position=position),
      tmp_path / str(position),
      dtype=np.float32,
      origin=tmp_path / "origin",
    )
    written = json.loads((tmp_path / str(position) / name).read_text())
    right = expected[stated] if stated in expected else stated
    assert written == fields | {field: right, "kept": "ü"}


def test_a_kind_of_cache_for_windows_goes_with_them(tmp_path):
  config = testing.tiny_config(
    model_type="mistral", windows=(24, 24), max_position=128
  )
  source = testing.RandomSource(config, seed=0)
  source.save(tmp_path / "origin")
  (tmp_path / "origin" / "generation_config.json").write_text(
    '{"cache_implementation": "sliding_window", "top_k": 2}'
  )
  for name, facts, expected in (
    ("same", config, {"cache_implementation": "sliding_window", "top_k": 2}),
    ("full", config.with_attention(window=0, sink_len=0), {"top_k": 2}),
  ):
    export.write_folder(
      source,
      facts,
      tmp_path / name,
      dtype=np.float32,
      origin=tmp_path / "origin",
    )
    path = tmp_path / name / "generation_config.json"
    assert json.loads(path.read_text()) == expected


def test_a_rehearsal_reads_no_weight_and_leaves_nothing(
  rehearsal, folder, tmp_path, monkeypatch
):
  """Case G6."""
  source, config = rehearsal
  monkeypatch.delattr(testing.RandomSource, "read")
  export.rehearse(
    source, config, tmp_path / "new" / "out", dtype=np.float32, origin=folder
  )
  assert not list((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(sink_len=4, windows=(8, 8)), "sink_len=4"),
    (dict(windows=(0, 16)), "windows"),
    (dict(embed_scale=8.0), "cannot state embed_scale=8.0"),
    (dict(mlp_dim=57), "misshapen"),
  ],
)
def test_a_rehearsal_finds_what_the_end_would(
  rehearsal, tmp_path, changes, message
):
  """Case G6: facts that no config.json states, shapes that it contradicts."""
  source, config = rehearsal
  config = dataclasses.replace(config, **changes)
  with pytest.raises(ValueError, match=message):
    export.rehearse(
      source, config, tmp_path / "out", dtype=np.float32, origin=None
    )
  assert not list(tmp_path.iterdir())


def test_a_rehearsal_finds_a_folder_in_the_way_and_a_full_disk(
  rehearsal, tmp_path, monkeypatch
):
  kinds = dict(dtype=np.float32, origin=None)
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "mine").touch()
  with pytest.raises(FileExistsError, match="out exists"):
    export.rehearse(*rehearsal, tmp_path / "out", **kinds)
  room = shutil.disk_usage(tmp_path)._replace(free=1000)
  monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
  with pytest.raises(OSError, match=r"takes 0.0 GB, and the disk has 0.0 GB"):
    export.rehearse(*rehearsal, tmp_path / "other", **kinds)
