"""The sums of a document: written and read back, copies, the evaluator."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from longctx_jax.evaluation.documents import DocumentResult, text_labels

DOCUMENT = DocumentResult(
  "d", 3, "", n_tokens=9, nll_sum=12.5, region_nll_sums=(1.5, 2.0),
  region_counts=(2, 1), key_chars=8, covered_chars=6, text_sha256="ab",
)  # fmt: skip


def test_a_document_survives_the_ledger_and_the_table(tmp_path):
  line = json.loads(json.dumps(DOCUMENT.to_json(), allow_nan=False))
  assert DocumentResult.from_json(line) == DOCUMENT
  path = tmp_path / "documents.parquet"
  pq.write_table(pa.Table.from_pylist([DOCUMENT.to_row()]), path)
  (row,) = pq.read_table(path).to_pylist()
  assert DocumentResult.from_json(row) == DOCUMENT
  assert (row["n_key_tokens"], row["key_nll_sum"]) == (3, 3.5)
  assert row["longppl"] == pytest.approx(math.exp(3.5 / 3))
  assert row["key_coverage"] == 0.75


def test_what_later_versions_add_is_left_and_what_was_not_there_is_unknown():
  old = {"doc_id": "d", "doc_index": 0, "reason": "empty", "later": 1}
  assert DocumentResult.from_json(old) == DocumentResult("d", 0, "empty")
  with pytest.raises(ValueError, match="no field 'reason'"):
    DocumentResult.from_json({"doc_id": "d", "doc_index": 0})


@pytest.mark.parametrize("field", ["nll_sum", "region_nll_sums"])
def test_losses_are_finite(field):
  value = math.nan if field == "nll_sum" else (math.inf,)
  with pytest.raises(ValueError, match="losses of document 'd' are not finite"):
    DocumentResult("d", 0, "", **{field: value})


def test_a_text_is_known_by_its_hash_or_else_by_its_sums():
  known = [
    DocumentResult(str(i), i, "", text_sha256=h) for i, h in enumerate("aba")
  ]
  unknown = [
    DocumentResult(str(i), i, "", 5, s) for i, s in enumerate((1.0, 2.0, 1.0))
  ]
  assert text_labels(known + unknown).tolist() == [0, 1, 0, 2, 3, 2]
