"""The tiny models are what they promise: real, random, and the same again."""

import jax
import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.checkpoints import loading
from longctx_jax.model import parameters


def values(model):
  return {
    name: np.asarray(x) for name, x in parameters.flatten(model.params).items()
  }


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_token_is_a_byte(add_bos):
  tokenizer = testing.byte_tokenizer(add_bos=add_bos)
  text = " naïve 🙂\n\0"
  ids = tokenizer.encode(text).ids
  assert len(ids) == len(text.encode()) + add_bos
  assert (ids[0] == tokenizer.token_to_id(testing.BOS) == 256) == add_bos
  assert max(ids[add_bos:]) < 256 and tokenizer.decode(ids) == text


def test_a_seed_is_a_model_and_its_folder_is_the_same_one(tmp_path, mesh):
  model = testing.tiny_model(seed=3, mesh=mesh)
  testing.RandomSource(testing.tiny_config(), seed=3).save(tmp_path)
  for same in (
    testing.tiny_model(seed=3, mesh=mesh),
    loading.load_model(tmp_path, dtype="float32", mesh=mesh),
  ):
    assert same.checksum == model.checksum
    jax.tree.map(np.testing.assert_array_equal, values(same), values(model))
  other = testing.tiny_model(seed=4, mesh=mesh)
  assert other.checksum != model.checksum
  assert all((x != values(model)[n]).any() for n, x in values(other).items())


def test_names_of_a_document_come_back():
  text = testing.synthetic_document(1, num_words=400)
  assert text == testing.synthetic_document(1, num_words=400)
  assert text != testing.synthetic_document(2, num_words=400)
  words = text.split()
  names = [w.strip(".").lower() for w in words if w.strip(".")[-1].isdigit()]
  assert len(words) == 400 and len(set(names)) <= 12 < 24 < len(names)
