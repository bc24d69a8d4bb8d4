"""Results of other documents do not stand side by side, in no command."""

import dataclasses

import pytest

from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.report import alike, comparison, correlation, page


def make_result(name, texts, **fields):
  documents = tuple(
    DocumentResult(
      f"d{i}", i, "", 9, 9.0, region_nll_sums=(1.0,), region_counts=(2,),
      text_sha256=text * 64, keys_sha256="e" * 64,
    )
    for i, text in enumerate(texts)
  )  # fmt: skip
  made = dict(
    name=name, longppl=2.0, ppl=3.0, protocol="paper",
    n_documents=len(texts), documents=documents,
    keys={"checksum": "c", "evaluator": "E", "alpha": 2.0, "beta": -2.0},
  )  # fmt: skip
  return ModelResult(**made | fields)


ONE, OTHER = make_result("A", "ab"), make_result("B", "ac")


@pytest.fixture
def scores(tmp_path):
  path = tmp_path / "scores.csv"
  path.write_text("model,RULER\nA,1\nB,2\n")
  return path


def test_each_command_asks_for_the_same_documents(tmp_path, scores):
  results = [ONE, OTHER]
  message = "'A' and 'B' differ in document 'd1'.*bbbbbbbb.*cccccccc"
  with pytest.raises(alike.NotComparable, match=message):
    comparison.compare_table(results, fmt="text")
  with pytest.raises(alike.NotComparable, match=message):
    page.render_report(results, [], tmp_path / "report.html")
  with pytest.raises(alike.NotComparable, match=message):
    correlation.correlate(results, scores)
  correlation.correlate(results, scores, force=True)
  # A model that takes no part is not asked.
  correlation.correlate(
    [ONE, dataclasses.replace(OTHER, self_evaluated=True)], scores
  )


def test_a_name_or_a_place_is_no_difference():
  moved = ONE.keys | {
    "evaluator": "/elsewhere/E", "revision": "f3", "versions": {"jax": "9"},
    "detail": "keys",
  }  # fmt: skip
  alike.check_comparable([ONE, make_result("B", "ab", keys=moved)])
  # Without a checksum the name is all there is.
  slices = {"evaluator": "E", "detail": "spans"}
  results = [
    make_result("A", "ab", keys=slices),
    make_result("B", "ab", keys=slices | {"evaluator": "F"}),
  ]
  with pytest.raises(
    alike.NotComparable, match=r"keys\.evaluator: 'E' and 'F'"
  ):
    alike.check_comparable(results)


def test_texts_that_were_not_recorded_are_like_no_others():
  """Results of before name their documents and no hashes."""
  old = [
    dataclasses.replace(
      one,
      documents=tuple(
        dataclasses.replace(document, text_sha256="", keys_sha256="")
        for document in one.documents
      ),
    )
    for one in (ONE, OTHER)
  ]
  alike.check_comparable(old)
  with pytest.raises(alike.NotComparable, match="not recorded, not recorded"):
    alike.check_comparable([old[0], OTHER])


def test_ratios_pair_documents_of_one_text():
  """Forced, they are of the documents that are the same."""
  longer = dataclasses.replace(OTHER.documents[1], region_nll_sums=(50.0,))
  other = dataclasses.replace(OTHER, documents=(OTHER.documents[0], longer))
  row = comparison.comparison_rows([ONE, other], baseline="A", force=True)[1]
  assert row.ratio == 1.0


def test_a_run_stands_beside_what_was_made_alike():
  failed = ModelResult(name="F", reason="failed: no file")
  same = make_result("C", "ab")
  shown, left_out = alike.beside([ONE], [ONE, OTHER, same, failed])
  assert [result.name for result in shown] == ["A", "C", "F"]
  assert list(left_out) == ["B"] and "document 'd1'" in left_out["B"]
  # An earlier result does not stand for a model that failed now.
  now = dataclasses.replace(failed, name="A")
  assert alike.beside([now], [ONE]) == ([now], {})
