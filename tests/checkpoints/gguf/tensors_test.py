"""The tensors of GGUF files written here, and of SmolLM2."""

import gguf
import ml_dtypes
import numpy as np
import pytest
from support import gguf_files
from support.gguf_files import Kind

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.gguf.tensors import GgufSource


@pytest.mark.parametrize(
  "arch, options",
  [
    ("llama", {}),
    ("llama", {"bias": True, "head": False}),
    ("qwen2", {"bias": True}),
    ("qwen3", {"qk_norm": True, "head": False}),
  ],
)
def test_tensors_come_back_in_hugging_face_layout(tmp_path, rng, arch, options):
  """Cases G3: query and key rows in order, under GQA 4/2 too."""
  weights = gguf_files.hf_weights(rng, **options)
  source = GgufSource(gguf_files.write(tmp_path / "m.gguf", weights, arch=arch))
  assert source.shapes == {n: tensor.shape for n, tensor in weights.items()}
  for name, tensor in weights.items():
    found = source.read(name)
    np.testing.assert_array_equal(found, tensor, strict=True)
    np.testing.assert_array_equal(
      source.raw(name), tensor.view(np.uint32), strict=True
    )
  assert source.config["tie_word_embeddings"] == (not options.get("head", True))


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_quantised_tensors_are_dequantised_in_order(tmp_path, rng, kind):
  """Cases G3: blocks run along rows, so rows can be put in order before."""
  weights = gguf_files.hf_weights(rng)
  source = GgufSource(gguf_files.write(tmp_path / "m.gguf", weights, kind=kind))
  assert source.weight_format == f"gguf {kind.name}"
  for name, tensor in weights.items():
    if tensor.ndim == 1:
      continue
    blocks = gguf.quantize(tensor, kind)
    np.testing.assert_array_equal(source.raw(name), blocks, strict=True)
    np.testing.assert_array_equal(
      source.read(name), gguf.dequantize(blocks, kind), strict=True
    )


@pytest.mark.parametrize(
  "kind, dtype", [(Kind.F16, np.float16), (Kind.BF16, ml_dtypes.bfloat16)]
)
def test_half_precision_stays_as_stored(tmp_path, rng, kind, dtype):
  weights = gguf_files.hf_weights(rng)
  source = GgufSource(gguf_files.write(tmp_path / "m.gguf", weights, kind=kind))
  name = "model.layers.0.self_attn.k_proj.weight"
  expected = weights[name].astype(dtype)
  np.testing.assert_array_equal(source.read(name), expected, strict=True)
  np.testing.assert_array_equal(
    source.raw(name), expected.view(np.uint16), strict=True
  )


def test_reading_one_tensor_leaves_the_others_alone(tmp_path, rng, monkeypatch):
  path = gguf_files.write(
    tmp_path / "m.gguf", gguf_files.hf_weights(rng), kind=Kind.Q8_0
  )
  dequantize, calls = gguf.dequantize, []

  def count(data, kind):
    calls.append(data.shape)
    return dequantize(data, kind)

  monkeypatch.setattr(gguf, "dequantize", count)
  source = GgufSource(path)
  assert not calls
  source.read("lm_head.weight")
  assert calls == [(gguf_files.VOCAB, gguf_files.EMBED // 32 * 34)]
  # Of the rows that are asked for; columns of the same rows are at hand.
  source.read("lm_head.weight", (slice(2, 5), slice(0, 16)))
  source.read("lm_head.weight", (slice(2, 5), slice(16, 32)))
  assert calls[1:] == [(3, gguf_files.EMBED // 32 * 34)]


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.Q8_0])
def test_a_part_is_that_part_of_the_whole(tmp_path, rng, kind):
  path = gguf_files.write(
    tmp_path / "m.gguf", gguf_files.hf_weights(rng), kind=kind
  )
  source, whole = GgufSource(path), GgufSource(path)
  for name in ("q_proj", "k_proj", "v_proj"):
    name = f"model.layers.0.self_attn.{name}.weight"
    for rows in (slice(3, 13), slice(0, 13), slice(3, 5)):
      index = rows, slice(5, 20)
      np.testing.assert_array_equal(
        source.read(name, index), whole.read(name)[index]
      )


def scales_of_q4_k(packed):
  """Eight scales and eight minima of 6 bits in 12 bytes (ggml's k-quants)."""
  scale = [packed[j] & 63 for j in range(4)]
  minimum = [packed[j + 4] & 63 for j in range(4)]
  for j in range(4, 8):
    scale.append((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4))
    minimum.append((packed[j + 4] >> 4) | (packed[j] >> 6 << 4))
  return scale, minimum


def values_of_q4_k(block):
  """One block of 256 values, one by one."""
  step, low = block[:4].view(np.float16).astype(np.float32)
  scale, minimum = scales_of_q4_k([int(b) for b in block[4:16]])
  nibbles = block[16:]
  return [
    step
    * scale[i // 32]
    * int(nibbles[i // 64 * 32 + i % 32] >> (i // 32 % 2 * 4) & 15)
    - low * minimum[i // 32]
    for i in range(256)
  ]


def values_of_q6_k(block):
  """One block of 256 values, one by one."""
  low, high = block[:128], block[128:192]
  scale, step = block[192:208].view(np.int8), block[208:].view(np.float16)[0]
  values = []
  for i in range(256):
    half, j = divmod(i, 128)
    quarter, k = divmod(j, 32)
    nibble = low[half * 64 + (quarter % 2) * 32 + k] >> (quarter // 2 * 4) & 15
    top = high[half * 32 + k] >> (2 * quarter) & 3
    number = int(nibble | top << 4) - 32
    values.append(np.float32(step) * int(scale[i // 16]) * number)
  return values


@pytest.mark.parametrize(
  "kind, values", [(Kind.Q4_K, values_of_q4_k), (Kind.Q6_K, values_of_q6_k)]
)
def test_k_quants_are_dequantised(tmp_path, rng, kind, values):
  _, size = gguf.GGML_QUANT_SIZES[kind]
  blocks = rng.integers(0, 256, (gguf_files.VOCAB, size), np.uint8)
  place = slice(0, 4) if kind == Kind.Q4_K else slice(208, 210)
  for block in blocks:
    steps = rng.uniform(0.01, 0.1, (place.stop - place.start) // 2)
    block[place] = steps.astype(np.float16).view(np.uint8)
  weights = gguf_files.hf_weights(rng, head=False)
  extra = [("output.weight", blocks, kind)]
  source = GgufSource(
    gguf_files.write(tmp_path / "m.gguf", weights, extra=extra)
  )
  np.testing.assert_allclose(
    source.read("lm_head.weight"), [values(b) for b in blocks], rtol=1e-5
  )


@pytest.fixture(scope="module")
def smollm2():
  return gguf_files.smollm2()


def test_smollm2_is_read(smollm2):
  config = config_json.from_hf(smollm2.config, source=smollm2.path)
  assert (config.num_layers, config.num_heads, config.num_kv_heads) == (
    30,
    9,
    3,
  )
  assert config.rope.theta == 100000.0 and config.tied
  assert smollm2.weight_format == "gguf Q4_1"
  assert len(smollm2.shapes) == 2 + 30 * 9
  key = smollm2.read("model.layers.29.self_attn.k_proj.weight")
  assert key.shape == (192, 576) and key.dtype == np.float32
  assert 0.01 < key.std() < 1
