import inspect

import numpy as np
import pytest
from support import gguf_files, saved_models

from longctx_jax.checkpoints import export, weights
from longctx_jax.checkpoints.gguf.tensors import GgufSource
from longctx_jax.checkpoints.hf_folder import SafetensorsSource
from longctx_jax.checkpoints.tensor_source import TensorSource


def random_source(folder, mesh):
  return saved_models.family_source("llama")[1]


def safetensors(folder, mesh):
  saved_models.save(folder)
  return SafetensorsSource(folder)


def gguf(folder, mesh):
  tensors = gguf_files.hf_weights(np.random.default_rng(0))
  return GgufSource(gguf_files.write(folder / "m.gguf", tensors))


def parameters(folder, mesh):
  config, source = saved_models.family_source("llama")
  _, params = weights.load_parameters(
    source, config, dtype=np.float32, mesh=mesh
  )
  return export.ParameterSource(params, config)


@pytest.mark.parametrize("make", [random_source, safetensors, gguf, parameters])
def test_each_source_has_what_the_protocol_says(make, tmp_path, mesh):
  """A part is that part of the whole, and the bits are those of the values."""
  source = make(tmp_path, mesh)
  for name in TensorSource.__annotations__:
    assert getattr(source, name), name
  for name in ("read", "raw"):
    asked = inspect.signature(getattr(TensorSource, name)).parameters
    has = inspect.signature(getattr(type(source), name)).parameters
    assert [*has] == [*asked]
  name = "model.embed_tokens.weight"
  whole = source.read(name)
  assert whole.shape == tuple(source.shapes[name])
  index = (slice(1, 5), slice(2, 9))
  np.testing.assert_array_equal(source.read(name, index), whole[index])
  assert source.raw(name).dtype.kind == "u"
  assert source.raw(name).tobytes() == np.asarray(whole).tobytes()
