import dataclasses
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import family_cases

from longctx_jax import testing
from longctx_jax.checkpoints import hf_folder, weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import log_probs, parameters, sharding
from longctx_jax.model.rope import RopeConfig
from longctx_jax.model.transformer import Transformer


def family(name):
  return config_json.from_hf(family_cases.CASES[name], source=name)


KINDS = {
  "full": testing.tiny_config(),
  "sink": testing.tiny_config(model_type="mistral", windows=(5, 5), sink_len=2),
  "eabf": testing.tiny_config(
    ropes=(RopeConfig("eabf", 5e5, original_max_position=4),)
  ),
  "biased": family("llama, biases"),
  "dynamic": family("llama, dynamic"),
  "mixed": family("qwen2"),
  "experts": family("qwen3_moe"),
  "gemma3": family("gemma3_text"),
}


@functools.partial(jax.jit, static_argnames=("graphdef", "score_rows"))
def _run(graphdef, params, ids, **arguments):
  return nnx.merge(graphdef, params)(ids, **arguments)


def run(model, ids, *, lengths=None, **arguments):
  """Hidden states, compiled; lengths are always an input."""
  if lengths is None:
    lengths = jnp.full(len(ids), ids.shape[1])
  return _run(model.graphdef, model.params, ids, lengths=lengths, **arguments)


@pytest.fixture(params=KINDS)
def model(request, mesh):
  return testing.tiny_model(KINDS[request.param], mesh=mesh)


@pytest.fixture
def ids(rng):
  return jnp.asarray(rng.integers(0, 256, (2, 23)))


def test_no_output_depends_on_a_later_input(model, ids):
  changed = ids.at[:, 15].set((ids[:, 15] + 1) % 256)
  a, b = (run(model, x) for x in (ids, changed))
  np.testing.assert_allclose(a[:, :15], b[:, :15], atol=1e-6)
  assert np.abs(a[:, 15:] - b[:, 15:]).max() > 1e-3


def test_rows_of_a_batch_do_not_meet(model, ids):
  a, b = (run(model, x) for x in (ids, ids.at[0].set(7)))
  np.testing.assert_allclose(a[1], b[1], atol=2e-5)
  assert np.abs(a[0] - b[0]).max() > 1e-3


def test_scored_rows_equal_those_of_the_whole_pass(model, ids):
  rows = run(model, ids, score_rows=(9, 20))
  assert rows.shape == (2, 11, 40)
  np.testing.assert_allclose(rows, run(model, ids)[:, 9:20], atol=2e-5)


def test_padding_on_the_right_changes_nothing(model, ids):
  # cases J4, F5: tables go by the real length
  padded = jnp.pad(ids, ((0, 0), (0, 9)))
  longer = run(model, padded, lengths=jnp.array([23, 23]))
  np.testing.assert_allclose(longer[:, :23], run(model, ids), atol=2e-5)


def test_packed_documents_equal_separate_ones(model, ids):
  # cases I4: the last 13 ids of each row are a document of their own
  is_second = jnp.broadcast_to(jnp.arange(23) >= 10, ids.shape)
  arguments = dict(
    positions=jnp.arange(23)[None] - jnp.where(is_second, 10, 0),
    segment_ids=is_second.astype(int),
    lengths=jnp.where(is_second, 13, 10),
  )
  if model.config.sink_len:
    with pytest.raises(ValueError, match="sink_len=2.*packed"):
      run(model, ids, **arguments)
    return
  packed = run(model, ids, **arguments)
  alone = run(model, jnp.roll(ids, -10, axis=1), lengths=jnp.array([13, 13]))
  np.testing.assert_allclose(packed[:, 10:], alone[:, :13], atol=2e-5)


