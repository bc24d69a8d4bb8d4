import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import corpora

from longctx_jax.text import corpus as corpus_lib


def test_broken_parquet_rows_do_not_hurt_the_others(tmp_path):
  raw = pa.array([b"good", b"\xff", None, b"good too"], pa.binary())
  strings = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
  for name, column in (("string", strings), ("binary", raw)):
    path = corpora.write_parquet(tmp_path / f"{name}.parquet", {"text": column})
    errors = corpora.errors(path)
    assert "0xff" in errors[1] and "is null" in errors[2]
    assert (errors[0], errors[3]) == ("", "")
    assert corpora.texts(path) == ["good", None, None, "good too"]


def test_broken_text_file_does_not_hurt_the_others(tmp_path):
  folder = corpora.write_texts(tmp_path / "texts", ["good", "b", "good too"])
  (folder / "d1.txt").write_bytes(b"\xff\xfe")
  assert corpora.texts(folder) == ["good", None, "good too"]
  assert "0xff" in corpora.errors(folder)[1]


@pytest.mark.parametrize(
  ("source", "problem"),
  [
    ("absent.txt", "absent.txt does not exist"),
    ("owner/name", "owner/name does not exist.*downloaded"),
    ("*.jsonl", "matches no file"),
    ("empty", r"holds no file that ends in .txt, .*there: .json \(1\)"),
  ],
)
def test_absent_data_is_refused_at_once(tmp_path, source, problem):
  """Cases L1, B2: no network, no remote code, one sentence."""
  (tmp_path / "empty").mkdir()
  (tmp_path / "empty" / "config.json").write_text("{}")
  with pytest.raises(FileNotFoundError, match=problem):
    corpus_lib.open_corpus(
      [corpora.write_texts(tmp_path / "t"), tmp_path / source]
    )


def test_unknown_extension_is_refused(tmp_path):
  (tmp_path / "a.csv").write_text("text\n")
  for source in (tmp_path / "a.csv", str(tmp_path / "a.*")):
    with pytest.raises(ValueError, match="'.csv'; known: .txt, .jsonl"):
      corpus_lib.open_corpus(source)


def test_damaged_parquet_file_is_named(tmp_path):
  path = corpora.write_parquet(tmp_path / "a.parquet", {"text": ["a"]})
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(
    ValueError, match="a.parquet is damaged, or of another kind"
  ):
    corpus_lib.open_corpus(path)


def test_file_names_may_hold_glob_signs(tmp_path):
  (tmp_path / "a[1].txt").write_text("x")
  assert corpora.texts(tmp_path / "a[1].txt") == ["x"]


def test_a_folder_is_read_with_its_subfolders(tmp_path, caplog):
  """And what it holds besides is counted; ids tell the folders apart."""
  kept = ["a.md", "a/read.txt", "b.txt", "b/c/read.txt", "b/c/rows.jsonl"]
  left = ["b/config.json", ".git/x.txt", "b/.x.md", "b/t.csv", "t.csv", "Make"]
  for name in kept + left:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"text": "t"}\n')
  (tmp_path / "b.parquet.gz").write_bytes(b"")
  caplog.set_level("INFO", "absl")
  for source in (tmp_path, f"{tmp_path}/"):
    caplog.clear()
    ids = [d.doc_id for d in corpus_lib.open_corpus(source)]
    assert sorted(ids) == sorted([*kept[:-1], "b/c/rows.jsonl#0"])
    assert (
      "7 of 12 files are skipped: .csv (2), .gz (1), .json (1), hidden (2), "
      "without an extension (1)" in caplog.text
    )


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.md.gz"])
def test_a_pointer_in_place_of_a_file_is_no_text(tmp_path, name):
  pointer = "version https://git-lfs.github.com/spec/v1\nsize 4\n"
  (tmp_path / name).write_text(pointer)
  with pytest.raises(ValueError, match=f"{name} is a git-lfs pointer"):
    corpus_lib.open_corpus(tmp_path)


