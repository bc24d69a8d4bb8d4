"""The folder of a store, opened by the tools that people have.

Each is asked where it is installed: `make test-data-tools` has them all.
"""

import json
import re

import numpy as np
import pytest
from support import manifests, stores
from support.command_line import ROOT

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import record, selection
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.text import corpus as corpus_lib

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


def block(tool):
  """A code block of docs/store.md, by the comment in its first line."""
  page = (ROOT / "docs" / "store.md").read_text()
  blocks = re.findall(r"```python\n# (\w+)\n(.*?)```", page, re.DOTALL)
  return dict(blocks)[tool]


@pytest.fixture
def scored(tmp_path, monkeypatch):
  """W, the store of the page; the ids that `data.py select` keeps of it."""
  rng = np.random.default_rng(1)
  rows = [
    stores.record(
      i,
      n=int(rng.integers(8, 300)),
      text_sha256=corpus_lib.text_sha256(f"text {i}"),
      reason="" if i % 7 else "too_short",
      scores={"key_token_ratio": i % 7 and int(rng.integers(9)) / 8 or None},
    )
    for i in range(60)
  ]
  stores.write(tmp_path / "W" / "key_tokens", rows[:20], rows[20:])
  lines = [json.dumps({"id": f"d{i}", "text": f"text {i}"}) for i in range(60)]
  (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
  selection.select(
    tmp_path / "W",
    corpus_lib.open_corpus(str(tmp_path / "corpus.jsonl")),
    tmp_path / "kept.parquet",
    within_length_buckets=True,
  )
  monkeypatch.chdir(tmp_path)
  kept = corpus_lib.open_corpus("kept.parquet")
  return rows, sorted(one.doc_id for one in kept)


@pytest.mark.parametrize("tool", ["pandas", "polars", "duckdb"])
def test_the_filter_of_the_page_keeps_what_select_keeps(scored, tool):
  pytest.importorskip("pandas")
  pytest.importorskip(tool)
  found = {}
  exec(block(tool), found)
  assert sorted(found["kept"]) == scored[1] and len(scored[1]) > 8


def test_other_thresholds_of_the_page(scored):
  pytest.importorskip("pandas")
  found = {}
  exec(block("numpy"), found)
  (row,) = (r for r in scored[0] if r.doc_id == found["row"].doc_id)
  expected = row.with_thresholds(2.0, -2.0)
  assert (
    found["key"].tolist()
    == (
      (row.long_log_probs - row.short_log_probs > 2.0)
      & (row.long_log_probs > -2.0)
    ).tolist()
  )
  starts = [start for start, _ in found["spans"]]
  assert starts == row.offsets[found["key"], 0].tolist() and (
    expected.key_mask is not None
  )
