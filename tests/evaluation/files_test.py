"""Files of an evaluation: whole, finite, and gone on with after a kill."""

import dataclasses
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longctx_jax.evaluation import files
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.files import Line
from longctx_jax.evaluation.results import ModelResult, summarise
from longctx_jax.runtime.files import InUse
from longctx_jax.runtime.settings import OtherSettings

SETTINGS = {
  "model": {"checksum": "a1", "dtype": "float32"},
  "keys": {"alpha": 2.0, "checksum": "e5", "evaluator": "E", "bos": None},
  "per_token": False,
}
DOCUMENTS = [
  DocumentResult("d0", 0, "", 9, 1.5, 12, 2, (0.25, 0.5), (1, 2), 3, 5, 4, 3),
  DocumentResult("é\u2028🙂", 1, "", 4, 0.1 + 0.2, 4, 1, (1e-7,), (3,), 3, 2),
  DocumentResult("d2", 2, "too_short"),
]


LINES = [
  Line(document, reused, 0.125 * i, 9, 16, 12)
  for i, (document, reused) in enumerate(
    zip(DOCUMENTS, (True, False, False), strict=True)
  )
]


def open_ledger(folder, made_with=SETTINGS, *, overwrite=False):
  return files.open_ledger(folder, "m", made_with, overwrite=overwrite)


def write_ledger(folder, lines=LINES):
  with open_ledger(folder) as ledger:
    for line in lines:
      ledger.append(line)
  return folder / "documents" / "m.jsonl"


def read_ledger(folder):
  with open_ledger(folder) as ledger:
    return list(ledger.done.values())


def test_what_was_appended_is_there_again_bit_for_bit(tmp_path):
  """Case L3."""
  write_ledger(tmp_path)
  assert read_ledger(tmp_path) == LINES
  assert not list(tmp_path.rglob("*.tmp"))


def test_a_line_survives_as_soon_as_append_returns(tmp_path):
  with open_ledger(tmp_path) as ledger:
    ledger.append(LINES[0])
    lines = (tmp_path / "documents" / "m.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines[1:]] == [
    json.loads(json.dumps(LINES[0].to_json()))
  ]


def test_a_torn_last_line_costs_its_document_alone(tmp_path):
  """Case L3: whatever byte a kill leaves last."""
  path = write_ledger(tmp_path)
  whole = path.read_bytes()
  lines = whole.splitlines(keepends=True)
  ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
  for end in sorted({e + step for e in [0, *ends] for step in (-9, -1, 0, 1)}):
    if not 0 <= end <= len(whole):
      continue
    path.write_bytes(whole[:end])
    kept = max(sum(e <= end for e in ends) - 1, 0)
    assert read_ledger(tmp_path) == LINES[:kept], end
    for line in LINES[kept:]:
      with open_ledger(tmp_path) as ledger:
        ledger.append(line)
    assert path.read_bytes() == whole


def test_a_damaged_line_is_named(tmp_path):
  path = write_ledger(tmp_path)
  lines = path.read_text().splitlines(keepends=True)
  path.write_text("".join([*lines[:2], "{\n", *lines[3:]]))
  with pytest.raises(ValueError, match=r"m\.jsonl, line 3, is damaged"):
    read_ledger(tmp_path)


def test_losses_that_are_not_finite_are_in_no_ledger(tmp_path):
  with pytest.raises(ValueError, match="document 'd3' are not finite"):
    DocumentResult("d3", 3, "", 1, float("nan"))
  path = write_ledger(tmp_path)
  text = path.read_text()
  assert '"nll_sum": 1.5' in text
  path.write_text(text.replace('"nll_sum": 1.5', '"nll_sum": NaN'))
  with pytest.raises(ValueError, match="document 'd0' are not finite"):
    read_ledger(tmp_path)


def write_old_ledger(folder, made_with):
  """As it was written before lines named their texts."""
  (folder / "documents").mkdir()
  fields = [made_with, *(dataclasses.asdict(one) for one in DOCUMENTS)]
  text = "".join(json.dumps(one) + "\n" for one in fields)
  (folder / "documents" / "m.jsonl").write_text(text)


def test_a_ledger_of_before_is_done_again_with_a_word(tmp_path, caplog):
  write_old_ledger(tmp_path, SETTINGS | {"max_length": 0})
  with (
    caplog.at_level("INFO"),
    open_ledger(tmp_path, SETTINGS | {"max_length": 256}) as ledger,
  ):
    assert not ledger.done
    ledger.append(LINES[0])
  assert "its 3 documents are: they are evaluated again" in caplog.text
  with open_ledger(tmp_path, SETTINGS | {"max_length": 256}) as ledger:
    assert list(ledger.done.values()) == LINES[:1]


