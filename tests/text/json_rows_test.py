import json

import pytest
from support import corpora

from longctx_jax.text import corpus as corpus_lib
from longctx_jax.text import json_rows


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
  for error, part in zip(corpora.errors(path), expected, strict=True):
    assert part in error and bool(part) == bool(error)


def test_json_file_of_broken_rows_only_is_read(tmp_path):
  (tmp_path / "a.jsonl").write_text("junk\n")
  (error,) = corpora.errors(tmp_path / "a.jsonl")
  assert error.startswith("not JSON")


def test_byte_order_mark_of_a_json_file_is_no_text(tmp_path):
  path = tmp_path / "a.jsonl"
  path.write_bytes(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
  assert corpora.texts(path) == ["a", "b"]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mark", ["", "\ufeff", "\r\n "])
def test_an_array_of_json_is_read_row_by_row(
  tmp_path, monkeypatch, indent, mark
):
  """However little of it is held at a time."""
  path = tmp_path / "rows.json"
  text = json.dumps(corpora.ROWS, indent=indent, ensure_ascii=False)
  path.write_bytes(f"{mark}{text}\n".encode())
  for chars in (1, 7, 1 << 20):
    monkeypatch.setattr(json_rows, "_CHARS", chars)
    corpus = corpus_lib.open_corpus(path)
    assert corpus.count == len(corpora.ROWS)
    assert [(d.doc_id, d.text) for d in corpus] == [
      tuple(row.values()) for row in corpora.ROWS
    ]
    (second,) = corpus_lib.open_corpus(path, row_range=(1, 2))
    assert (second.doc_id, second.text) == ("r1", corpora.TEXTS[1])


def test_what_is_no_object_breaks_only_its_element(tmp_path):
  path = tmp_path / "rows.json"
  path.write_text(
    json.dumps([corpora.ROWS[0], [12], 345, None, {"text": 1}, corpora.ROWS[1]])
  )
  errors = corpora.errors(path)
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
