import json
import pathlib
import re
import struct
import time

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from support import family_cases
from support.checks import refuses

from longctx_jax import testing
from longctx_jax.checkpoints import (
  convert,
  hf_folder,
  loading,
  placement,
  weights,
)
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import parameters, rope, sharding
from longctx_jax.model.rope import RopeConfig
from longctx_jax.runtime import progress

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  return tmp_path / "m"


def edit(folder, change):
  tensors = load_file(folder / "model.safetensors")
  change(tensors)
  save_file(tensors, folder / "model.safetensors")


def family_source(name):
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  return config, testing.RandomSource(config, seed=1)


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
  # cases G1: before any tensor is read.
  (folder / "b.safetensors").unlink()
  with pytest.raises(FileNotFoundError, match="missing b.safetensors"):
    loading.load_model(folder, mesh=mesh)


def expected_parameters(config, source):
  """Some parameters of a family, stacked by hand."""

  def stacked(pattern, rows=slice(None)):
    return np.stack(
      [
        source.read(f"model.layers.{layer}.{pattern}")[rows].T
        for layer in range(config.num_layers)
      ]
    )

  head = config.head_dim
  q, k = config.num_heads * head, config.num_kv_heads * head
  own = {
    "mixtral": lambda: {
      "layers.mlp.down_proj.kernel": np.stack(
        [
          stacked(f"block_sparse_moe.experts.{expert}.w2.weight")
          for expert in range(config.num_experts)
        ],
        axis=1,
      ),
      "layers.mlp.router.kernel": stacked("block_sparse_moe.gate.weight"),
    },
    "phi3": lambda: {
      "layers.attention.k_proj.kernel": stacked(
        "self_attn.qkv_proj.weight", slice(q, q + k)
      ),
      "layers.mlp.up_proj.kernel": stacked(
        "mlp.gate_up_proj.weight", slice(config.mlp_dim, None)
      ),
    },
    "gemma2": lambda: {
      "layers.mlp_norm.scale": stacked("pre_feedforward_layernorm.weight")
    },
  }
  return {
    "embedding": source.read("model.embed_tokens.weight"),
    "layers.attention.o_proj.kernel": stacked("self_attn.o_proj.weight"),
  } | own[config.model_type]()


@pytest.mark.parametrize("name", ["mixtral", "phi3", "gemma2"])
@pytest.mark.parametrize(
  "slab_bytes,sizes",
  [
    (1, {"fsdp": 4, "tensor": 2}),
    (2**28, {"fsdp": 2, "tensor": 2, "data": 2}),
    (2**28, {"data": 8}),
  ],
)
def test_pieces_come_to_their_places_on_any_mesh(
  name, slab_bytes, sizes, monkeypatch
):
  monkeypatch.setattr(placement, "_SLAB_BYTES", slab_bytes)
  monkeypatch.setattr(placement, "_BLOCK_SIZE", 64)
  monkeypatch.setattr(placement, "_BLOCK_ROWS", 7)
  config, source = family_source(name)
  _, params = weights.load_parameters(
    source, config, dtype=np.float32, mesh=sharding.make_mesh(sizes)
  )
  found = parameters.flatten(params)
  for parameter, expected in expected_parameters(config, source).items():
    np.testing.assert_array_equal(found[parameter][...], expected, parameter)