def test_a_sliding_window_hides_the_first_token(mesh, rng):
  # cases F8: one layer, window 4, 12 tokens
  config = testing.tiny_config(model_type="mistral", num_layers=1, windows=(4,))
  model = testing.tiny_model(config, mesh=mesh)
  ids = jnp.asarray(rng.integers(0, 256, (1, 12)))
  changed = ids.at[0, 0].set((ids[0, 0] + 1) % 256)
  a, b = run(model, ids), run(model, changed)
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
  names = parameters.flatten(zeroed)
  embedding = np.asarray(names["embedding"][...], np.float64)
  rms = np.sqrt((embedding**2).mean(1, keepdims=True) + config.norm_eps)
  hidden = embedding / rms * np.asarray(names["norm.scale"][...], np.float64)
  logits = hidden @ embedding.T
  peak = logits.max(1, keepdims=True)
  table = logits - peak - np.log(np.exp(logits - peak).sum(1, keepdims=True))
  ids = np.array([[5, 17, 17, 200, 3]])
  got = log_probs.target_log_probs(
    run(model, jnp.asarray(ids[:, :-1])),
    names["embedding"][...],
    jnp.asarray(ids[:, 1:]),
    softcap=0.0,
    chunk=4,
  )
  np.testing.assert_allclose(got[0], table[ids[0, :-1], ids[0, 1:]], atol=1e-5)


def test_the_longer_of_two_packed_documents_has_the_long_table(mesh, rng):
  # cases F5: original context 16
  config = family("llama, longrope")
  model = testing.tiny_model(config, mesh=mesh)
  ids = jnp.asarray(rng.integers(0, 256, (1, 33)))
  segments = (jnp.arange(33) >= 16)[None].astype(int)
  positions = jnp.concatenate([jnp.arange(16), jnp.arange(17)])[None]
  arguments = dict(positions=positions, segment_ids=segments)
  with pytest.raises(ValueError, match="packed documents need their lengths"):
    nnx.merge(model.graphdef, model.params)(ids, **arguments)
  packed = run(model, ids, **arguments, lengths=16 + segments)
  first = run(model, ids, lengths=jnp.array([16]))
  np.testing.assert_allclose(packed[:, :16], first[:, :16], atol=2e-5)
  rolled = jnp.roll(ids, -16, axis=1)
  second, as_short = (
    run(model, rolled, lengths=jnp.array([n]))[:, :17] for n in (17, 16)
  )
  np.testing.assert_allclose(packed[:, 16:], second, atol=2e-5)
  assert np.abs(as_short - second).max() > 1e-2


@pytest.mark.parametrize("cap", ["softcap", "attention_softcap"])
def test_caps_make_themselves_felt(mesh, rng, cap):
  # cases D7
  config = family("gemma2")
  ids = jnp.asarray(rng.integers(0, 256, (1, 23)))
  capped = testing.tiny_model(config, mesh=mesh).logits(ids)
  without = dataclasses.replace(config, **{cap: 0.0})
  uncapped = testing.tiny_model(without, mesh=mesh).logits(ids)
  assert np.abs(capped).max() <= config.softcap
  assert np.abs(capped - uncapped).max() > 0.1


def test_embeddings_are_scaled_in_the_dtype_of_the_model(mesh):
  # As transformers: sqrt(3072) = 55.4256 is 55.5 in bfloat16.
  config = dataclasses.replace(family("gemma2"), embed_scale=3072**0.5)
  same = dataclasses.replace(config, embed_scale=55.5)
  ids = jnp.arange(9)[None]
  one, other = (
    testing.tiny_model(c, mesh=mesh, dtype=jnp.bfloat16).logits(ids)
    for c in (config, same)
  )
  np.testing.assert_array_equal(one, other)


