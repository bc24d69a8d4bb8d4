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
from support import published_models
from support.command_line import ROOT

from longctx_jax import testing
from longctx_jax.experiments.plan import compiler, search, workloads
from longctx_jax.model import loaded, sharding
from longctx_jax.model.attention_spec import AttentionSpec
from longctx_jax.model.backends import splash
from longctx_jax.model.rope import RopeConfig
from longctx_jax.paper.windows import Windows
from longctx_jax.runtime import chips
from longctx_jax.scoring import scorer as scorer_lib

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


@pytest.fixture
def topology_mesh():
  """(name of a slice, sizes) -> mesh over chips that are not there."""
  pytest.importorskip("libtpu")

  def make(name, sizes):
    devices = compiler.describe_devices(chips.parse(name))
    return sharding.make_mesh(sizes, devices)

  # A TPU cannot multiply bfloat16 at the precision that the tests set.
  with compiler.uncached(), jax.default_matmul_precision("default"):
    yield make


@pytest.fixture
def mesh(topology_mesh):
  """Eight v5e chips, 4 x fsdp and 2 x tensor."""
  return topology_mesh("v5e:2x4", {"fsdp": 4, "tensor": 2})


def abstract_model(config, mesh, dtype=jnp.bfloat16, *, weights=""):
  """A model whose parameters are shapes with shardings, or rounded to int8."""
  return loaded.describe(
    "abstract", config, mesh=mesh, dtype=dtype, weights=weights
  )