@pytest.mark.parametrize("sizes", [{"fsdp": 4, "tensor": 2}, {"data": 8}])
def test_every_element_is_read_once_however_many_devices_hold_it(sizes):
  config, source = family_source("phi3")
  seen = {name: np.zeros(shape, int) for name, shape in source.shapes.items()}
  read = source.read

  def counting(name, index=()):
    seen[name][index] += 1
    return read(name, index)

  source.read = counting
  mesh = sharding.make_mesh(sizes)
  weights.load_parameters(source, config, dtype=np.float32, mesh=mesh)
  assert all((count == 1).all() for count in seen.values())


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_any_stored_dtype_loads_to_any_dtype(folder, mesh, stored, dtype):
  def cast(tensors):
    for name, tensor in tensors.items():
      tensors[name] = tensor.astype(np.dtype(stored))

  edit(folder, cast)
  model = loading.load_model(folder, mesh=mesh, dtype=jnp.dtype(dtype))
  kinds = {leaf.dtype for leaf in parameters.flatten(model.params).values()}
  assert kinds == {jnp.dtype(dtype)} and model.dtype == dtype
  name = "model.layers.1.mlp.up_proj.weight"
  expected = load_file(folder / "model.safetensors")[name].T
  found = parameters.flatten(model.params)["layers.mlp.up_proj.kernel"][1]
  np.testing.assert_array_equal(found, expected.astype(np.dtype(dtype)))
  # Identity is of what is stored, not of how it was loaded.
  assert model.checksum == weights.checksum(hf_folder.SafetensorsSource(folder))


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
    (
      lambda t: t.update(other=t.pop("model.norm.weight")),
      "missing.*model.norm.weight; .*explain: other.*--allow_missing",
    ),
  ],
)
def test_wrong_tensors_are_named(folder, mesh, change, message):
  # cases G1
  edit(folder, change)
  with refuses(message):
    loading.load_model(folder, mesh=mesh)


def test_a_pattern_allows_missing_and_unexplained_tensors(folder, mesh, caplog):
  # cases G1
  def change(tensors):
    del tensors["model.layers.1.input_layernorm.weight"]
    del tensors["model.layers.0.mlp.down_proj.weight"]
    tensors["extra"] = np.zeros(2, np.float32)

  edit(folder, change)
  pattern = r"model\.layers\.\d\.(input_layernorm|mlp\.down_proj)\.weight|extra"
  with pytest.raises(ValueError, match="explain: extra"):
    loading.load_model(folder, mesh=mesh, allow_missing=r"model\..*")
  model = loading.load_model(folder, mesh=mesh, allow_missing=pattern)
  params = parameters.flatten(model.params)
  assert (params["layers.attention_norm.scale"][1] == 1).all()
  assert (params["layers.mlp.down_proj.kernel"][0] == 0).all()
  assert (params["layers.mlp.down_proj.kernel"][1] != 0).any()
  assert "model.layers.0.mlp.down_proj.weight" in caplog.text


def test_a_tied_head_may_be_stored_twice(folder, mesh):
  # cases G2
  whole = loading.load_model(folder, mesh=mesh)
  edit(
    folder,
    lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}),
  )
  again = loading.load_model(folder, mesh=mesh)
  ids = np.arange(9)[None]
  np.testing.assert_array_equal(whole.logits(ids), again.logits(ids))


def test_a_tied_model_may_store_a_head_of_its_own(
  folder, mesh, tmp_path, caplog
):
  """As transformers 5: what is stored is used, whatever the config says."""
  whole = loading.load_model(folder, mesh=mesh)
  head = np.random.default_rng(0).normal(size=(263, 40)).astype(np.float32)
  edit(folder, lambda t: t.update({"lm_head.weight": head}))
  again = loading.load_model(folder, mesh=mesh)
  assert "is true, but lm_head.weight differs" in caplog.text
  assert whole.config.tied and not again.config.tied
  ids = np.arange(9)[None]
  module = nnx.merge(again.graphdef, again.params)
  np.testing.assert_array_equal(module.head(), head)
  assert np.abs(again.logits(ids) - whole.logits(ids)).max() > 1
  # Without weights, and in another format, too.
  described = loading.describe_model(folder, mesh=mesh, dtype=np.float32)
  assert not described.config.tied
  convert.convert(str(folder), str(tmp_path / "copy"), fmt="hf")
  copy = loading.load_model(tmp_path / "copy", mesh=mesh)
  np.testing.assert_array_equal(copy.logits(ids), again.logits(ids))


