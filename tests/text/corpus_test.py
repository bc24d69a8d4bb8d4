import bz2
import gzip
import hashlib
import json
import lzma
import os
import pathlib

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longctx_jax.runtime.shards import Shard
from longctx_jax.text import corpus as corpus_lib
from longctx_jax.text import json_rows

# Newlines of every kind, a byte-order mark, an emoji of four code points, "".
TEXTS = ["one\r\ntwo\n", "\ufefféa 👩‍🚀", "", "plain", "zero\x00width\u2028sep"]


def _write_texts(folder, texts=TEXTS):
  folder.mkdir()
  for i, text in enumerate(texts):
    (folder / f"d{i}.txt").write_bytes(text.encode())
  return folder


def _write_json(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def _write_parquet(path, columns, row_group_size=2):
  pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
  return path


def _texts(sources, **kwargs):
  return [d.text for d in corpus_lib.open_corpus(sources, **kwargs)]


def _errors(sources, **kwargs):
  documents = list(corpus_lib.open_corpus(sources, **kwargs))
  for document in documents:
    nothing = document.text is None and document.ids is None
    assert nothing == bool(document.error)
  return [document.error for document in documents]


def test_every_format_holds_the_same_texts(tmp_path):
  """Cases B1: bytes survive, also line ends and byte-order marks."""
  folder = _write_texts(tmp_path / "texts")
  rows = [{"id": f"d{i}.txt", "text": text} for i, text in enumerate(TEXTS)]
  sources = [
    folder,
    str(folder / "*.txt"),
    sorted(folder.iterdir()),
    _write_json(tmp_path / "rows.jsonl", rows),
    _write_json(tmp_path / "rows.json", rows),
    _write_parquet(
      tmp_path / "rows.parquet",
      {"text": TEXTS, "id": [row["id"] for row in rows]},
    ),
  ]
  for source in sources:
    corpus = corpus_lib.open_corpus(source)
    assert corpus.count == corpus.total == len(TEXTS)
    documents = list(corpus)
    assert [d.text for d in documents] == TEXTS
    assert [d.doc_id for d in documents] == [row["id"] for row in rows]
    assert [d.doc_index for d in documents] == list(range(len(TEXTS)))
    assert list(corpus)[2].text == documents[2].text


def test_pretokenized_rows_decode_to_the_same_texts(tmp_path):
  """Cases B1, with code points for ids; id 0 is kept (cases B6)."""
  ids = [[ord(c) for c in text] for text in TEXTS]
  assert 0 in ids[4]
  sources = [
    _write_json(tmp_path / "ids.jsonl", [{"input_ids": row} for row in ids]),
    _write_parquet(
      tmp_path / "ids.parquet",
      {"input_ids": pa.array(ids, pa.list_(pa.int64()))},
    ),
  ]
  for source in sources:
    corpus = corpus_lib.open_corpus(source, ids_column="input_ids")
    for document, expected in zip(corpus, ids, strict=True):
      assert document.text is None
      assert document.ids.dtype == np.int32
      assert document.ids.tolist() == expected
    decoded = corpus.decoded(lambda row: "".join(map(chr, row)))
    assert [document.text for document in decoded] == TEXTS
    assert all(document.ids is None for document in decoded)


def test_ids_that_do_not_decode_break_only_their_row(tmp_path):
  def decode(ids):
    if ids[0] > 9:
      raise ValueError("id 10 is outside the vocabulary")
    return "a"

  path = _write_json(tmp_path / "a.jsonl", [{"ids": [10]}, {"ids": [9]}])
  corpus = corpus_lib.open_corpus(path, ids_column="ids").decoded(decode)
  first, second = corpus
  assert first.error == "id 10 is outside the vocabulary"
  assert (first.text, first.ids, second.text) == (None, None, "a")


def test_only_ids_can_be_decoded(tmp_path):
  corpus = corpus_lib.open_corpus(_write_texts(tmp_path / "texts"))
  with pytest.raises(ValueError, match="ids_column"):
    corpus.decoded(str)


@pytest.mark.parametrize(
  ("row", "asked", "expected"),
  [
    ({"text": "a", "id": "x", "doc_id": "y"}, "", "x"),
    ({"text": "a", "doc_id": "y"}, "", "y"),
    ({"text": "a", "id": 7}, "", "7"),
    ({"text": "a", "id": "x", "url": "u"}, "url", "u"),
    ({"text": "a"}, "", "rows.jsonl#0"),
  ],
)
def test_document_ids_come_from_the_best_column(tmp_path, row, asked, expected):
  path = _write_json(tmp_path / "rows.jsonl", [row])
  (document,) = corpus_lib.open_corpus(path, id_column=asked)
  assert document.doc_id == expected


def test_columns_pass_through(tmp_path):
  """Cases L7."""
  _write_json(tmp_path / "a.jsonl", [{"text": "a", "lang": "en", "n": 1}])
  _write_parquet(
    tmp_path / "b.parquet", {"text": ["b"], "lang": ["de"], "n": [None]}
  )
  columns = [
    document.columns
    for document in corpus_lib.open_corpus(tmp_path, columns=["lang", "n"])
  ]
  assert columns == [{"lang": "en", "n": 1}, {"lang": "de", "n": None}]


@pytest.fixture
def mixed(tmp_path):
  """Eleven rows in four files; row groups of 2, blank lines in between."""
  texts = [f"t{i}" for i in range(11)]
  (tmp_path / "a.txt").write_text(texts[0])
  _write_parquet(tmp_path / "b.parquet", {"text": texts[1:6]})
  lines = [json.dumps({"text": text}) for text in texts[6:10]]
  (tmp_path / "c.jsonl").write_text("\n\n".join(lines) + "\r\n  \n")
  (tmp_path / "d.txt").write_text(texts[10])
  return tmp_path


def test_row_ranges_together_equal_one_run(mixed):
  """Cases L7: ids and indices don't depend on the range."""
  whole = corpus_lib.open_corpus(mixed)
  assert whole.count == 11
  expected = [(d.doc_id, d.doc_index, d.text) for d in whole]
  assert [index for _, index, _ in expected] == list(range(11))
  for start in range(11):
    for stop in range(start + 1, 12):
      part = corpus_lib.open_corpus(mixed, row_range=(start, stop))
      assert part.count == stop - start or stop > 11
      assert part.total == 11
      rows = [(d.doc_id, d.doc_index, d.text) for d in part]
      assert rows == expected[start:stop]


def test_shards_together_equal_one_run(mixed):
  """Within a row range too; a shard counts its own documents."""
  for row_range in ((0, 0), (2, 9)):
    corpus = corpus_lib.open_corpus(mixed, row_range=row_range)
    whole = [document.doc_id for document in corpus]
    for count in (1, 2, 3, 20):
      parts = [corpus.shard(Shard(i, count)) for i in range(count)]
      for index, part in enumerate(parts):
        own = [document.doc_id for document in part]
        assert own == whole[index::count] and part.count == len(own)
      assert len({json.dumps(part.identity) for part in parts}) == count


def test_row_range_may_end_behind_the_last_row(mixed):
  corpus = corpus_lib.open_corpus(mixed, row_range=(10, 20))
  assert (corpus.count, len(list(corpus))) == (1, 1)


@pytest.mark.parametrize("row_range", [(11, 12), (3, 3), (5, 2), (-1, 4)])
def test_row_range_that_takes_nothing_is_refused(mixed, row_range):
  with pytest.raises(ValueError, match="the corpus has 11"):
    corpus_lib.open_corpus(mixed, row_range=row_range)


def test_broken_json_rows_do_not_hurt_the_others(tmp_path):
  path = tmp_path / "rows.jsonl"
  path.write_bytes(
    b'{"text": "good", "lang": "en"}\n'
    b'{"text": "cut\n'
    b'["a list"]\n'
    b'{"text": null, "lang": "de"}\n'
    b'{"lang": "fr"}\n'
    b'{"text": 3}\n'
    b'{"text": "\xff"}\n'
    b'{"text": "\\ud83d"}\n' + b"[" * 100_000 + b"\n"
    b'{"text": "good too"}\n'
  )
  corpus = corpus_lib.open_corpus(path, columns=["lang"])
  documents = list(corpus)
  assert corpus.count == len(documents) == 10
  assert documents[0].text == "good"
  assert documents[9].text == "good too"
  assert documents[3].columns == {"lang": "de"}
  assert documents[1].columns == {"lang": None}
  assert documents[1].doc_id == "rows.jsonl#1"
  expected = [
    "",
    "not JSON",
    "a list, not an object",
    "'text' is null",
    "'text' is null",
    "holds a int, no text",
    "can't decode byte 0xff",
    "surrogates not allowed",
    "not JSON: maximum recursion depth",
    "",
  ]
  for error, part in zip(_errors(path), expected, strict=True):
    assert part in error and bool(part) == bool(error)


def test_broken_parquet_rows_do_not_hurt_the_others(tmp_path):
  raw = pa.array([b"good", b"\xff", None, b"good too"], pa.binary())
  strings = pa.Array.from_buffers(pa.string(), 4, raw.buffers())
  for name, column in (("string", strings), ("binary", raw)):
    path = _write_parquet(tmp_path / f"{name}.parquet", {"text": column})
    errors = _errors(path)
    assert "0xff" in errors[1] and "is null" in errors[2]
    assert (errors[0], errors[3]) == ("", "")
    assert _texts(path) == ["good", None, None, "good too"]


def test_broken_text_file_does_not_hurt_the_others(tmp_path):
  folder = _write_texts(tmp_path / "texts", ["good", "b", "good too"])
  (folder / "d1.txt").write_bytes(b"\xff\xfe")
  assert _texts(folder) == ["good", None, "good too"]
  assert "0xff" in _errors(folder)[1]


@pytest.mark.parametrize(
  "ids",
  [[1, None], ["a"], [1.5], [[1], [2, 3]], [[1]], "1", [-1, 5], [1 << 31]],
)
def test_broken_token_ids_do_not_hurt_the_others(tmp_path, ids):
  path = _write_json(tmp_path / "a.jsonl", [{"ids": ids}, {"ids": [0, 1]}])
  first, second = corpus_lib.open_corpus(path, ids_column="ids")
  assert first.error and first.ids is None
  assert second.ids.tolist() == [0, 1]


@pytest.mark.parametrize("doc_id", [None, 1.5, ["a"], "\ud83d"])
def test_unusable_id_breaks_only_its_row(tmp_path, doc_id):
  rows = [{"text": "a", "id": doc_id}, {"text": "b", "id": "b"}]
  path = _write_json(tmp_path / "rows.jsonl", rows)
  first, second = corpus_lib.open_corpus(path)
  assert (first.doc_id, first.text) == ("rows.jsonl#0", None)
  assert first.error
  assert (second.doc_id, second.text) == ("b", "b")


def test_duplicate_ids_name_both_places(tmp_path):
  _write_json(tmp_path / "a.jsonl", [{"text": "", "id": i} for i in "xyz"])
  _write_parquet(tmp_path / "b.parquet", {"text": ["", ""], "id": ["v", "y"]})
  documents = iter(corpus_lib.open_corpus(tmp_path))
  assert [next(documents).doc_id for _ in range(4)] == ["x", "y", "z", "v"]
  with pytest.raises(ValueError, match=r"'y': .*a.jsonl#1 and .*b.parquet#1"):
    next(documents)


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
    corpus_lib.open_corpus([_write_texts(tmp_path / "t"), tmp_path / source])


def test_no_source_is_refused():
  with pytest.raises(ValueError, match="at least one"):
    corpus_lib.open_corpus([])


def test_unknown_extension_is_refused(tmp_path):
  (tmp_path / "a.csv").write_text("text\n")
  for source in (tmp_path / "a.csv", str(tmp_path / "a.*")):
    with pytest.raises(ValueError, match="'.csv'; known: .txt, .jsonl"):
      corpus_lib.open_corpus(source)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.txt"])
@pytest.mark.parametrize(
  "asked",
  [{"ids_column": "x"}, {"id_column": "x"}, {"columns": ["x"]}],
)
def test_missing_column_lists_those_there_are(tmp_path, name, asked):
  path = tmp_path / name
  if name == "a.jsonl":
    _write_json(path, [{"text": "a", "title": "b"}])
  elif name == "a.parquet":
    _write_parquet(path, {"text": ["a"], "title": ["b"]})
  else:
    path.write_text("a")
  with pytest.raises(ValueError, match=r"no column 'x'; it has: text"):
    corpus_lib.open_corpus(path, **asked)


def test_missing_text_column_lists_those_there_are(tmp_path):
  path = _write_json(tmp_path / "a.jsonl", [{"body": "a", "title": "b"}])
  with pytest.raises(ValueError, match="'text'; it has: body, title"):
    corpus_lib.open_corpus(path)
  assert _texts(path, text_column="body") == ["a"]


def test_text_column_of_tables_leaves_text_files_alone(tmp_path):
  (tmp_path / "a.txt").write_text("one")
  _write_json(tmp_path / "b.jsonl", [{"body": "two"}])
  assert _texts(tmp_path, text_column="body") == ["one", "two"]


def test_damaged_parquet_file_is_named(tmp_path):
  path = _write_parquet(tmp_path / "a.parquet", {"text": ["a"]})
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(
    ValueError, match="a.parquet is damaged, or of another kind"
  ):
    corpus_lib.open_corpus(path)


def test_json_file_of_broken_rows_only_is_read(tmp_path):
  (tmp_path / "a.jsonl").write_text("junk\n")
  (error,) = _errors(tmp_path / "a.jsonl")
  assert error.startswith("not JSON")


def test_byte_order_mark_of_a_json_file_is_no_text(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
  assert _texts(path) == ["a", "b"]


def test_text_is_not_taken_for_an_id(tmp_path):
  (tmp_path / "a.txt").write_text("one")
  _write_json(tmp_path / "b.jsonl", [{"id": "two"}])
  documents = list(corpus_lib.open_corpus(tmp_path, text_column="id"))
  assert [d.text for d in documents] == ["one", "two"]
  assert [d.doc_id for d in documents] == ["a.txt", "b.jsonl#0"]


def test_file_names_may_hold_glob_signs(tmp_path):
  (tmp_path / "a[1].txt").write_text("x")
  assert _texts(tmp_path / "a[1].txt") == ["x"]


ROWS = [{"id": f"r{i}", "text": text} for i, text in enumerate(TEXTS)]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\r\n "])
def test_an_array_of_json_is_read_row_by_row(
  tmp_path, monkeypatch, indent, mark
):
  """However little of it is held at a time."""
  path = tmp_path / "rows.json"
  text = json.dumps(ROWS, indent=indent, ensure_ascii=False)
  path.write_bytes(f"{mark}{text}\n".encode())
  for chars in (1, 7, 1 << 20):
    monkeypatch.setattr(json_rows, "_CHARS", chars)
    corpus = corpus_lib.open_corpus(path)
    assert corpus.count == len(ROWS)
    assert [(d.doc_id, d.text) for d in corpus] == [
      tuple(row.values()) for row in ROWS
    ]
    (second,) = corpus_lib.open_corpus(path, row_range=(1, 2))
    assert (second.doc_id, second.text) == ("r1", TEXTS[1])


def test_what_is_no_object_breaks_only_its_element(tmp_path):
  path = tmp_path / "rows.json"
  path.write_text(json.dumps([ROWS[0], [12], 345, None, {"text": 1}, ROWS[1]]))
  errors = _errors(path)
  assert [bool(error) for error in errors] == [0, 1, 1, 1, 1, 0]
  assert errors[2] == "the element holds a int, not an object"


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ('[{"text": "a"}, {"text": "b"', "rows.json is one.* at element 1: "),
    ('[{"text": "a"} {"text": "b"}]', "at element 1: a comma was expected"),
    ('[{"text": "a"},]', "at element 1: "),
    ('[{"text": "a"}] {}', "at element 1: a comma .* end of array and file"),
    ('[{"text": "a\xff"}]', "at element 0: .*0xff"),
    ("[" + '{"a":' * 100_000, "at element 0: maximum recursion"),
    ('{\n  "text": "a"\n}', "rows.json holds neither an object a line nor"),
    ("junk", "neither .*: not JSON"),
  ],
)
def test_json_that_holds_no_rows_is_refused_before_a_text_is_read(
  tmp_path, text, problem
):
  path = tmp_path / "rows.json"
  path.write_bytes(text.encode("latin-1"))
  with pytest.raises(ValueError, match=problem):
    corpus_lib.open_corpus(path)


