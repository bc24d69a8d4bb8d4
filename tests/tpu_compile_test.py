"""Compiles whole programs for TPU on any machine: lowering, layout, memory.

Needs `pip install jax[tpu]` of the installed JAX; `make test-tpu-compile`.
Nothing runs, so this says nothing about values; interpret mode does, in
model/attention_test.py.
"""

import dataclasses
import re
import runpy

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.experimental import topologies
from support import published_models
from support.command_line import ROOT

from longctx_jax import testing
from longctx_jax.model import parameters, partition, sharding
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import splash
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.scoring import setup
from longctx_jax.training import config as config_lib
from longctx_jax.training import optimizer, program, rows

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
LLAMA31_8B = LLAMA_8B | dict(
  max_position=131072,
  ropes=(
    RopeConfig(
      "llama3",
      500000.0,
      factor=8.0,
      original_max_position=8192,
      low_freq_factor=1.0,
      high_freq_factor=4.0,
    ),
  ),
)
LLAMA2_7B = LLAMA_8B | dict(
  vocab_size=32000, num_kv_heads=32, mlp_dim=11008, max_position=4096
)


@pytest.fixture
def topology_mesh(monkeypatch):
  """(name of a topology, sizes) -> mesh over chips that are not there."""
  pytest.importorskip("libtpu")
  # No metadata server is asked, and several processes may load the compiler.
  for name, value in (
    ("TPU_SKIP_MDS_QUERY", "1"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_ACCELERATOR_TYPE", "v5litepod-8"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
  ):
    monkeypatch.setenv(name, value)

  def make(name, sizes):
    topology = topologies.get_topology_desc(platform="tpu", topology_name=name)
    return sharding.make_mesh(sizes, topology.devices)

  # A TPU cannot multiply bfloat16 at the precision that the tests set.
  with jax.default_matmul_precision("default"):
    yield make


@pytest.fixture
def mesh(topology_mesh):
  """Eight v5e chips, 4 x fsdp and 2 x tensor."""
  return topology_mesh("v5e:2x4", {"fsdp": 4, "tensor": 2})


def abstract_model(config, mesh, dtype=jnp.bfloat16):
  """A model whose parameters are shapes with shardings."""
  graphdef, params = parameters.abstract_model(config, jnp.dtype(dtype))
  shapes = {
    name: leaf.shape for name, leaf in parameters.flatten(params).items()
  }
  placed = partition.parameter_shardings(config, shapes, mesh)

  def place(path, leaf):
    name = ".".join(str(part) for part in path)
    return leaf.replace(
      jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=placed[name])
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


def compile_pass(model, name, shape, *static, windows, **options):
  """The compiled pass of a scorer."""
  scorer = scorer_lib.make_scorer(model, windows, backend="splash", **options)
  ids, lengths = (
    jax.ShapeDtypeStruct(
      size, jnp.int32, sharding=sharding.batch_sharding(model.mesh)
    )
    for size in (shape, shape[:1])
  )
  with jax.set_mesh(model.mesh):
    function = getattr(scorer, name)
    return function.lower(model.params, ids, lengths, *static).compile()


def load_config(name, variant=""):
  path = ROOT / "configs" / f"{name}.py"
  config = runpy.run_path(str(path))["get_config"](variant)
  config.lock()
  return config


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
  compiled = compile_pass(
    model, name, shape, *static, windows=Windows(4096, 1024)
  )
  assert count_kernels(compiled) == kernels
  # 16 GB of parameters are 1.87 GiB a chip; the rest is activations.
  assert compiled.memory_analysis().peak_memory_in_bytes < limit


def count_gathers_within_products(text):
  """Products in whose kernel the gather of another kernel goes on."""
  computations = re.findall(
    r"^%async_collective_fusion.*?^}", text, re.M | re.S
  )
  return sum(
    " convolution(" in body and " all-gather(" in body for body in computations
  )


def test_the_long_pass_of_llama31_8b_gathers_whole_kernels(topology_mesh):
  """Eight v5e chips, a text of 32,768 ids on each."""
  model = abstract_model(
    testing.tiny_config(**LLAMA31_8B), topology_mesh("v5e:2x4", {"fsdp": 8})
  )
  compiled = compile_pass(
    model, "long_pass", (8, 1 + 32768), windows=Windows(4096, 1024)
  )
  assert print_memory("llama31_8b long_pass", compiled) < 4.5 * GIB
  text = compiled.as_text()
  # Partial sums that go round the shards are rounded at each of them.
  assert "windowed_dot_general" not in text
  started = text.count('custom_call_target="AsyncCollectiveStart"')
  assert started == text.count('custom_call_target="AsyncCollectiveDone"') > 0
  # Of the seven kernels of a layer, the one at its beginning has to wait.
  assert count_gathers_within_products(text) >= 5


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("length", [4096, 32768, 131072])
@pytest.mark.parametrize("chips", ["v5e:2x2", "v5p:2x2x1"])
def test_splash_fits_with_its_blocks(topology_mesh, chips, length, head_dim):
  """Forward, and both kernels of the backward pass."""
  mesh = topology_mesh(chips, {"fsdp": 4})
  q, k = (
    jax.ShapeDtypeStruct(
      (4, length, heads, head_dim),
      jnp.bfloat16,
      sharding=sharding.batch_sharding(mesh),
    )
    for heads in (2, 1)
  )

  def loss(q, k, v):
    spec = AttentionSpec(scale=0.1)
    out = splash.splash_attention(q, k, v, spec, None)
    return out.astype(jnp.float32).sum()

  with jax.set_mesh(mesh):
    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(q, k, k).compile()
  assert count_kernels(compiled) == 3


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


def print_memory(name, compiled):
  memory = compiled.memory_analysis()
  print(
    f"{name}: {memory.argument_size_in_bytes / GIB:.2f} GiB of arguments, "
    f"{memory.temp_size_in_bytes / GIB:.2f} of temporaries, peak "
    f"{memory.peak_memory_in_bytes / GIB:.2f} GiB per device"
  )
  return memory.peak_memory_in_bytes


@pytest.mark.parametrize("name", ["long_pass", "window_pass"])
def test_the_scoring_of_govreport_llama31_8b_compiles(topology_mesh, name):
  config = load_config("govreport_llama31_8b")
  mesh = topology_mesh("v5p:2x2x1", {"fsdp": 4})
  model = abstract_model(testing.tiny_config(**LLAMA31_8B), mesh)
  windows = setup.windows_of(config)
  scorer = scorer_lib.make_scorer(
    model, windows, window_batch=4, backend="splash"
  )
  shape, static = {
    # The paper protocol has no BOS before a window: no prefix.
    "window_pass": ((scorer.window_batch, windows.length), (0,)),
    "long_pass": ((scorer.long_batch, config.data.max_length), ()),
  }[name]
  compiled = compile_pass(
    model, name, shape, *static, window_batch=4, chunk=config.scoring.chunk,
    windows=windows,
  )  # fmt: skip
  assert print_memory(f"govreport_llama31_8b {name}", compiled) < 40 * GIB


@pytest.mark.parametrize("variant", [""])
def test_the_step_of_llama2_7b_compiles_at_32k(topology_mesh, variant):
  """8 v5p chips of 95 GiB: parameters, Adam and 64 rows of 32,768 tokens."""
  config = load_config("llama2_7b", variant)
  config.model.dtype, config.model.backend = "bfloat16", "splash"
  config.loss.window_batch = 4  # What a TPU would take.
  mesh = topology_mesh("v5p:2x2x2", dict(config.mesh))
  model = config_lib.adapted(
    config,
    abstract_model(testing.tiny_config(**LLAMA2_7B), mesh, jnp.float32),
  )
  rule = optimizer.make_optimizer(
    config_lib.optimizer_config(config), config.optimizer.steps
  )
  state = program.describe_state(model, rule)
  data = config_lib.data_config(config, "anywhere")
  one = rows.make_row(
    [[1, 2, 3]],
    seq_len=data.seq_len,
    packed=data.packing,
    windows=data.windows,
  )
  batch = {
    name: jax.ShapeDtypeStruct(
      (data.batch_size, *field.shape),
      field.dtype,
      sharding=sharding.batch_sharding(mesh),
    )
    for name, field in one.items()
  }
  compiled = program.compile_step(config, model, state, batch)
  assert count_kernels(compiled)
  assert print_memory(f"llama2_7b:{variant}", compiled) < 80 * GIB


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
    abstract_model(config, mesh),
    "window_pass",
    (8, 5121),
    1,
    windows=Windows(4096, 1024),
  )
  assert count_kernels(compiled) == kernels
  memory = compiled.memory_analysis().peak_memory_in_bytes
  print(f"{name}: {memory / GIB:.2f} GiB a chip")
  assert memory < 15 * GIB