def test_the_head_alone_is_the_embedding_of_a_tied_model(folder, mesh):
  whole = loading.load_model(folder, mesh=mesh)
  edit(
    folder,
    lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}),
  )
  again = loading.load_model(folder, mesh=mesh)
  ids = np.arange(9)[None]
  np.testing.assert_array_equal(whole.logits(ids), again.logits(ids))


def test_weights_of_64_bits_are_read(folder, mesh):
  whole = loading.load_model(folder, mesh=mesh)
  edit(folder, lambda t: t.update({n: t[n].astype(np.float64) for n in t}))
  again = loading.load_model(folder, mesh=mesh)
  assert again.weight_format == "safetensors F64"
  ids = np.arange(9)[None]
  np.testing.assert_array_equal(whole.logits(ids), again.logits(ids))
  # All 64 bits count.
  edit(
    folder,
    lambda t: t.update({n: np.nextafter(t[n], np.float64(9)) for n in t}),
  )
  assert loading.load_model(folder, mesh=mesh).checksum != again.checksum


def test_whole_numbers_are_named_for_what_they_are(folder, mesh):
  buffer = np.arange(9)
  edit(folder, lambda t: t.update({"model.position_ids": buffer}))
  with refuses("does not explain: model.position_ids"):
    loading.load_model(folder, mesh=mesh)
  loading.load_model(folder, mesh=mesh, allow_missing=".*position_ids")
  edit(folder, lambda t: t.update({"model.norm.weight": buffer}))
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
    ("model.safetensors", POINTER, "model.safetensors is a git-lfs pointer"),
    ("config.json", b"", "config.json is empty"),
    ("config.json", 0.5, "config.json cannot be read"),
    ("config.json", POINTER, "config.json is a git-lfs pointer"),
    ("model.safetensors.index.json", b"{", "index.json cannot be read"),
    ("model.safetensors.index.json", POINTER, "index.json is a git-lfs"),
    ("model.safetensors.index.json", b"{}", "index.json has no weight_map"),
    ("tokenizer.json", 0.5, "tokenizer.json cannot be read"),
    ("tokenizer.json", POINTER, "tokenizer.json is a git-lfs pointer"),
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


@pytest.mark.parametrize(
  ("content", "message"),
  [(b"", "m.gguf is empty"), (POINTER, "m.gguf is a git-lfs pointer")],
)
def test_a_gguf_file_that_is_none_is_named(tmp_path, content, message):
  (tmp_path / "m.gguf").write_bytes(content)
  with refuses(message):
    loading.load_model(tmp_path / "m.gguf")


@pytest.mark.parametrize(
  "name,value,message",
  [
    ("model.embed_tokens.weight", 0.0, "the output head looks empty"),
    ("model.embed_tokens.weight", 1e-7, "the output head looks empty"),
    ("model.norm.weight", 0.0, "model.norm.weight is all zero"),
    ("model.layers.1.mlp.up_proj.weight", 0.0, "up_proj.weight is all zero"),
    (
      "model.layers.1.input_layernorm.weight",
      np.nan,
      "input_layernorm.weight has NaN",
    ),
  ],
)
def test_odd_weights_are_called_out(folder, mesh, caplog, name, value, message):
  # cases G2
  edit(folder, lambda tensors: tensors[name].fill(value))
  loading.load_model(folder, mesh=mesh)
  assert message in caplog.text


@pytest.mark.parametrize(
  "fields,stored_theta,message",
  [
    ({}, 1e4, ""),
    # Stored before scaling, and in half precision.
    (
      {
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "max_sequence_length": 8192,
      },
      1e4,
      "",
    ),
    ({}, 5e5, "rotary_emb.inv_freq: the RoPE table that the checkpoint stores"),
    (
      {"max_position_embeddings": 8000},
      1e4,
      r"default\(theta 10000\) turns once in 6,283 .* layers that see 8,000",
    ),
  ],
)
def test_an_odd_rope_table_is_called_out(
  folder, mesh, caplog, fields, stored_theta, message
):
  # cases F3, F7
  path = folder / "config.json"
  stored = json.loads(path.read_text())
  del stored["rope_parameters"]
  path.write_text(json.dumps(stored | fields))
  table = RopeConfig("default", stored_theta)
  frequencies = rope.inverse_frequencies(table, 8).astype(np.float16)
  name = "model.layers.0.self_attn.rotary_emb.inv_freq"
  edit(folder, lambda tensors: tensors.update({name: frequencies}))
  loading.load_model(folder, mesh=mesh)
  assert re.search(message, caplog.text) if message else not caplog.text


