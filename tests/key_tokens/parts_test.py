import datetime
import io

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import manifests

from longctx_jax.key_tokens import parts, record

MANIFEST = manifests.make()
PATHS = {
  "token_start": "DELTA_BINARY_PACKED",
  "token_end": "DELTA_BINARY_PACKED",
  "long_log_probs": "BYTE_STREAM_SPLIT",
  "short_log_probs": "BYTE_STREAM_SPLIT",
}


def realistic(index, n, *, short_len=4096, **fields):
  """Log-probs as a language model's: a few near 0, a long tail, noise."""
  rng = np.random.default_rng(index)
  ends = np.cumsum(rng.geometric(0.22, n))
  long = -rng.exponential(2.0, n) * rng.random(n)
  short = np.minimum(long - rng.normal(0, 0.3, n), -1e-6)
  short[:short_len] = np.nan
  short[short_len : short_len + 1024] = long[short_len : short_len + 1024]
  return record.make_key_tokens(
    doc_id=f"d{index}",
    doc_index=index,
    text_sha256="0" * 64,
    n_chars=int(ends[-1]),
    n_tokens=n,
    n_tokens_full=n,
    n_eligible=n,
    offsets=np.stack([np.append(0, ends[:-1]), ends], axis=1),
    long_log_probs=long,
    short_log_probs=short,
    manifest=MANIFEST,
    **fields,
  )


def written(rows, detail="tokens"):
  file = io.BytesIO()
  parts.write_part(rows, file, manifests.make(detail=detail))
  return file.getvalue()


def test_a_token_takes_at_most_8_bytes():
  """Design 6: documents of 32k tokens, one alone and several together."""
  for n_documents in (1, 9):
    rows = [realistic(i, 32_768) for i in range(n_documents)]
    assert len(written(rows)) <= 8 * 32_768 * n_documents


def test_arrays_are_encoded_as_designed():
  rows = [realistic(0, 8_192, columns={"lang": "en"})]
  metadata = pq.ParquetFile(io.BytesIO(written(rows))).metadata
  columns = [
    metadata.row_group(0).column(i) for i in range(metadata.num_columns)
  ]
  assert {column.compression for column in columns} == {"ZSTD"}
  encodings = {
    column.path_in_schema.removesuffix(".list.element"): column.encodings
    for column in columns
  }
  for name, encoding in PATHS.items():
    assert encoding in encodings[name]
    assert "PLAIN" not in encodings[name]


def test_row_groups_stay_far_below_32_mb():
  """A document is read back with its group, so groups hold few of them."""
  rows = [realistic(i, 32_768) for i in range(1, 11)]
  rows = [realistic(0, 500_000), *rows, realistic(11, 600_000)]
  metadata = pq.ParquetFile(io.BytesIO(written(rows))).metadata
  groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
  assert [group.num_rows for group in groups] == [1, 7, 3, 1]
  assert all(group.total_byte_size < 4 << 20 for group in groups[1:-1])


def test_scores_have_one_type_in_every_part():
  """Also where a part holds no number, so that parts read as one table."""
  schemas = [
    pq.read_schema(io.BytesIO(written([realistic(0, 2, scores=scores)])))
    for scores in (
      {"n_mirror": None, "key_token_ratio": None},
      {"n_mirror": 2, "key_token_ratio": 0.5},
    )
  ]
  assert schemas[0].equals(schemas[1])


def test_unscored_targets_are_null(tmp_path):
  (tmp_path / "a.parquet").write_bytes(written([realistic(0, 5_000)]))
  table = parts.read_group(tmp_path / "a.parquet", 0)
  short = table["short_log_probs"][0].values
  assert short.null_count == 4_096
  assert table["long_log_probs"][0].values.null_count == 0
  keys = parts.row_key_tokens(table, 0, MANIFEST)
  assert np.flatnonzero(np.isnan(keys.short_log_probs)).tolist() == list(
    range(4_096)
  )


def _column(tmp_path, values):
  rows = [realistic(i, 2, columns={"x": v}) for i, v in enumerate(values)]
  (tmp_path / "a.parquet").write_bytes(written(rows))
  table = parts.read_group(tmp_path / "a.parquet", 0)
  keys = [parts.row_key_tokens(table, i, MANIFEST) for i in range(len(rows))]
  return [row.columns["x"] for row in keys]


@pytest.mark.parametrize(
  "values",
  [
    ["a", None],
    [1, 2],
    [None, None],
    [[1], []],
    [{"a": 1}, {"a": None}],
    [datetime.date(2026, 1, 1), None],
  ],
)
def test_columns_pass_through_unchanged(tmp_path, values):
  """Cases L7."""
  assert _column(tmp_path, values) == values


@pytest.mark.parametrize(
  ("values", "stored"),
  [
    ([1, "a"], ["1", '"a"']),
    ([{}, {}], ["{}", "{}"]),
    ([10**30], [str(10**30)]),
    (["\ud83d"], ['"\\ud83d"']),
  ],
)
def test_values_without_a_type_are_stored_as_json(tmp_path, values, stored):
  """Hours of scoring are not lost over a column that is only passed on."""
  assert _column(tmp_path, values) == stored


@pytest.mark.parametrize("name", ["doc_id", "token_start", "n_mirror"])
def test_column_named_like_a_field_is_refused(name):
  row = realistic(0, 2, columns={name: 1}, scores={"n_mirror": 1})
  with pytest.raises(ValueError, match=f"'{name}' can't pass.*Rename"):
    written([row])