def compile_pass(model, name, shape, *static, windows, **options):
  """The compiled pass of a scorer."""
  scorer = scorer_lib.make_scorer(model, windows, backend="splash", **options)
  split = dict(
    long_pass=sharding.row_sharding, window_pass=sharding.batch_sharding
  )[name]
  ids, lengths = (
    jax.ShapeDtypeStruct(size, jnp.int32, sharding=split(model.mesh))
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


def written(text):
  """Lines of a compiled program whose results reach memory: none in fusions."""
  inside = False
  for line in text.splitlines():
    if line.endswith("{"):
      inside = line.lstrip().startswith("%fused_computation")
    elif not inside:
      yield line


@pytest.fixture
def one_chip(topology_mesh):
  """One v5e chip of 16 GiB."""
  return topology_mesh("v5e:1x1", {"fsdp": 1})


@pytest.mark.parametrize(
  ("name", "shape", "static"),
  [("window_pass", (4, 5120), (0,)), ("long_pass", (1, 1 + 131072), ())],
)
def test_an_8b_model_in_int8_scores_on_one_small_chip(
  one_chip, name, shape, static
):
  model = abstract_model(
    testing.tiny_config(**LLAMA31_8B), one_chip, weights="int8"
  )
  compiled = compile_pass(
    model, name, shape, *static, windows=Windows(4096, 1024)
  )
  assert print_memory(f"int8 {name}", compiled) < 15 * GIB
  # Kernels leave int8 on the way into a product: no copy is written of a stack
  # nor of a layer. (4096 x 4096 are also the rows that four windows score.)
  text = compiled.as_text()
  for kernel in ("4096,14336", "14336,4096", "4096,4096"):
    assert f"s8[32,{kernel}]" in text
    assert not re.search(rf"(bf16|f32)\[32,{kernel}\]", text)
    copies = rf"= (bf16|f32)\[(1,)?({kernel})\]"
    if kernel != "4096,4096":
      assert not [line for line in written(text) if re.search(copies, line)]


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


def compile_workload(config, name, place, *, within):
  """A program of a config, in less memory than stated, and as planned."""
  place = chips.parse(place)
  workload = workloads.read(config)
  mesh = sharding.make_mesh(workload.sizes, compiler.describe_devices(place))
  compiled = workload.compile(name, mesh)
  assert print_memory(f"{workload.model} {name}", compiled) < within
  planned = search.estimate(workload, place)[name]
  memory = compiled.memory_analysis()
  given = planned.weights + planned.optimizer
  # The rest is the batch.
  assert 0 < memory.argument_size_in_bytes - given < GIB / 32
  found = compiler.peak(memory)
  print(f"planned {planned.peak / GIB:.2f} GiB, compiled {found / GIB:.2f}")
  assert found / search.MARGIN < planned.peak < found * search.MARGIN
  return compiled


@pytest.mark.parametrize("name", ["long pass", "short pass"])
def test_the_scoring_of_govreport_llama31_8b_compiles(topology_mesh, name):
  config = load_config("govreport_llama31_8b")
  compile_workload(config, name, "v5p:2x2x1", within=40 * GIB)


@pytest.mark.parametrize(
  ("config", "variant", "changed", "name", "place"),
  [
    ("smollm2_135m", "", {}, "long pass", "v5e:1x1"),
    ("smollm2_135m", "", {}, "short pass", "v5e:2x2"),
    ("govreport_llama31_8b", "", {"data.max_length": 147456}, "long pass",
     "v5e:2x2"),
    ("govreport_llama31_8b", "", {"mesh.tensor": 2}, "long pass", "v6e:2x4"),
    ("smollm2_135m", "train", {"data.batch_size": 4}, "train step", "v5e:2x2"),
    ("smollm2_135m", "train", {"data.batch_size": 16, "loss.weights": "none",
     "optimizer.accumulate": 2}, "train step", "v5p:2x2x1"),
  ],
)  # fmt: skip
def test_the_analytic_model_is_within_its_margin(
  topology_mesh, config, variant, changed, name, place
):
  config = load_config(config, variant)
  config.update_from_flattened_dict(changed)
  hbm = chips.parse(place).chip.hbm
  compile_workload(config, name, place, within=hbm)


@pytest.mark.parametrize("variant", [""])
def test_the_step_of_llama2_7b_compiles_at_32k(topology_mesh, variant):
  """8 v5p chips of 95 GiB: parameters, Adam and 64 rows of 32,768 tokens."""
  config = load_config("llama2_7b", variant)
  compiled = compile_workload(
    config, "train step", "v5p:2x2x2", within=80 * GIB
  )
  assert count_kernels(compiled)


def test_the_step_of_llama31_8b_compiles_at_128k(topology_mesh):
  """8 v5p chips share each row of 131,072 tokens, and the parameters."""
  config = load_config("llama31_8b")
  config.data.seq_len = 131072
  config.mesh.update(fsdp=1, context=8)
  config.optimizer.accumulate = config.data.batch_size
  workload = workloads.read(config)
  mesh = topology_mesh("v5p:2x2x2", workload.sizes)
  compiled = workload.compile("train step", mesh)
  assert count_kernels(compiled)
  assert print_memory("llama31_8b at 131,072", compiled) < 40 * GIB


def test_a_plan_that_does_not_fit_says_by_how_much(topology_mesh):
  """Llama-2-7B with Adam on eight chips of 16 GiB."""
  place = chips.parse("v5e:2x4")
  workload = workloads.read(load_config("llama2_7b"))
  found = compiler.compile_program(workload, "train step", place)
  assert not found.fits
  print(f"the compiler asks for {found.peak / GIB:.2f} GiB")
  assert found.peak > place.chip.hbm


@pytest.mark.parametrize(
  ("length", "sizes"),
  [
    (2**20, {"context": 8}),
    # Longer than what a kernel takes at a time.
    (2**20, {"fsdp": 2, "tensor": 4}),
  ],
)
def test_a_million_tokens_of_an_8b_model_are_scored_at_once(
  topology_mesh, length, sizes
):
  mesh = topology_mesh("v5p:2x2x2", sizes)
  model = abstract_model(testing.tiny_config(**LLAMA31_8B), mesh)
  shape = sharding.row_ways(mesh), length + 1
  compiled = compile_pass(
    model, "long_pass", shape, windows=Windows(4096, 1024)
  )
  print(f"{count_kernels(compiled)} kernels")
  assert print_memory(f"a long pass of {length:,}", compiled) < 95 * GIB


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
