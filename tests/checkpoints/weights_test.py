import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from support import saved_models
from support.checks import refuses

from longctx_jax import testing
from longctx_jax.checkpoints import (
  convert,
  hf_folder,
  loading,
  placement,
  weights,
)
from longctx_jax.model import parameters, sharding


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  return tmp_path / "m"


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
  config, source = saved_models.family_source(name)
  _, params = weights.load_parameters(
    source, config, dtype=np.float32, mesh=sharding.make_mesh(sizes)
  )
  found = parameters.flatten(params)
  for parameter, expected in expected_parameters(config, source).items():
    np.testing.assert_array_equal(found[parameter][...], expected, parameter)


@pytest.mark.parametrize("sizes", [{"fsdp": 4, "tensor": 2}, {"data": 8}])
def test_every_element_is_read_once_however_many_devices_hold_it(sizes):
  config, source = saved_models.family_source("phi3")
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

  saved_models.edit(folder, cast)
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
  saved_models.edit(folder, change)
  with refuses(message):
    loading.load_model(folder, mesh=mesh)


def test_a_pattern_allows_missing_and_unexplained_tensors(folder, mesh, caplog):
  # cases G1
  def change(tensors):
    del tensors["model.layers.1.input_layernorm.weight"]
    del tensors["model.layers.0.mlp.down_proj.weight"]
    tensors["extra"] = np.zeros(2, np.float32)

  saved_models.edit(folder, change)
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
  saved_models.edit(
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
  saved_models.edit(folder, lambda t: t.update({"lm_head.weight": head}))
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
  saved_models.edit(
    folder,
    lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")}),
  )
  again = loading.load_model(folder, mesh=mesh)
  ids = np.arange(9)[None]
  np.testing.assert_array_equal(whole.logits(ids), again.logits(ids))


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
