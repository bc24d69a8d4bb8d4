"""Spans that were found elsewhere: as slice files, and tied to their texts."""

import json

import pytest
from support.checks import refuses

from longctx_jax.evaluation import matched
from longctx_jax.key_tokens import span_file
from longctx_jax.text import corpus

TEXTS = {"a": "the quick brown fox", "b": "naïve 🙂 text", "e": ""}
SPANS = {"a": [[3, 9], [15, 19]], "b": []}


@pytest.fixture
def documents(tmp_path):
  rows = [{"id": name, "text": text} for name, text in TEXTS.items()]
  path = tmp_path / "corpus.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return corpus.open_corpus(path)


@pytest.fixture
def write(tmp_path):
  def write_file(**changes):
    lines = [
      {
        "doc_id": name,
        "text_sha256": corpus.text_sha256(TEXTS[name]),
        "spans": spans,
      }
      for name, spans in SPANS.items()
    ]
    lines[0] |= changes
    path = tmp_path / "gpt-oss.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path

  return write_file


def test_the_spans_are_those_of_the_file(documents, write):
  store = span_file.read_span_store(write(), documents)
  a, b, e = store
  assert a.spans.tolist() == SPANS["a"] and not a.reason
  assert (b.reason, e.reason) == ("no_key_tokens", "empty")
  assert store.manifest.evaluator == "gpt-oss"
  assert [keys.doc_id for keys, _ in matched.match(store, documents)] == [
    *"abe"
  ]
  with refuses("thresholds"):
    store.with_thresholds(1.0, -2.0)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"text_sha256": "0"}, "'a': the spans are of another text"),
    (
      {"spans": [[3, 20]]},
      r"span \[3, 20\] is empty or outside the text of 19",
    ),
    ({"spans": [[4, 4]]}, r"span \[4, 4\] is empty"),
    ({"spans": [[4, 5.5]]}, "spans are pairs of integers"),
    ({"spans": [1, 2, 3]}, "spans are pairs of integers"),
    ({"doc_id": "b"}, "document 'b' twice"),
    ({"doc_id": "z"}, "document 'a' has no line"),
  ],
)
def test_what_cannot_be_right_is_named(documents, write, changes, message):
  with refuses(message):
    span_file.read_span_store(write(**changes), documents)


def test_a_line_that_is_none_is_named(documents, write):
  path = write()
  path.write_text(path.read_text() + "{")
  with refuses("line 3 is not JSON"):
    span_file.read_span_store(path, documents)
  path.write_text('{"doc_id": "a"}')
  with refuses("line 1 lacks one of doc_id, text_sha256, spans"):
    span_file.read_span_store(path, documents)
