"""Which documents a selection keeps, and what it writes of them."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from support import manifests, stores

from longctx_jax.key_tokens import selection, writer
from longctx_jax.text import corpus as corpus_lib

RNG = np.random.default_rng(0)
COUNT = 23
RATIOS = [None if i in (3, 11) else float(RNG.integers(0, 12)) / 12
          for i in range(COUNT)]  # fmt: skip
LENGTHS = [int(n) for n in RNG.integers(5, 64, COUNT)]
TEXTS = [f"text {i} é🙂\r\n" for i in range(COUNT)]


@pytest.fixture
def made(tmp_path):
  """(workdir, corpus file): documents in two parts, two without a score."""
  rows = [
    stores.record(
      i,
      n=LENGTHS[i],
      text_sha256=corpus_lib.text_sha256(TEXTS[i]),
      reason="" if RATIOS[i] is not None else "too_short",
      scores={"key_token_ratio": RATIOS[i], "n_mirror": i},
      columns={"lang": "en", "tags": ["a", "b"]},
    )
    for i in range(COUNT)
  ]
  stores.write(tmp_path / "w" / "key_tokens", rows[:9], rows[9:])
  path = tmp_path / "corpus.jsonl"
  write(path, range(COUNT))
  return tmp_path / "w", path


def write(path, numbers, texts=TEXTS):
  lines = [json.dumps({"id": f"d{i}", "text": texts[i]}) for i in numbers]
  path.write_text("\n".join(lines) + "\n")


def select(made, output="kept.parquet", **options):
  """(what is said, rows of the file)."""
  workdir, path = made
  output = workdir.parent / output
  corpus = corpus_lib.open_corpus(str(path))
  found = selection.select(workdir, corpus, output, **options)
  return found, pq.read_table(output).to_pylist()


def expected(share, buckets):
  """By the definition: document numbers, in the order of the corpus."""
  groups = {}
  for i, ratio in enumerate(RATIOS):
    if ratio is not None:
      low = int(math.log2(LENGTHS[i])) if buckets else 0
      groups.setdefault(low, []).append(i)
  kept = []
  for group in groups.values():
    ranked = sorted(group, key=lambda i: (-RATIOS[i], i))
    kept += ranked[: -(-share * len(group) // 100)]
  return sorted(kept)


@pytest.mark.parametrize("share", [1, 20, 50, 100])
@pytest.mark.parametrize("buckets", [False, True])
def test_the_share_of_each_bucket_is_kept(made, share, buckets):
  found, rows = select(made, top=f"{share}%", within_length_buckets=buckets)
  numbers = expected(share, buckets)
  assert [row["doc_id"] for row in rows] == [f"d{i}" for i in numbers]
  assert found.kept == len(numbers) and found.ranked == COUNT - 2
  assert found.unranked == {"too_short": 2}
  assert found.lowest == min(RATIOS[i] for i in numbers)
  assert (len(found.buckets) > 2) == buckets
  assert sum(kept for kept, _ in found.buckets.values()) == found.kept
  assert f"kept {len(numbers)} of {COUNT - 2}" in str(found)


def test_a_row_has_the_text_and_all_scores(made):
  _, rows = select(made, top="3")
  assert len(rows) == 3
  for row in rows:
    i = int(row["doc_id"][1:])
    assert row["text"] == TEXTS[i] and row["key_token_ratio"] == RATIOS[i]
    assert row["n_tokens"] == LENGTHS[i] and row["n_mirror"] == i
    assert row["lang"] == "en" and row["tags"] == ["a", "b"]
    assert not {"token_start", "long_log_probs"} & set(row)


def test_any_column_of_numbers_ranks(made):
  _, rows = select(made, top="2", by="n_mirror")
  assert [row["doc_id"] for row in rows] == ["d21", "d22"]


def test_the_order_of_the_corpus_and_more_in_it_change_nothing(made):
  workdir, path = made
  path.write_text(
    "".join(reversed(path.read_text().splitlines(keepends=True)))
    + json.dumps({"id": "new", "text": "not scored"})
  )
  _, rows = select(made)
  assert sorted(int(row["doc_id"][1:]) for row in rows) == expected(20, False)


def test_a_row_of_a_later_run_counts_alone(made):
  workdir, path = made
  texts = ["changed", *TEXTS[1:]]
  write(path, range(COUNT), texts)
  again = stores.record(
    0,
    text_sha256=corpus_lib.text_sha256(texts[0]),
    scores={"key_token_ratio": 9.0},
  )
  writer.open_writer(workdir / "key_tokens", manifests.make()).write([again])
  _, rows = select(made, top="1")
  assert [row["doc_id"] for row in rows] == ["d0"]
  assert rows[0]["key_token_ratio"] == 9.0 and rows[0]["text"] == "changed"


def test_texts_go_out_in_groups(made, monkeypatch):
  monkeypatch.setattr(selection, "_GROUP_CHARS", 25)
  _, rows = select(made, top="100%")
  assert len(rows) == COUNT - 2
  path = made[0].parent / "kept.parquet"
  assert pq.ParquetFile(path).num_row_groups > 5


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (dict(top="0%"), "'0%' is neither a share, as 20%"),
    (dict(top="120%"), "neither a share"),
    (dict(top="many"), "neither a share"),
    (dict(top="3", within_length_buckets=True), "3 is a number of documents"),
    (dict(by="reason"), "--by reason is no column of numbers.*key_token_ratio"),
    (dict(by="nothing"), "--by nothing is no column of numbers"),
  ],
)
def test_what_can_not_be_selected_is_refused(made, options, message):
  with pytest.raises(ValueError, match=message):
    select(made, **options)
  assert not (made[0].parent / "kept.parquet").exists()


def test_another_corpus_is_refused_and_leaves_no_file(made):
  workdir, path = made
  texts = [*TEXTS]
  first = expected(20, False)[0]
  texts[first] = "changed"
  write(path, range(COUNT), texts)
  with pytest.raises(ValueError, match=f"'d{first}' has another text"):
    select(made)
  write(path, [i for i in range(COUNT) if i != first])
  with pytest.raises(ValueError, match="1 of 5 documents to keep are not in"):
    select(made)
  assert sorted(p.name for p in workdir.parent.iterdir()) == [
    "corpus.jsonl",
    "w",
  ]
  write(path, range(COUNT))
  select(made)
  with pytest.raises(ValueError, match="kept.parquet exists: remove it"):
    select(made)