def test_entropy_aware_queries_are_the_plain_model_up_to_the_original(
  mesh, rng
):
  plain, eabf = (
    testing.tiny_config(ropes=(RopeConfig(kind, 5e5, **facts),))
    for kind, facts in (
      ("default", {}),
      ("eabf", dict(original_max_position=16)),
    )
  )
  ids = jnp.asarray(rng.integers(0, 256, (1, 23)))
  a, b = (run(testing.tiny_model(c, mesh=mesh), ids) for c in (plain, eabf))
  np.testing.assert_array_equal(a[:, :16], b[:, :16])
  assert np.abs(a[:, 16:] - b[:, 16:]).max() > 1e-4


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3_text", "mixtral"])
def test_one_block_is_lowered_whatever_the_depth(name):
  def text(num_layers):
    fields = family_cases.CASES[name] | {"num_hidden_layers": num_layers}
    config = config_json.from_hf(fields, source=name)
    abstract = nnx.eval_shape(lambda: Transformer(config, dtype=jnp.float32))
    graphdef, params = nnx.split(abstract, nnx.Param)

    def run(params, ids):
      return nnx.merge(graphdef, params)(ids)

    ids = jax.ShapeDtypeStruct((1, 16), jnp.int32)
    lowered = jax.jit(run).lower(params, ids)
    start = time.monotonic()
    lowered.compile()
    size, seconds = len(lowered.as_text()), time.monotonic() - start
    print(f"{name}, {num_layers} layers: {size:,} characters, {seconds:.2f} s")
    return size

  # Three layers of Gemma have both kinds already, two of them one kind.
  fewest = 3 if name == "gemma3_text" else 2
  assert abs(text(32) / text(fewest) - 1) < 0.05


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
  names = sorted(path.name for path in golden_dir.glob("golden/tiny/*"))
  names.remove("cross_llama_bpe1500")
  assert len(names) == 8
  for name in names:
    folder = golden_dir / "golden" / "tiny" / name
    source = hf_folder.SafetensorsSource(folder)
    config = config_json.from_hf(source.config, source=name)
    model = nnx.merge(
      *weights.load_parameters(source, config, dtype=jnp.float32, mesh=mesh)
    )
    stored = np.load(folder / "golden.npz")
    logits = jax.jit(lambda ids, model=model: model.logits(model(ids)))(
      jnp.asarray(stored["input_ids"])
    )
    np.testing.assert_allclose(
      logits, stored["logits"], atol=1e-4, err_msg=name
    )


_MIXED = {"fsdp": 2, "tensor": 2, "data": 2}


@pytest.mark.parametrize(
  ("name", "sizes"),
  [
    ("llama", {"fsdp": 8}),
    ("llama", _MIXED),
    ("mixtral", _MIXED),
    ("gemma3_text", _MIXED),
  ],
)
def test_a_sharded_model_gives_the_same(name, sizes, mesh, rng):
  config = family(name)
  ids = jnp.asarray(rng.integers(0, 256, (8, 23)))
  one, many = (
    testing.tiny_model(config, mesh=mesh)
    for mesh in (mesh, sharding.make_mesh(sizes))
  )
  with jax.set_mesh(many.mesh):
    got = run(many, ids)
  np.testing.assert_allclose(run(one, ids), got, atol=2e-5)


@pytest.mark.parametrize("sizes", [{"fsdp": 8}, {"fsdp": 2, "tensor": 4}])
def test_shards_are_as_exact_as_one_device_in_bfloat16(monkeypatch, rng, sizes):
  """Log-probs against float32, with the products that a TPU is given."""
  monkeypatch.setattr(sharding, "on_cpu", lambda: False)
  config = testing.tiny_config(
    num_layers=4,
    windows=(0,) * 4,
    num_kv_heads=4,
    embed_dim=64,
    mlp_dim=256,
    vocab_size=264,
  )
  ids = jnp.asarray(rng.integers(0, 256, (8, 65)))

  def score(sizes, dtype):
    count = int(np.prod(list(sizes.values())))
    mesh = sharding.make_mesh(sizes, jax.devices()[:count])
    # The same weights in both: rounded to bfloat16.
    model = testing.tiny_model(config, mesh=mesh, dtype=jnp.bfloat16)
    params = jax.tree.map(lambda p: p.astype(dtype), model.params)

    @jax.jit
    def run(params, ids):
      transformer = nnx.merge(model.graphdef, params)
      return log_probs.target_log_probs(
        transformer(ids[:, :-1]),
        transformer.head(),
        ids[:, 1:],
        softcap=0.0,
        chunk=32,
      )

    split = jax.device_put(ids, sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
      return np.asarray(run(params, split), np.float64)

  exact = score({"data": 1}, jnp.float32)
  one, many = (
    np.sqrt(((score(place, jnp.bfloat16) - exact) ** 2).mean())
    for place in ({"data": 1}, sizes)
  )
  print(f"{sizes}: {many:.5f} nats of error, on one device {one:.5f}")
  # Partial sums that are rounded are at 1.02.
  assert 0 < many < 1.01 * one
