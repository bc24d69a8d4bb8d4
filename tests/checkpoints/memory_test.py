"""Peak memory of loading and export, on a checkpoint of 2.1 GiB.

JAX's CPU devices live in the process's memory, so the parameters themselves
are subtracted: what is left is what the host needs beside the devices.
"""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.checkpoints import export, tensor_map, weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import parameters

GIB = 2**30
SHARD = GIB // 2
CONFIG = testing.tiny_config(
  vocab_size=65536,
  embed_dim=2048,
  num_layers=14,
  num_heads=16,
  num_kv_heads=4,
  head_dim=128,
  mlp_dim=8192,
  windows=(0,) * 14,
  tied=False,
)
MEASURE = """
import json, resource, sys
import jax, jax.numpy as jnp

from longctx_jax.checkpoints import convert, hub, loading

def peak():
  return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

folder, target, weights = sys.argv[1:]
start = peak()
model = loading.load_model(folder, dtype=jnp.bfloat16, weights=weights)
loaded = peak()
size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
if target:
  convert.write_model(
    model, target, fmt="hf", origin=None, max_shard_bytes=2**29
  )
print(json.dumps(dict(start=start, load=loaded, export=peak(), size=size)))
"""


class CheapSource:
  """Tensors of any size: one row of noise, repeated."""

  def __init__(self, config):
    shapes = parameters.parameter_shapes(config)
    table = tensor_map.parameter_table(config, shapes)
    self.shapes = weights.tensor_shapes(table, shapes)
    self.config = config_json.to_hf(config)

  def read(self, name, index=()):
    shape = self.shapes[name]
    rng = np.random.default_rng(len(name))
    row = rng.normal(size=shape[-1:]).astype(ml_dtypes.bfloat16)
    return np.broadcast_to(row, shape)[index]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("devices", "rounded"), [(1, ""), (8, ""), (1, "int8")]
)
def test_the_host_holds_a_shard_and_two_tensors_at_most(
  tmp_path, devices, rounded
):
  # cases G4
  source = CheapSource(CONFIG)
  export.write_folder(
    source,
    CONFIG,
    tmp_path / "in",
    dtype=ml_dtypes.bfloat16,
    origin=None,
    max_shard_bytes=SHARD,
  )
  files = list((tmp_path / "in").glob("*.safetensors"))
  assert sum(file.stat().st_size for file in files) > 2 * GIB
  flags = f"--xla_force_host_platform_device_count={devices}"
  target = str(tmp_path / "out") if devices == 1 and not rounded else ""
  done = subprocess.run(
    [sys.executable, "-c", MEASURE, str(tmp_path / "in"), target, rounded],
    env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    capture_output=True,
    text=True,
    timeout=900,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  found = json.loads(done.stdout.splitlines()[-1])
  tensor = max(2 * np.prod(shape) for shape in source.shapes.values())
  shard = max(file.stat().st_size for file in files)
  print({name: f"{value / GIB:.2f} GiB" for name, value in found.items()})
  for stage in ("load", "export"):
    assert found[stage] - found["size"] <= shard + 2 * tensor + GIB
