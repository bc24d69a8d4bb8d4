import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx_jax import log_probs, sharding, testing
from longctx_jax.model import config as config_lib
from longctx_jax.model import hf

KINDS = {
  "full": {},
  "sliding": dict(windows=(5, 5)),
  "mixed": dict(windows=(0, 5)),
  "sink": dict(windows=(5, 5), sink_len=2),
  "qwen3": dict(model_type="qwen3", qk_norm=True, tied=False),
  "qwen2": dict(model_type="qwen2", qkv_bias=True),
  "biased": dict(qkv_bias=True, output_bias=True, mlp_bias=True),
}


def module(model):
  return nnx.merge(model.graphdef, model.params)


@pytest.fixture(params=KINDS)
def model(request, mesh):
  config = testing.tiny_config(**KINDS[request.param])
  return testing.tiny_model(config, mesh=mesh)


@pytest.fixture
def ids(rng):
  return jnp.asarray(rng.integers(0, 256, (2, 23)))


def test_no_output_depends_on_a_later_input(model, ids):
  changed = ids.at[:, 15].set((ids[:, 15] + 1) % 256)
  a, b = (module(model)(x) for x in (ids, changed))
  np.testing.assert_array_equal(a[:, :15], b[:, :15])
  assert np.abs(a[:, 15:] - b[:, 15:]).max() > 1e-3


def test_scored_rows_equal_those_of_the_whole_pass(model, ids):
  whole = module(model)(ids)
  rows = module(model)(ids, score_rows=(9, 20))
  assert rows.shape == (2, 11, 40)
  np.testing.assert_allclose(rows, whole[:, 9:20], atol=2e-5)


def test_padding_on_the_right_changes_nothing(model, ids):
  # cases J4
  padded = jnp.pad(ids, ((0, 0), (0, 9)))
  whole, longer = module(model)(ids), module(model)(padded)
  np.testing.assert_allclose(longer[:, :23], whole, atol=2e-5)


def test_rows_of_a_batch_do_not_meet(model, ids):
  alone = module(model)(ids[1:])
  np.testing.assert_allclose(module(model)(ids)[1:], alone, atol=2e-5)


def test_packed_documents_equal_separate_ones(model, ids):
  # cases I4
  first, second = ids[0, :10], ids[1, :13]
  arguments = dict(
    positions=jnp.concatenate([jnp.arange(10), jnp.arange(13)])[None],
    segment_ids=jnp.repeat(jnp.array([0, 1]), jnp.array([10, 13]))[None],
  )
  row = jnp.concatenate([first, second])[None]
  if model.config.sink_len:
    with pytest.raises(ValueError, match="sink_len=2.*packed"):
      module(model)(row, **arguments)
    return
  packed = module(model)(row, **arguments)
  np.testing.assert_allclose(
    packed[0, 10:], module(model)(second[None])[0], atol=2e-5
  )


def test_a_sliding_window_hides_the_first_token(mesh, rng):
  # cases F8: one layer, window 4, 12 tokens
  config = testing.tiny_config(num_layers=1, windows=(4,))
  model = module(testing.tiny_model(config, mesh=mesh))
  ids = jnp.asarray(rng.integers(0, 256, (1, 12)))
  changed = ids.at[0, 0].set((ids[0, 0] + 1) % 256)
  a, b = model(ids), model(changed)
  np.testing.assert_array_equal(a[:, 11], b[:, 11])
  assert np.abs(a[:, 3] - b[:, 3]).max() > 1e-3


def test_a_bigram_model_has_the_tables_nll(mesh):
  # cases J9: without attention and MLP the next token depends on the last
  # alone, and the table can be written down.
  config = testing.tiny_config()
  model = testing.tiny_model(config, mesh=mesh)
  zeroed = jax.tree_util.tree_map_with_path(
    lambda path, leaf: (
      jnp.zeros_like(leaf)
      if "o_proj" in str(path) or "down_proj" in str(path)
      else leaf
    ),
    model.params,
  )
  model = dataclasses.replace(model, params=zeroed)
  names = hf.flatten(zeroed)
  embedding = np.asarray(names["embedding"][...], np.float64)
  rms = np.sqrt((embedding**2).mean(1, keepdims=True) + config.norm_eps)
  hidden = embedding / rms * np.asarray(names["norm.scale"][...], np.float64)
  logits = hidden @ embedding.T
  peak = logits.max(1, keepdims=True)
  table = logits - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))
  ids = np.array([[5, 17, 17, 200, 3]])
  got = log_probs.target_log_probs(
    module(model)(jnp.asarray(ids[:, :-1])),
    module(model).head(),
    jnp.asarray(ids[:, 1:]),
    softcap=0.0,
    chunk=4,
  )
  np.testing.assert_allclose(got[0], table[ids[0, :-1], ids[0, 1:]], atol=1e-5)


def test_one_block_is_lowered_whatever_the_depth():
  def text(num_layers):
    config = testing.tiny_config(
      num_layers=num_layers, windows=(0,) * num_layers
    )
    abstract = nnx.eval_shape(
      lambda: testing.Transformer(config, dtype=jnp.float32, rngs=nnx.Rngs(0))
    )
    graphdef, params = nnx.split(abstract, nnx.Param)

    def run(params, ids):
      return nnx.merge(graphdef, params)(ids)

    ids = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    return len(jax.jit(run).lower(params, ids).as_text())

  assert abs(text(32) / text(2) - 1) < 0.05


def test_inference_does_not_copy_the_stack(mesh):
  # Slicing [:-1] off the stacked layers would show as a temporary.
  config = testing.tiny_config(
    num_layers=8, windows=(0,) * 8, embed_dim=128, mlp_dim=1024
  )
  model = testing.tiny_model(config, mesh=mesh)
  size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))

  def run(params, ids):
    return nnx.merge(model.graphdef, params)(ids, score_rows=(4, 8))

  compiled = jax.jit(run).lower(model.params, jnp.zeros((1, 8), int)).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < size / 2


@pytest.mark.golden
def test_families_of_the_golden_folder_have_transformers_logits(
  golden_dir, mesh
):
  for family in ("llama3", "mistral", "qwen2", "qwen3"):
    folder = golden_dir / "golden" / "tiny" / family
    source = hf.SafetensorsSource(folder)
    config = config_lib.from_hf(source.config, source=family)
    model = nnx.merge(
      *hf.load_parameters(source, config, dtype=jnp.float32, mesh=mesh)
    )
    stored = np.load(folder / "golden.npz")
    logits = model(jnp.asarray(stored["input_ids"])) @ model.head().T
    np.testing.assert_allclose(logits, stored["logits"], atol=1e-4)


@pytest.mark.parametrize(
  "sizes", [{"fsdp": 8}, {"fsdp": 2, "tensor": 2, "data": 2}]
)
def test_a_sharded_model_gives_the_same(sizes, mesh, rng):
  config = testing.tiny_config(vocab_size=264, tied=False)
  ids = jnp.asarray(rng.integers(0, 256, (8, 23)))
  one = testing.tiny_model(config, mesh=mesh).logits(ids)
  many = testing.tiny_model(config, mesh=sharding.make_mesh(sizes)).logits(ids)
  np.testing.assert_allclose(one, many, atol=1e-5)
