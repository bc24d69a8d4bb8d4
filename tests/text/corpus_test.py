import hashlib
import json
import pathlib

import numpy as np
import pyarrow as pa
import pytest
from support import corpora

from longctx_jax.runtime.shards import Shard
from longctx_jax.text import corpus as corpus_lib


def test_every_format_holds_the_same_texts(tmp_path):
  """Cases B1: bytes survive, also line ends and byte-order marks."""
  folder = corpora.write_texts(tmp_path / "texts")
  rows = [
    {"id": f"d{i}.txt", "text": text} for i, text in enumerate(corpora.TEXTS)
  ]
  sources = [
    folder,
    str(folder / "*.txt"),
    sorted(folder.iterdir()),
    corpora.write_json(tmp_path / "rows.jsonl", rows),
    corpora.write_json(tmp_path / "rows.json", rows),
    corpora.write_parquet(
      tmp_path / "rows.parquet",
      {"text": corpora.TEXTS, "id": [row["id"] for row in rows]},
    ),
  ]
  for source in sources:
    corpus = corpus_lib.open_corpus(source)
    assert corpus.count == corpus.total == len(corpora.TEXTS)
    documents = list(corpus)
    assert [d.text for d in documents] == corpora.TEXTS
    assert [d.doc_id for d in documents] == [row["id"] for row in rows]
    assert [d.doc_index for d in documents] == list(range(len(corpora.TEXTS)))
    assert list(corpus)[2].text == documents[2].text


def test_pretokenized_rows_decode_to_the_same_texts(tmp_path):
  """Cases B1, with code points for ids; id 0 is kept (cases B6)."""
  ids = [[ord(c) for c in text] for text in corpora.TEXTS]
  assert 0 in ids[4]
  sources = [
    corpora.write_json(
      tmp_path / "ids.jsonl", [{"input_ids": row} for row in ids]
    ),
    corpora.write_parquet(
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
    assert [document.text for document in decoded] == corpora.TEXTS
    assert all(document.ids is None for document in decoded)


def test_ids_that_do_not_decode_break_only_their_row(tmp_path):
  def decode(ids):
    if ids[0] > 9:
      raise ValueError("id 10 is outside the vocabulary")
    return "a"

  path = corpora.write_json(tmp_path / "a.jsonl", [{"ids": [10]}, {"ids": [9]}])
  corpus = corpus_lib.open_corpus(path, ids_column="ids").decoded(decode)
  first, second = corpus
  assert first.error == "id 10 is outside the vocabulary"
  assert (first.text, first.ids, second.text) == (None, None, "a")


def test_only_ids_can_be_decoded(tmp_path):
  corpus = corpus_lib.open_corpus(corpora.write_texts(tmp_path / "texts"))
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
  path = corpora.write_json(tmp_path / "rows.jsonl", [row])
  (document,) = corpus_lib.open_corpus(path, id_column=asked)
  assert document.doc_id == expected


def test_columns_pass_through(tmp_path):
  """Cases L7."""
  corpora.write_json(
    tmp_path / "a.jsonl", [{"text": "a", "lang": "en", "n": 1}]
  )
  corpora.write_parquet(
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
  corpora.write_parquet(tmp_path / "b.parquet", {"text": texts[1:6]})
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


@pytest.mark.parametrize(
  "ids",
  [[1, None], ["a"], [1.5], [[1], [2, 3]], [[1]], "1", [-1, 5], [1 << 31]],
)
def test_broken_token_ids_do_not_hurt_the_others(tmp_path, ids):
  path = corpora.write_json(
    tmp_path / "a.jsonl", [{"ids": ids}, {"ids": [0, 1]}]
  )
  first, second = corpus_lib.open_corpus(path, ids_column="ids")
  assert first.error and first.ids is None
  assert second.ids.tolist() == [0, 1]


@pytest.mark.parametrize("doc_id", [None, 1.5, ["a"], "\ud83d"])
def test_unusable_id_breaks_only_its_row(tmp_path, doc_id):
  rows = [{"text": "a", "id": doc_id}, {"text": "b", "id": "b"}]
  path = corpora.write_json(tmp_path / "rows.jsonl", rows)
  first, second = corpus_lib.open_corpus(path)
  assert (first.doc_id, first.text) == ("rows.jsonl#0", None)
  assert first.error
  assert (second.doc_id, second.text) == ("b", "b")


def test_duplicate_ids_name_both_places(tmp_path):
  corpora.write_json(
    tmp_path / "a.jsonl", [{"text": "", "id": i} for i in "xyz"]
  )
  corpora.write_parquet(
    tmp_path / "b.parquet", {"text": ["", ""], "id": ["v", "y"]}
  )
  documents = iter(corpus_lib.open_corpus(tmp_path))
  assert [next(documents).doc_id for _ in range(4)] == ["x", "y", "z", "v"]
  with pytest.raises(ValueError, match=r"'y': .*a.jsonl#1 and .*b.parquet#1"):
    next(documents)


def test_no_source_is_refused():
  with pytest.raises(ValueError, match="at least one"):
    corpus_lib.open_corpus([])


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.txt"])
@pytest.mark.parametrize(
  "asked",
  [{"ids_column": "x"}, {"id_column": "x"}, {"columns": ["x"]}],
)
def test_missing_column_lists_those_there_are(tmp_path, name, asked):
  path = tmp_path / name
  if name == "a.jsonl":
    corpora.write_json(path, [{"text": "a", "title": "b"}])
  elif name == "a.parquet":
    corpora.write_parquet(path, {"text": ["a"], "title": ["b"]})
  else:
    path.write_text("a")
  with pytest.raises(ValueError, match=r"no column 'x'; it has: text"):
    corpus_lib.open_corpus(path, **asked)


def test_missing_text_column_lists_those_there_are(tmp_path):
  path = corpora.write_json(tmp_path / "a.jsonl", [{"body": "a", "title": "b"}])
  with pytest.raises(ValueError, match="'text'; it has: body, title"):
    corpus_lib.open_corpus(path)
  assert corpora.texts(path, text_column="body") == ["a"]


def test_text_column_of_tables_leaves_text_files_alone(tmp_path):
  (tmp_path / "a.txt").write_text("one")
  corpora.write_json(tmp_path / "b.jsonl", [{"body": "two"}])
  assert corpora.texts(tmp_path, text_column="body") == ["one", "two"]


def test_text_is_not_taken_for_an_id(tmp_path):
  (tmp_path / "a.txt").write_text("one")
  corpora.write_json(tmp_path / "b.jsonl", [{"id": "two"}])
  documents = list(corpus_lib.open_corpus(tmp_path, text_column="id"))
  assert [d.text for d in documents] == ["one", "two"]
  assert [d.doc_id for d in documents] == ["a.txt", "b.jsonl#0"]


def test_hash_is_that_of_the_stored_bytes(tmp_path):
  path = pathlib.Path(tmp_path / "a.txt")
  path.write_bytes("é👩‍🚀\r\n".encode())
  (document,) = corpus_lib.open_corpus(path)
  assert (
    corpus_lib.text_sha256(document.text)
    == hashlib.sha256(path.read_bytes()).hexdigest()
  )
