"""Data sets prepared as Parquet: found under one name, whole or not at all."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longctx_jax.text import corpus, prepared


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
  return tmp_path / "sets"


def write(*names):
  folder = prepared.folder("pg19")
  folder.mkdir(parents=True, exist_ok=True)
  for i, name in enumerate(names):
    table = pa.table({"book_id": [10 * i, 10 * i + 1], "book_text": ["a", "b"]})
    pq.write_table(table, folder / name)


def read(split):
  return corpus.open_corpus(
    f"tfds:pg19/{split}", text_column="book_text", id_column="book_id"
  )


def test_home_is_that_of_tensorflow_datasets(home, monkeypatch):
  assert prepared.home() == home
  monkeypatch.delenv("TFDS_DATA_DIR")
  monkeypatch.setenv("HOME", "/elsewhere")
  assert str(prepared.home()) == "/elsewhere/tensorflow_datasets"


def test_the_files_of_a_split_come_in_order_and_no_others():
  write("b.parquet", "a.parquet", "other.parquet")
  assert prepared.is_begun("pg19") and not prepared.is_whole("pg19")
  prepared.finish("pg19", {"train": ["b.parquet", "a.parquet"]}, {"x": 1})
  assert prepared.is_whole("pg19") and not prepared.is_begun("pg19")
  assert [one.doc_id for one in read("train")] == ["0", "1", "10", "11"]
  assert read("train").count == 4


def test_a_copy_elsewhere_has_the_same_documents(home, monkeypatch, tmp_path):
  write("a.parquet")
  prepared.finish("pg19", {"train": ["a.parquet"]}, {})
  before = [(one.doc_id, one.text) for one in read("train")]
  home.rename(tmp_path / "copy")
  with pytest.raises(FileNotFoundError, match="is not prepared"):
    read("train")
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "copy"))
  assert [(one.doc_id, one.text) for one in read("train")] == before


def test_what_is_lost_or_unknown_is_named():
  write("a.parquet")
  prepared.finish("pg19", {"train": ["a.parquet", "lost.parquet"]}, {})
  with pytest.raises(FileNotFoundError, match="lost.parquet"):
    read("train")
  with pytest.raises(ValueError, match="no split 'dev'; there are train"):
    read("dev")


def test_other_names_are_no_concern_of_ours():
  (prepared.folder("mnist")).mkdir(parents=True)
  (prepared.folder("mnist") / "manifest.json").write_text("{}")
  assert not prepared.is_whole("mnist") and prepared.command("mnist") == ""