COMPRESS = {
  "gz": gzip.compress,
  "bz2": bz2.compress,
  "xz": lzma.compress,
  "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_read_like_others(tmp_path, ending):
  """Also those of several streams, as `cat a.gz b.gz` makes them."""
  compress = COMPRESS[ending]
  lines = [json.dumps(row).encode() + b"\n" for row in ROWS]
  whole = compress(lines[0]) + compress(b"".join(lines[1:]))
  (tmp_path / f"a.jsonl.{ending}").write_bytes(whole)
  (tmp_path / f"b.txt.{ending}").write_bytes(compress(TEXTS[1].encode()))
  (tmp_path / f"c.MD.{ending.upper()}").write_bytes(compress(b"three"))
  documents = list(corpus_lib.open_corpus(tmp_path))
  assert [d.text for d in documents] == [*TEXTS, TEXTS[1], "three"]
  assert documents[-2].doc_id == f"b.txt.{ending}"


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_damaged_compressed_file_is_named(tmp_path, ending):
  data = COMPRESS[ending](json.dumps(ROWS).encode() * 100)
  for name, damaged in (("cut", data[: len(data) // 2]), ("junk", b"x" * 99)):
    path = tmp_path / f"{name}.jsonl.{ending}"
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{name}.jsonl.{ending} is damaged"):
      corpus_lib.open_corpus(path)
    path = path.rename(tmp_path / f"{name}.txt.{ending}")
    assert f"{name}.txt.{ending} is damaged" in _errors(path)[0]


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
  assert _texts(tmp_path) == ["a"]
  assert "2 of 3 files are skipped: no file (2)" in caplog.text
  caplog.clear()
  assert _texts(str(tmp_path / "*.txt")) == ["a"]
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
  path = _write_parquet(
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
  assert _texts("memory://bucket") == texts
  assert _texts("memory://bucket/*") == texts
  assert _texts("memory://bucket/b.jsonl") == texts[1:3]


def test_rows_are_streamed(tmp_path, monkeypatch):
  """The first document is there before the later row groups are read."""
  path = _write_parquet(
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


def test_hash_is_that_of_the_stored_bytes(tmp_path):
  path = pathlib.Path(tmp_path / "a.txt")
  path.write_bytes("é👩‍🚀\r\n".encode())
  (document,) = corpus_lib.open_corpus(path)
  assert (
    corpus_lib.text_sha256(document.text)
    == hashlib.sha256(path.read_bytes()).hexdigest()
  )
