"""Which key tokens belong to which documents."""

import pytest
from support import records, tiny_runs

from longctx_jax.evaluation import matched
from longctx_jax.key_tokens import writer
from longctx_jax.text import corpus

TEXTS = ["abcde", "fghij", "klmno"]


@pytest.fixture
def rows():
  return [
    records.make_row(
      text, [-1.0] * 4, [-9.0] * 4, doc_id=f"d{i}", doc_index=9 - i
    )
    for i, text in enumerate(TEXTS)
  ]


def open_corpus(tmp_path, texts):
  path = tiny_runs.write_jsonl(tmp_path / "corpus.jsonl", texts)
  return corpus.open_corpus(path)


def test_documents_come_with_their_key_tokens_where_they_stand_now(
  tmp_path, rows
):
  """Whatever the order of the store."""
  pairs = matched.match(
    records.make_store(*rows[::-1]), open_corpus(tmp_path, TEXTS)
  )
  assert len(pairs) == 3
  for _ in range(2):  # Once for each model.
    found = [(keys.doc_id, keys.doc_index, d.text) for keys, d in pairs]
    assert found == [(f"d{i}", i, text) for i, text in enumerate(TEXTS)]


def test_only_what_both_have_is_in_the_intersection(tmp_path, rows):
  """One text changed; the corpus lacks one."""
  store = records.make_store(*rows)
  pairs = matched.intersect(store, open_corpus(tmp_path, ["abcde", "other"]))
  assert (
    [keys.doc_id for keys, _ in pairs] == list(pairs.store.hashes) == ["d0"]
  )
  with pytest.raises(ValueError, match="none of 1 documents is among the 3"):
    matched.intersect(store, open_corpus(tmp_path, ["other"]))


def test_thresholds_are_the_stores_unless_named(tmp_path, rows):
  folder = tmp_path / "key_tokens"
  writer.open_writer(folder, rows[0].manifest).write(rows)
  config = tiny_runs.make_config(key_tokens=str(folder), longppl__alpha=50.0)
  texts = open_corpus(tmp_path, TEXTS)

  def alpha(named):
    store = matched.open_keys(config, texts, named)
    return store.manifest.thresholds.alpha

  assert (alpha({}), alpha({"alpha": 3.0}), alpha(None)) == (2.0, 3.0, 50.0)
  with pytest.raises(ValueError, match="stride is 2 there and 5 here"):
    alpha({"stride": 5})