def test_a_ledger_of_before_with_other_settings_is_refused(tmp_path):
  write_old_ledger(tmp_path, SETTINGS)
  made_with = SETTINGS | {"model": {"checksum": "b2", "dtype": "float32"}}
  with (
    pytest.raises(OtherSettings, match=r"model\.checksum was 'a1' and is 'b2'"),
    open_ledger(tmp_path, made_with),
  ):
    pass


def test_two_do_not_write_one_ledger(tmp_path):
  with (
    files.locked(tmp_path, "m"),
    files.locked(tmp_path, "other"),
    pytest.raises(InUse, match="another process is evaluating 'm' into"),
    files.locked(tmp_path, "m"),
  ):
    pass
  with files.locked(tmp_path, "m"):
    pass


def test_what_a_killed_run_left_goes_and_that_of_another_model_stays(tmp_path):
  left = [
    tmp_path / "documents" / "m.jsonl.0123abcd.tmp",
    tmp_path / "documents" / "m.parquet.0123abcd.tmp",
    tmp_path / "results" / "m.json.0123abcd.tmp",
    tmp_path / "tokens" / "m" / "d0-ff.parquet.0123abcd.tmp",
  ]
  kept = [
    tmp_path / "documents" / "m.2.jsonl.0123abcd.tmp",
    tmp_path / "results" / "m.json",
  ]
  for path in left + kept:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
  with files.locked(tmp_path, "m"):
    assert not any(path.exists() for path in left)
  assert all(path.exists() for path in kept)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"per_token": True}, "per_token was False and is True"),
    ({"model": {"checksum": "b2"}}, r"model\.checksum was 'a1' and is 'b2'"),
    (
      {"model": {"checksum": "a1"}},
      r"model\.dtype was 'float32' and is not there",
    ),
    (
      {"keys": SETTINGS["keys"] | {"alpha": 1}},
      r"keys\.alpha was 2\.0 and is 1",
    ),
    ({"over_length": "skip"}, "over_length was not there and is 'skip'"),
  ],
)
def test_other_settings_are_refused_by_field_and_kept(
  tmp_path, changes, message
):
  path = write_ledger(tmp_path)
  before = path.read_bytes()
  with (
    pytest.raises(OtherSettings, match=message),
    open_ledger(tmp_path, SETTINGS | changes),
  ):
    pass
  assert path.read_bytes() == before
  with open_ledger(tmp_path, SETTINGS | changes, overwrite=True) as ledger:
    assert ledger.done == {}


def test_names_revisions_and_versions_are_no_other_settings(tmp_path):
  write_ledger(tmp_path)
  model = SETTINGS["model"] | {"name": "elsewhere", "revision": "c3"}
  keys = SETTINGS["keys"] | {
    "versions": {"jax": "2"}, "evaluator": "moved", "revision": "d4",
    "detail": "keys",
  }  # fmt: skip
  with open_ledger(tmp_path, {**SETTINGS, "model": model, "keys": keys}) as it:
    assert len(it.done) == 3


def test_slices_go_by_the_name_of_their_evaluator(tmp_path):
  """They have no checksum."""
  keys = {"evaluator": "A", "detail": "spans"}
  with open_ledger(tmp_path, {**SETTINGS, "keys": keys}):
    pass
  with (
    pytest.raises(OtherSettings, match=r"keys\.evaluator was 'A' and is 'B'"),
    open_ledger(tmp_path, {**SETTINGS, "keys": keys | {"evaluator": "B"}}),
  ):
    pass


def test_documents_of_another_result_are_refused_by_file(tmp_path):
  """A run that was killed between the two files of a result."""
  first, second = (
    summarise(documents, protocol_name="paper", self_evaluated=False, name="m")
    for documents in (DOCUMENTS[:2], DOCUMENTS)
  )
  files.write_result(tmp_path, first)
  old = (tmp_path / "results" / "m.json").read_text()
  files.write_result(tmp_path, second)
  (tmp_path / "results" / "m.json").write_text(old)
  with pytest.raises(ValueError, match=r"documents/m\.parquet is not the one"):
    files.load_results(tmp_path)
  assert files.has_numbers(tmp_path, "m")
  files.write_result(tmp_path, second)
  assert files.load_results(tmp_path) == [second]


