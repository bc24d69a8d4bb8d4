"""The header against the gguf package's own reader."""

import gguf
import numpy as np
import pytest

from longctx_jax.checkpoints.gguf import header


@pytest.fixture
def path(tmp_path):
  writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
  writer.add_uint8("some.uint8", 200)
  writer.add_int8("some.int8", -3)
  writer.add_uint16("some.uint16", 60000)
  writer.add_int16("some.int16", -30000)
  writer.add_int32("some.int32", -5)
  writer.add_float32("some.float32", 1e-5)
  writer.add_float64("some.float64", 0.1)
  writer.add_uint64("some.uint64", 2**40)
  writer.add_int64("some.int64", -(2**40))
  writer.add_bool("some.bool", True)
  writer.add_string("some.string", "é")
  writer.add_array("some.strings", ["a", "", "中文"])
  writer.add_array("some.floats", [0.5, -2.0])
  writer.add_array("some.ints", [1, 2, 3])
  writer.add_tensor("vector", np.arange(7, dtype=np.float32))
  matrix = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
  kind = gguf.GGMLQuantizationType.Q8_0
  writer.add_tensor("matrix", gguf.quantize(matrix, kind), raw_dtype=kind)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return tmp_path / "small.gguf"


def read(path):
  return header.read_header(np.fromfile(path, np.uint8))


def test_fields_and_tensors_are_those_of_the_package(path):
  reader = gguf.GGUFReader(path)
  fields, tensors = read(path)
  expected = {
    key: field.contents()
    for key, field in reader.fields.items()
    if not key.startswith("GGUF.")
  }
  found = {
    key: value.tolist() if isinstance(value, np.ndarray) else value
    for key, value in fields.items()
  }
  # A float32 is read as the shortest decimal that stands for it.
  assert np.float32(found["some.float32"]) == expected.pop("some.float32")
  assert found.pop("some.float32") == 1e-5
  assert found == expected
  assert list(tensors) == [tensor.name for tensor in reader.tensors]
  for tensor in reader.tensors:
    stored = tensors[tensor.name]
    assert stored.kind == tensor.tensor_type
    assert stored.shape == tuple(tensor.shape[::-1].tolist())
    assert stored.begin == tensor.data_offset
    assert stored.end == tensor.data_offset + tensor.n_bytes


@pytest.mark.parametrize("kept", [3, 30, 200, -40])
def test_a_file_that_is_cut_off_is_refused(path, kept):
  path.write_bytes(path.read_bytes()[:kept])
  with pytest.raises(ValueError, match="cut off"):
    read(path)


def test_other_files_and_versions_are_refused(path):
  data = path.read_bytes()
  path.write_bytes(b"GGML" + data[4:])
  with pytest.raises(ValueError, match="GGML.*version 3"):
    read(path)
  path.write_bytes(data[:4] + data[4:8][::-1] + data[8:])
  with pytest.raises(ValueError, match="little-endian GGUF files"):
    read(path)