def test_what_is_no_file_is_counted(tmp_path, caplog):
  """A link to nowhere, a folder among what a glob matches."""
  (tmp_path / "a.txt").write_text("a")
  (tmp_path / "b.txt").symlink_to(tmp_path / "nowhere")
  (tmp_path / "c.txt").mkdir()
  (tmp_path / "d.txt").symlink_to(tmp_path)
  caplog.set_level("INFO", "absl")
  assert corpora.texts(tmp_path) == ["a"]
  assert "2 of 3 files are skipped: no file (2)" in caplog.text
  caplog.clear()
  assert corpora.texts(str(tmp_path / "*.txt")) == ["a"]
  assert "skipped: no file (" in caplog.text


def test_a_folder_that_cannot_be_opened_is_no_empty_one(tmp_path, monkeypatch):
  (tmp_path / "a.txt").write_text("a")
  (tmp_path / "closed").mkdir()
  scandir = os.scandir

  def closed(path):
    if str(path).rstrip("/").endswith("closed"):
      raise PermissionError(13, "Permission denied", str(path))
    return scandir(path)

  monkeypatch.setattr(os, "scandir", closed)
  with pytest.raises(PermissionError, match="closed"):
    corpus_lib.open_corpus(tmp_path)


def test_a_parquet_file_damaged_inside_is_named(tmp_path):
  path = corpora.write_parquet(
    tmp_path / "a.parquet", {"text": ["a" * 99, "b" * 99] * 50}
  )
  data = bytearray(path.read_bytes())
  data[4:40] = bytes(36)
  path.write_bytes(data)
  with pytest.raises(ValueError, match="a.parquet is damaged, or of another"):
    list(corpus_lib.open_corpus(path))


@pytest.mark.parametrize(
  ("source", "problem"),
  [
    ("gs://b/k", "gs://b/k needs a package.*: pip install gcsfs"),
    ("s3://b/*.txt", r"s3://b/\*.txt needs a package.*: pip install s3fs"),
    ("https://h/a.txt", "https://h/a.txt needs.*: pip install aiohttp"),
    ("xyz://h/a.txt", "xyz://h/a.txt: Protocol not known: xyz"),
    ("hf://datasets/o/n/*.parquet", "hf://.* can't be read: .*connection"),
  ],
)
def test_urls_that_cannot_be_read_here_are_named(source, problem):
  """Without their package, or without a network."""
  with pytest.raises((ValueError, OSError), match=problem):
    corpus_lib.open_corpus(source)


def test_a_connection_that_breaks_later_is_named(monkeypatch):
  """An error of whichever class the URL's package has for it."""
  fs = fsspec.filesystem("memory")
  fs.pipe("/broken/a.txt", b"one")
  corpus = corpus_lib.open_corpus("memory://broken")

  class Timeout(Exception):
    pass

  def cut(self, *args, **kwargs):
    raise Timeout("no answer\nmore")

  monkeypatch.setattr(type(fs), "open", cut)
  with pytest.raises(OSError, match="memory://broken.*: Timeout: no answer. "):
    list(corpus)


def test_remote_urls_read_like_local_files():
  fs = fsspec.filesystem("memory")
  fs.pipe("/bucket/a.txt", b"one")
  fs.pipe("/bucket/b.jsonl", b'{"text": "two"}\n{"text": "three"}\n')
  with fs.open("/bucket/c.parquet", "wb") as file:
    pq.write_table(pa.table({"text": ["four"]}), file)
  texts = ["one", "two", "three", "four"]
  assert corpora.texts("memory://bucket") == texts
  assert corpora.texts("memory://bucket/*") == texts
  assert corpora.texts("memory://bucket/b.jsonl") == texts[1:3]


def test_rows_are_streamed(tmp_path, monkeypatch):
  """The first document is there before the later row groups are read."""
  path = corpora.write_parquet(
    tmp_path / "a.parquet", {"text": ["a" * 1_000] * 400}, row_group_size=100
  )
  read = []
  original = pq.ParquetFile.iter_batches

  def counted(self, *args, **kwargs):
    for batch in original(self, *args, **kwargs):
      read.append(batch.num_rows)
      yield batch

  monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
  corpus = corpus_lib.open_corpus(path)
  assert corpus.count == 400 and not read
  documents = iter(corpus)
  next(documents)
  assert sum(read) <= 64
  documents.close()
  list(corpus_lib.open_corpus(path, row_range=(300, 302)))
  assert sum(read) <= 64 + 64
