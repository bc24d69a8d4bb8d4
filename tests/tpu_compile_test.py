"""Compiles whole programs for TPU on any machine: lowering, layout, memory.

Needs `pip install jax[tpu]` of the installed JAX. Nothing runs, so this says
nothing about values; interpret mode does, in model/attention_test.py.
"""

import dataclasses

import jax
import jax.numpy as jnp
import published_models
import pytest
from flax import nnx
from jax.experimental import topologies

from longctx_jax import scoring, sharding, testing
from longctx_jax.loading import LoadedModel
from longctx_jax.model import hf, partition
from longctx_jax.model.transformer import Transformer

pytestmark = pytest.mark.tpu_compile

GIB = 2**30
LLAMA_8B = dict(
  vocab_size=128256,
  embed_dim=4096,
  num_layers=32,
  num_heads=32,
  num_kv_heads=8,
  head_dim=128,
  mlp_dim=14336,
  tied=False,
  windows=(0,) * 32,
)


@pytest.fixture
def mesh(monkeypatch):
  """Eight v5e chips, 4 x fsdp and 2 x tensor."""
  pytest.importorskip("libtpu")
  # No metadata server is asked, and several processes may load the compiler.
  for name, value in (
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
  ):
    monkeypatch.setenv(name, value)
  topology = topologies.get_topology_desc(
    platform="tpu", topology_name="v5e:2x4"
  )
  # A TPU cannot multiply bfloat16 at the precision that the tests set.
  with jax.default_matmul_precision("default"):
    yield sharding.make_mesh({"fsdp": 4, "tensor": 2}, topology.devices)


def abstract_model(config, mesh):
  """A model in bfloat16 whose parameters are shapes with shardings."""
  abstract = nnx.eval_shape(
    lambda: Transformer(config, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
  )
  graphdef, params = nnx.split(abstract, nnx.Param)
  shapes = {name: leaf.shape for name, leaf in hf.flatten(params).items()}
  placed = partition.parameter_shardings(config, shapes, mesh)

  def place(path, leaf):
    name = ".".join(str(part) for part in path)
    return leaf.replace(
      jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16, sharding=placed[name])
    )

  params = nnx.from_flat_state(
    [(path, place(path, leaf)) for path, leaf in nnx.to_flat_state(params)]
  )
  return LoadedModel(
    name="abstract",
    graphdef=graphdef,
    params=params,
    config=config,
    tokenizer=None,
    mesh=mesh,
    checksum="",
    revision="",
    weight_format="",
  )


def compile_pass(model, name, shape, *static, backend):
  """The compiled pass of a scorer with the paper's windows."""
  scorer = scoring.make_scorer(
    model, short_len=4096, stride=1024, backend=backend
  )
  ids, lengths = (
    jax.ShapeDtypeStruct(
      size, jnp.int32, sharding=sharding.batch_sharding(model.mesh)
    )
    for size in (shape, shape[:1])
  )
  with jax.set_mesh(model.mesh):
    function = getattr(scorer, name)
    return function.lower(model.params, ids, lengths, *static).compile()


def count_kernels(compiled):
  return compiled.as_text().count('custom_call_target="tpu_custom_call"')


@pytest.mark.parametrize(
  ("name", "shape", "static", "kernels", "limit"),
  [
    # One kernel in the scan, one for the scored rows of the last layer.
    ("window_pass", (16, 1 + 5120), (1,), 2, 4 * GIB),
    ("long_pass", (4, 1 + 32768), (), 1, 5 * GIB),
  ],
)
def test_an_8b_model_scores_on_eight_chips(
  mesh, name, shape, static, kernels, limit
):
  model = abstract_model(testing.tiny_config(**LLAMA_8B), mesh)
  compiled = compile_pass(model, name, shape, *static, backend="splash")
  assert count_kernels(compiled) == kernels
  # 16 GB of parameters are 1.87 GiB a chip; the rest is activations.
  assert compiled.memory_analysis().peak_memory_in_bytes < limit


def test_gradients_through_layers_with_windows_and_sinks(mesh):
  config = testing.tiny_config(
    vocab_size=264, head_dim=80, windows=(0, 300), sink_len=4
  )
  model = abstract_model(config, mesh)
  ids = jax.ShapeDtypeStruct(
    (4, 1000), jnp.int32, sharding=sharding.batch_sharding(mesh)
  )

  def loss(params, ids):
    module = nnx.merge(model.graphdef, params)
    return module(ids, backend="splash").astype(jnp.float32).sum()

  with jax.set_mesh(mesh):
    compiled = jax.jit(jax.grad(loss)).lower(model.params, ids).compile()
  # Forward, and backward for queries and for keys, of two kinds of layer.
  assert count_kernels(compiled) == 6


@pytest.mark.parametrize(
  ("name", "kernels"),
  [
    # Caps, and two windows in the scan.
    ("gemma-2-2b", 3),
    # A table for each kind of layer.
    ("gemma-3-1b-pt", 3),
    # A table that depends on the length.
    ("Phi-3-mini-128k-instruct", 2),
    # The rest are products of groups of rows, each with its own expert.
    ("Mixtral-8x7B-Instruct-v0.1", 10),
    ("Qwen3-30B-A3B", 10),
  ],
)
def test_each_kind_of_family_scores_on_eight_chips(mesh, name, kernels):
  _, config = published_models.read(name)
  if config.num_kv_heads == 1:
    # A head is not split.
    mesh = sharding.make_mesh({"fsdp": 8}, list(mesh.devices.flat))
  if config.num_experts:
    # All layers of these do not fit on eight chips.
    config = dataclasses.replace(config, num_layers=4, windows=(0,) * 4)
  compiled = compile_pass(
    abstract_model(config, mesh), "window_pass", (8, 5121), 1, backend="splash"
  )
  assert count_kernels(compiled) == kernels
  memory = compiled.memory_analysis().peak_memory_in_bytes
  print(f"{name}: {memory / GIB:.2f} GiB a chip")
  assert memory < 15 * GIB
