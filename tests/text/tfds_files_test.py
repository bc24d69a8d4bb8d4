"""Prepared data sets of tensorflow-datasets, read without TensorFlow."""

import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from longctx_jax.text import corpus

TEXTS = ["héllo world " * (i + 1) for i in range(5)]


class TinyBooks(tfds.core.GeneratorBasedBuilder):
  """Five books in the shape of PG-19."""

  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    features = {"book_id": np.int32, "book_text": tfds.features.Text()}
    return tfds.core.DatasetInfo(
      builder=self, features=tfds.features.FeaturesDict(features)
    )

  def _split_generators(self, dl_manager):
    del dl_manager
    return {"train": self._generate_examples()}

  def _generate_examples(self):
    for i, text in enumerate(TEXTS):
      yield i, {"book_id": 70 + i, "book_text": text}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  builder = TinyBooks(data_dir=str(folder), file_format="array_record")
  builder.download_and_prepare()
  return folder


@pytest.fixture(autouse=True)
def home(monkeypatch, folder):
  # TFDS_DATA_DIR is read when the library is imported.
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(folder))


def open_corpus(source, **options):
  return corpus.open_corpus(
    source, text_column="book_text", id_column="book_id", **options
  )


def test_a_split_is_a_corpus(folder):
  for name in ("tiny_books", folder / "tiny_books" / "1.0.0"):
    found = open_corpus(f"tfds:{name}/train")
    documents = {one.doc_id: one.text for one in found}
    assert documents == {str(70 + i): text for i, text in enumerate(TEXTS)}
    assert found.identity["files"][0][1] == "tiny_books/1.0.0 5"
  assert "tensorflow" not in sys.modules


def test_rows_and_slices_of_a_split():
  whole = [one.text for one in open_corpus("tfds:tiny_books/train")]
  part = open_corpus("tfds:tiny_books/train[1:4]", row_range=(1, 3))
  assert [one.text for one in part] == whole[2:4]


@pytest.mark.parametrize(
  ("source", "error", "message"),
  [
    ("tiny_books/val", ValueError, "no split 'val'; there are train"),
    ("nothing/train", FileNotFoundError, "no prepared data set"),
    ("mnist/train", FileNotFoundError, "is not prepared in .*pip install"),
    ("pg19/train", FileNotFoundError, "is not prepared in .*data.py pg19"),
  ],
)
def test_what_is_not_there_says_what_to_do(source, error, message):
  with pytest.raises(error, match=f"tfds:{source}.*{message}"):
    open_corpus(f"tfds:{source}")


def test_without_the_library_its_name_is_told(monkeypatch):
  monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
  with pytest.raises(
    ValueError, match="needs tensorflow-datasets: pip install"
  ):
    open_corpus("tfds:tiny_books/train")