def test_a_number_that_json_has_not_is_refused_and_nothing_left(tmp_path):
  result = ModelResult(name="m", ppl=2.0)
  files.write_result(tmp_path, result)
  # Where no field of the result is looked at, the writer is.
  odd = dataclasses.replace(result, model={"scale": float("inf")})
  with pytest.raises(ValueError, match="JSON"):
    files.write_result(tmp_path, odd)
  path = tmp_path / "results" / "m.json"
  assert json.loads(path.read_text()) == result.to_json()
  assert list(path.parent.iterdir()) == [path]


def test_a_row_per_document_holds_sums_and_regions(tmp_path):
  result = summarise(
    DOCUMENTS, protocol_name="paper", self_evaluated=False, name="m"
  )
  files.write_result(tmp_path, result)
  assert files.load_results(tmp_path) == [result]
  table = pq.read_table(tmp_path / "documents" / "m.parquet").to_pydict()
  assert table["doc_id"] == [document.doc_id for document in DOCUMENTS]
  assert table["n_key_tokens"] == [3, 3, 0]
  assert table["n_key_regions"] == [2, 1, 0]
  assert table["key_nll_sum"] == [0.75, 1e-7, 0]
  assert table["region_counts"] == [[1, 2], [3], []]
  assert table["key_coverage"] == [0.75, None, None]
  assert table["longppl"][2] is None and table["ppl"][2] is None
  assert table["reason"] == ["", "", "too_short"]


def write_old(tmp_path):
  """What was written before a result was one value, field for field."""
  for folder in ("results", "documents"):
    (tmp_path / folder).mkdir()
  pooled = {
    "name": "old", "reason": "", "longppl": 2.5, "longppl_ci95": [2.0, None],
    "longppl_ci95_reason": "", "ppl": 4.0, "protocol": "paper",
    "self_evaluated": False, "n_tokens": 13, "null_reasons": {"too_short": 1},
    "warnings": ["w"], "alpha": 2.0, "beta": -2.0,
    "keys": {"alpha": 2.0, "beta": -2.0, "protocol": "paper"},
    "model": {"attention": "full"}, "attention": "full", "n_reused": 0,
    "seconds": 1.5, "tokens_per_second": None, "of_a_later_version": 1,
  }  # fmt: skip
  failed = {
    "name": "broken", "reason": "failed: OSError: no file", "keys": {},
    "longppl": None, "ppl": None,
  }  # fmt: skip
  for fields in (pooled, failed):
    path = tmp_path / "results" / f"{fields['name']}.json"
    path.write_text(json.dumps(fields))
  rows = [document.to_row() for document in DOCUMENTS]
  path = tmp_path / "documents" / "old.parquet"
  pq.write_table(pa.Table.from_pylist(rows), path)


def test_results_of_before_are_read(tmp_path):
  write_old(tmp_path)
  broken, old = files.load_results(tmp_path)
  assert broken.failed and not broken.has_numbers
  assert (old.longppl, old.longppl_ci95) == (2.5, (2.0, None))
  assert (old.alpha, old.attention, old.warnings) == (2.0, "full", ("w",))
  assert list(old.documents) == DOCUMENTS
  assert old.n_truncated is None


@pytest.mark.parametrize("name", ["name", "reason", "longppl", "ppl"])
def test_a_result_without_a_field_is_refused_by_name(tmp_path, name):
  write_old(tmp_path)
  path = tmp_path / "results" / "old.json"
  fields = json.loads(path.read_text())
  del fields[name]
  path.write_text(json.dumps(fields))
  with pytest.raises(ValueError, match=rf"results/old\.json.*field '{name}'"):
    files.load_results(tmp_path)


@pytest.mark.parametrize(
  ("name", "value"),
  [("ppl", "4"), ("ppl", True), ("n_tokens", -1), ("n_tokens", 1.5)],
)
def test_a_value_that_no_result_has_is_refused_by_name(tmp_path, name, value):
  write_old(tmp_path)
  path = tmp_path / "results" / "old.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
  with pytest.raises(ValueError, match=rf"old\.json.*{name} is {value!r}"):
    files.load_results(tmp_path)


def test_results_of_several_workdirs_keep_names_apart(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  for place, name in (("a", "m"), ("b", "m"), ("b", "n")):
    files.write_result(place, ModelResult(name=name, reason="failed: x"))
  found = files.load_all(["a", "b/"])
  assert [one.name for one in found] == ["a:m", "b:m", "n"]
  assert [one.name for one in files.load_all(["b"])] == ["m", "n"]
  with pytest.raises(ValueError, match="b is named twice"):
    files.load_all(["b", "b/"])
