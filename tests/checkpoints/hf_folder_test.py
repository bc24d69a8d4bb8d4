import json
import pathlib
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support import family_cases, saved_models
from support.checks import refuses

from longctx_jax import testing
from longctx_jax.checkpoints import (
  loading,
)


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  return tmp_path / "m"


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
  # cases G1: before any tensor is read.
  (folder / "b.safetensors").unlink()
  with pytest.raises(FileNotFoundError, match="missing b.safetensors"):
    loading.load_model(folder, mesh=mesh)


def test_weights_of_64_bits_are_read(folder, mesh):
  whole = loading.load_model(folder, mesh=mesh)
  saved_models.edit(
    folder, lambda t: t.update({n: t[n].astype(np.float64) for n in t})
  )
  again = loading.load_model(folder, mesh=mesh)
  assert again.weight_format == "safetensors F64"
  ids = np.arange(9)[None]
  np.testing.assert_array_equal(whole.logits(ids), again.logits(ids))
  # All 64 bits count.
  saved_models.edit(
    folder,
    lambda t: t.update({n: np.nextafter(t[n], np.float64(9)) for n in t}),
  )
  assert loading.load_model(folder, mesh=mesh).checksum != again.checksum


def test_whole_numbers_are_named_for_what_they_are(folder, mesh):
  buffer = np.arange(9)
  saved_models.edit(folder, lambda t: t.update({"model.position_ids": buffer}))
  with refuses("does not explain: model.position_ids"):
    loading.load_model(folder, mesh=mesh)
  loading.load_model(folder, mesh=mesh, allow_missing=".*position_ids")
  saved_models.edit(folder, lambda t: t.update({"model.norm.weight": buffer}))
  with refuses(r"model.norm.weight holds whole numbers \(I64\)"):
    loading.load_model(folder, mesh=mesh)


def test_an_adapter_is_named(tmp_path):
  for name, text in (
    ("adapter_config.json", '{"base_model_name_or_path": "owner/base"}'),
    ("adapter_model.safetensors", ""),
  ):
    (tmp_path / name).write_text(text)
  with refuses("is an adapter of owner/base: merge it first"):
    loading.load_model(tmp_path)


@pytest.mark.parametrize(
  ("file", "content", "message"),
  [
    ("model.safetensors", b"", "model.safetensors is empty"),
    ("model.safetensors", 0.01, "model.safetensors cannot be read.*not all"),
    ("model.safetensors", 0.5, "model.safetensors cannot be read.*not all"),
    (
      "model.safetensors",
      saved_models.POINTER,
      "model.safetensors is a git-lfs pointer",
    ),
    ("config.json", b"", "config.json is empty"),
    ("config.json", 0.5, "config.json cannot be read"),
    ("config.json", saved_models.POINTER, "config.json is a git-lfs pointer"),
    ("model.safetensors.index.json", b"{", "index.json cannot be read"),
    (
      "model.safetensors.index.json",
      saved_models.POINTER,
      "index.json is a git-lfs",
    ),
    ("model.safetensors.index.json", b"{}", "index.json has no weight_map"),
    ("tokenizer.json", 0.5, "tokenizer.json cannot be read"),
    (
      "tokenizer.json",
      saved_models.POINTER,
      "tokenizer.json is a git-lfs pointer",
    ),
    ("tokenizer_config.json", b"{", "tokenizer_config.json cannot be read"),
  ],
)
def test_a_damaged_file_is_named(folder, file, content, message):
  path = folder / file
  if isinstance(content, float):
    whole = path.read_bytes() if path.exists() else b""
    content = whole[: int(content * len(whole))]
  path.write_bytes(content)
  with refuses(message):
    loading.load_model(folder)


def test_a_checkpoint_may_leave_the_prefix_out(folder, mesh):
  whole = loading.load_model(folder, mesh=mesh)
  saved_models.rename(folder, lambda name: name.removeprefix("model."))
  assert loading.load_model(folder, mesh=mesh).checksum == whole.checksum


def test_a_text_model_inside_another_is_found(tmp_path, mesh):
  config, source = saved_models.family_source("gemma3_text")
  source.save(tmp_path)
  whole = loading.load_model(tmp_path, mesh=mesh)
  saved_models.rename(tmp_path, lambda name: f"language_model.{name}")
  saved_models.edit(
    tmp_path,
    lambda t: t.update({"vision_tower.weight": np.zeros(2, np.float32)}),
  )
  fields = {"model_type": "gemma3", "text_config": family_cases.GEMMA3}
  (tmp_path / "config.json").write_text(json.dumps(fields))
  again = loading.load_model(tmp_path, mesh=mesh)
  assert again.checksum == whole.checksum and again.config == config


def write_safetensors(path: pathlib.Path, **kinds):
  """A file of one-element tensors of the given types; all bits are 0."""
  widths = {"F8_E4M3": 1, "U8": 1, "I32": 4, "F16": 2}
  header, begin = {}, 0
  for name, kind in kinds.items():
    end = begin + widths[kind]
    header[name] = {"dtype": kind, "shape": [1], "data_offsets": [begin, end]}
    begin = end
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(begin))


@pytest.mark.parametrize(
  "kinds,method,message",
  [
    ({"w": "F8_E4M3"}, "", r"quantised \(FP8\): w is F8_E4M3.*GGUF"),
    ({"w": "F8_E4M3"}, "fbgemm_fp8", r"\(fbgemm_fp8\)"),
    ({"a.qweight": "I32", "a.g_idx": "I32"}, "", r"\(GPTQ\): a.g_idx"),
    ({"a.qweight": "I32", "a.scales": "F16"}, "awq", r"\(awq\): a.qweight"),
    ({"a.weight": "U8"}, "", r"\(bitsandbytes\): a.weight is U8"),
    ({"w": "F16"}, "gptq", r"quantised \(gptq\)"),
  ],
)
def test_quantised_checkpoints_are_refused_by_name(
  folder, kinds, method, message
):
  write_safetensors(folder / "model.safetensors", **kinds)
  if method:
    path = folder / "config.json"
    fields = json.loads(path.read_text())
    fields["quantization_config"] = {"quant_method": method}
    path.write_text(json.dumps(fields))
  with refuses(message):
    loading.load_model(folder)


@pytest.mark.parametrize("file", ["consolidated.00.pth", "pytorch_model.bin"])
def test_other_layouts_are_refused_by_name(folder, file):
  # cases G3
  (folder / "model.safetensors").rename(folder / file)
  with refuses(kind=FileNotFoundError, message=f"{file} is in another layout"):
    loading.load_model(folder)