def test_usual_weights_are_not_called_out(mesh, caplog):
  # Zero is Gemma's identity, and a bias may be 0.
  for name in ("gemma2", "qwen2"):
    config, source = family_source(name)
    for tensor in source.shapes:
      if tensor.endswith(("norm.weight", ".bias")) and name == "gemma2":
        source.read(tensor)[...] = 0
      if tensor.endswith(".bias"):
        source.read(tensor)[...] = 0
    weights.load_parameters(source, config, dtype=np.float32, mesh=mesh)
  assert "looks wrong" not in caplog.text


def test_ids_without_an_embedding_are_refused_where_they_occur(
  folder, mesh, caplog
):
  # cases G8
  config = testing.tiny_config(vocab_size=200)
  testing.RandomSource(config, seed=3).save(folder)
  tokenizer = loading.load_model(folder, mesh=mesh).tokenizer
  assert "ids up to 256, the model 200" in caplog.text
  ids = tokenizer.encode("plain", add_special_tokens=False).ids
  assert tokenizer.align(ids)[0] == "plain"
  with refuses("token 3, '<bos>', has id 256, and the model 200 embeddings"):
    tokenizer.encode("abc<bos>", add_special_tokens=False)
  with refuses("token 1, '<bos>', has id 256"):
    tokenizer.align([ids[0], 256])
  # Where every text would begin with it, none can be read.
  testing.RandomSource(config, seed=3).save(folder, add_bos=True)
  with refuses("token 0, '<bos>', has id 256"):
    loading.load_model(folder, mesh=mesh)


def rename(folder, change):
  tensors = load_file(folder / "model.safetensors")
  save_file(
    {change(name): tensor for name, tensor in tensors.items()},
    folder / "model.safetensors",
  )


def test_a_checkpoint_may_leave_the_prefix_out(folder, mesh):
  whole = loading.load_model(folder, mesh=mesh)
  rename(folder, lambda name: name.removeprefix("model."))
  assert loading.load_model(folder, mesh=mesh).checksum == whole.checksum


def test_a_text_model_inside_another_is_found(tmp_path, mesh):
  config, source = family_source("gemma3_text")
  source.save(tmp_path)
  whole = loading.load_model(tmp_path, mesh=mesh)
  rename(tmp_path, lambda name: f"language_model.{name}")
  edit(
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


def test_checksum_is_the_formula_and_sees_permuted_rows(rng):
  bits = rng.integers(0, 2**32, (3, 70_001), dtype=np.uint32)
  flat = [int(b) for b in bits.reshape(-1)]
  expected = sum(b * (1 + i % 65521) for i, b in enumerate(flat)) % 2**32
  assert weights.tensor_checksum(bits) == expected
  assert weights.tensor_checksum(bits[::-1].copy()) != expected
  assert (
    weights.tensor_checksum(bits.astype(np.uint8))
    == sum((b % 256) * (1 + i % 65521) for i, b in enumerate(flat)) % 2**32
  )


def test_slow_reading_says_that_it_goes_on(folder, mesh, monkeypatch, caplog):
  # cases H1
  monkeypatch.setattr(progress, "_LINE_SECONDS", 0.01)
  read = hf_folder.SafetensorsSource.raw

  def slow(self, name):
    time.sleep(0.02)
    return read(self, name)

  monkeypatch.setattr(hf_folder.SafetensorsSource, "raw", slow)
  with caplog.at_level("INFO"):
    loading.load_model(folder, mesh=mesh)
  assert f"still loading {folder}: 0 s" in caplog.text
