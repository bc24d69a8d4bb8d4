"""The folder of a store, opened by the tools that people have.

Each is asked where it is installed: `make test-data-tools` has them all.
"""

import pytest
from support import manifests

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import record
from longctx_jax.key_tokens import writer as writer_lib

IDS = ["d0", "d1", "d2"]


@pytest.fixture
def folder(tmp_path):
  """Two parts, also of a run that was killed while it wrote a third."""
  folder = tmp_path / "key_tokens"
  writer = writer_lib.open_writer(folder, manifests.make())
  rows = [
    record.make_key_tokens(
      doc_id=doc_id,
      doc_index=i,
      text_sha256="a",
      n_chars=3,
      n_tokens=2,
      n_tokens_full=2,
      n_eligible=1,
      offsets=[[0, 1], [1, 3]],
      long_log_probs=[-0.5, -1.0],
      short_log_probs=[float("nan"), -9.0],
      scores={"n_mirror": None if i else 2, "copied_share": 0.5},
      columns={"lang": "en"},
      manifest=manifests.make(),
    )
    for i, doc_id in enumerate(IDS)
  ]
  writer.write(rows[:2])
  writer.write(rows[2:])
  path = folder_lib.part_path(
    folder, generation=1, shard=0, attempt="deadbeef", number=2
  )
  (folder.parent / f"{path.name}.12345678.tmp").write_bytes(b"PAR1 half")
  assert all(path.suffix == ".parquet" for path in folder.iterdir())
  return folder


def check(ids, lists, mirror):
  """Ids, the long log-probs of a document, a score with a null."""
  assert sorted(ids) == IDS
  assert [list(map(float, values)) for values in lists] == [[-0.5, -1.0]] * 3
  assert sorted(value or 0 for value in mirror) == [0, 0, 2]


def test_pandas(folder):
  pandas = pytest.importorskip("pandas")
  table = pandas.read_parquet(folder)
  mirror = table.n_mirror.fillna(0)
  check(table.doc_id, table.long_log_probs, mirror)


def test_polars(folder):
  polars = pytest.importorskip("polars")
  table = polars.read_parquet(folder)
  check(table["doc_id"], table["long_log_probs"], table["n_mirror"])


def test_duckdb(folder):
  duckdb = pytest.importorskip("duckdb")
  rows = duckdb.sql(
    f"select doc_id, long_log_probs, n_mirror from '{folder}/*.parquet'"
  ).fetchall()
  check(*zip(*rows, strict=True))


def test_datasets(folder, tmp_path):
  datasets = pytest.importorskip("datasets")
  table = datasets.load_dataset(
    "parquet", data_dir=str(folder), cache_dir=str(tmp_path / "cache")
  )["train"]
  check(table["doc_id"], table["long_log_probs"], table["n_mirror"])
