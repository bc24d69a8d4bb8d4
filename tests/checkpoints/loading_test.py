import time

import jax
import numpy as np
import pytest
from support import saved_models
from support.checks import refuses

from longctx_jax import testing
from longctx_jax.checkpoints import (
  convert,
  hf_folder,
  loading,
)
from longctx_jax.runtime import progress


@pytest.fixture
def folder(tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path / "m")
  return tmp_path / "m"


def test_a_saved_model_loads_to_the_same_logits(folder, mesh):
  ids = np.arange(20)[None]
  made = testing.tiny_model(seed=3, mesh=mesh)
  loaded = loading.load_model(folder, mesh=mesh)
  np.testing.assert_array_equal(made.logits(ids), loaded.logits(ids))
  assert made.checksum == loaded.checksum
  assert loaded.tokenizer.encode("ab", add_special_tokens=True).ids.size == 2


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", "m.gguf is empty"),
    (saved_models.POINTER, "m.gguf is a git-lfs pointer"),
  ],
)
def test_a_gguf_file_that_is_none_is_named(tmp_path, content, message):
  (tmp_path / "m.gguf").write_bytes(content)
  with refuses(message):
    loading.load_model(tmp_path / "m.gguf")


def test_ids_without_an_embedding_are_refused_where_they_occur(
  folder, mesh, caplog
):
  # cases G8
  config = testing.tiny_config(vocab_size=200)
  testing.RandomSource(config, seed=3).save(folder)
  tokenizer = loading.load_model(folder, mesh=mesh).tokenizer
  assert "ids up to 256, the model 200" in caplog.text
  ids = tokenizer.encode("plain", add_special_tokens=False).ids
  assert tokenizer.align(ids)[0] == "plain"
  with refuses("token 3, '<bos>', has id 256, and the model 200 embeddings"):
    tokenizer.encode("abc<bos>", add_special_tokens=False)
  with refuses("token 1, '<bos>', has id 256"):
    tokenizer.align([ids[0], 256])
  # Where every text would begin with it, none can be read.
  testing.RandomSource(config, seed=3).save(folder, add_bos=True)
  with refuses("token 0, '<bos>', has id 256"):
    loading.load_model(folder, mesh=mesh)


def test_slow_reading_says_that_it_goes_on(folder, mesh, monkeypatch, caplog):
  # cases H1
  monkeypatch.setattr(progress, "_LINE_SECONDS", 0.01)
  read = hf_folder.SafetensorsSource.raw

  def slow(self, name):
    time.sleep(0.02)
    return read(self, name)

  monkeypatch.setattr(hf_folder.SafetensorsSource, "raw", slow)
  with caplog.at_level("INFO"):
    loading.load_model(folder, mesh=mesh)
  assert f"still loading {folder}: 0 s" in caplog.text


def test_int8_weights_are_the_checkpoints_by_checksum_and_say_so(
  folder, tmp_path, mesh
):
  plain = loading.load_model(folder, mesh=mesh)
  first, again = (
    loading.load_model(folder, mesh=mesh, weights="int8") for _ in range(2)
  )
  assert first.checksum == plain.checksum
  assert first.weight_format == "safetensors F32 as int8"
  assert first.dtype == plain.dtype == "float32"
  ids = np.arange(20)[None]
  np.testing.assert_array_equal(first.logits(ids), again.logits(ids))
  gap = np.abs(first.logits(ids) - plain.logits(ids)).max()
  assert 0 < gap < 0.2
  # With its context cut it is the same model still.
  cut = first.with_attention(window=4, sink_len=1)
  assert np.abs(cut.logits(ids)[:, :4] - first.logits(ids)[:, :4]).max() < 1e-5
  # Bytes in place of numbers of four.
  sizes = [
    sum(leaf.nbytes for leaf in jax.tree.leaves(model.params["layers"]))
    for model in (first, plain)
  ]
  assert sizes[0] < 0.4 * sizes[1]


def test_int8_weights_are_no_checkpoint_and_come_from_tensors(
  folder, tmp_path, mesh
):
  model = loading.load_model(folder, mesh=mesh, weights="int8")
  for fmt in convert.FORMATS:
    with refuses("kernels are rounded to int8.*a checkpoint needs them"):
      convert.write_model(model, str(tmp_path / "out"), fmt=fmt, origin=None)
  assert not (tmp_path / "out").exists()
  convert.convert(str(folder), str(tmp_path / "orbax"), fmt="orbax")
  with refuses("orbax: weights are rounded to int8 from .*--output FOLDER"):
    loading.load_model(tmp_path / "orbax", mesh=mesh, weights="int8")
  with refuses("weights='int4' is not one of int8"):
    loading.load_model(folder, mesh=mesh, weights="int4")
