"""The evaluation set from small tokenized sets; no network."""

import hashlib
import itertools
import json
import pathlib
import time

import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants
from support.byte_fallback import metaspace

from longctx_jax.experiments import govreport
from longctx_jax.key_tokens import slices
from longctx_jax.text import corpus
from longctx_jax.text.tokenizer import TextTokenizer

# No ids, clean-up bait (cases A9), a line end, a character of four bytes.
TEXTS = [
  "a",
  "x != y and a.b == c",
  "the cat , the cat .\nIt 's",
  "ab",
  "a 🙂 b",
  "the  cat",
]


def llama2():
  """Llama 2's kind: metaspace prefix, byte fallback, no clean-up."""
  return metaspace(by_normalizer=True, alphabet="abcehstxyd.,!='I")


def ids_of(text):
  return llama2().encode(text, add_special_tokens=False).ids


IDS = [ids_of(text) for text in TEXTS]


@pytest.fixture
def tokenizer(tmp_path):
  folder = tmp_path / "llama2"
  folder.mkdir()
  llama2().save(str(folder / "tokenizer.json"))
  return str(folder)


def write_parquet(path, ids=IDS, **columns):
  columns = {
    "input": TEXTS[: len(ids)],
    "input_ids": pa.array(ids, pa.list_(pa.int32())),
    **columns,
  }
  path.parent.mkdir(parents=True, exist_ok=True)
  pq.write_table(pa.table(columns), path, row_group_size=2)
  return str(path)


def write_json(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def test_first_long_rows_are_taken_in_order():
  rows = [np.arange(n) for n in (5, 9, 10, 11, 3, 10, 12)]
  found = govreport.select(iter(rows), min_ids=10, documents=3)
  assert [row for row, _ in found] == [2, 3, 5]
  assert [len(ids) for _, ids in found] == [10, 11, 10]


def test_rows_behind_the_last_one_taken_are_not_read():
  endless = (np.zeros(n) for n in itertools.count())
  found = govreport.select(endless, min_ids=3, documents=2)
  assert [row for row, _ in found] == [3, 4]


def test_too_few_long_rows_are_an_error_with_the_numbers():
  rows = [np.arange(n) for n in (5, 9, 10)]
  with pytest.raises(ValueError, match="1 of 3 rows have at least 10 ids.* 2 "):
    govreport.select(rows, min_ids=10, documents=2)
  with pytest.raises(ValueError, match="documents=0"):
    govreport.select(rows, min_ids=10, documents=0)


def test_cut_keeps_the_first_ids():
  ids = np.arange(7)
  assert govreport.cut(ids, max_ids=3).tolist() == [0, 1, 2]
  assert govreport.cut(ids, max_ids=7).tolist() == ids.tolist()
  with pytest.raises(ValueError, match="max_ids=0"):
    govreport.cut(ids, max_ids=0)


def test_texts_survive_ids_byte_for_byte():
  """Cases A9: no clean-up of spaces before punctuation."""
  tokenizer = TextTokenizer(llama2(), name="llama2")
  for text, ids in zip(TEXTS, IDS, strict=True):
    assert govreport.decode(np.array(ids), tokenizer) == text


def test_special_tokens_are_kept():
  """Paper 3.2: where the ids hold BOS, the text starts with "<s>"."""
  tokenizer = TextTokenizer(llama2(), name="llama2")
  assert govreport.decode(np.array([1, *IDS[5]]), tokenizer) == "<s> the  cat"
  assert govreport.decode(np.array([*IDS[5], 2]), tokenizer) == "the  cat</s>"


def test_ids_of_a_larger_vocabulary_are_an_error():
  tokenizer = TextTokenizer(llama2(), name="llama2")
  with pytest.raises(ValueError, match="id 99999 is not in its vocabulary"):
    govreport.decode(np.array([5, 99999]), tokenizer)


def test_set_is_written_with_how_it_was_made(tmp_path, tokenizer):
  source = write_parquet(tmp_path / "test.parquet")
  output = tmp_path / "govreport.parquet"
  table = govreport.make(
    output,
    source=source,
    tokenizer=tokenizer,
    min_ids=9,
    documents=2,
    max_ids=12,
  )
  assert [len(ids) for ids in IDS] == [2, 20, 16, 3, 9, 4]
  written = pq.read_table(output)
  assert written.equals(table)
  texts = [llama2().decode(IDS[row][:12]) for row in (1, 2)]
  assert TEXTS[1].startswith(texts[0]) and texts[0] != TEXTS[1]
  assert written.to_pydict() == {
    "doc_id": ["govreport/1", "govreport/2"],
    "text": texts,
    "source_row": [1, 2],
    "n_ids": [12, 12],
  }
  facts = json.loads(written.schema.metadata[govreport.METADATA_KEY])
  digest = hashlib.sha256(pathlib.Path(source).read_bytes()).hexdigest()
  assert facts == {
    "data_set": source,
    "revision": "",
    "sha256": {"test.parquet": digest},
    "tokenizer": tokenizer,
    "tokenizer_revision": "",
    "tokenizer_fingerprint": TextTokenizer(llama2(), name="").fingerprint,
    "min_ids": 9,
    "documents": 2,
    "max_ids": 12,
  }
  assert not list(tmp_path.glob("*.tmp"))


def test_a_cut_through_a_character_is_decoded_as_the_reference_does(
  tmp_path, tokenizer
):
  at = IDS[4].index(llama2().token_to_id("<0xF0>"))
  output = tmp_path / "out.parquet"
  table = govreport.make(
    output,
    source=write_json(tmp_path / "a.jsonl", [{"input_ids": IDS[4]}]),
    tokenizer=tokenizer,
    min_ids=1,
    documents=1,
    max_ids=at + 2,
  )
  (text,) = table["text"].to_pylist()
  assert text == "a \ufffd\ufffd" == llama2().decode(IDS[4][: at + 2])


def test_every_source_gives_the_same_texts(tmp_path, tokenizer):
  """Cases B1; and the output is a corpus (cases L1: from then on offline)."""
  rows = [{"input_ids": ids} for ids in IDS]
  halves = tmp_path / "halves"
  write_parquet(halves / "test-0.parquet", IDS[:3])
  write_parquet(halves / "test-1.parquet", IDS[3:])
  sources = [
    write_parquet(tmp_path / "test.parquet"),
    write_json(tmp_path / "test.jsonl", rows),
    str(halves),
  ]
  for i, source in enumerate(sources):
    output = tmp_path / f"out{i}.parquet"
    govreport.make(
      output, source=source, tokenizer=tokenizer, min_ids=3, documents=5
    )
    documents = list(corpus.open_corpus(output))
    assert [d.text for d in documents] == TEXTS[1:]
    assert [d.doc_id for d in documents] == [
      f"govreport/{row}" for row in range(1, 6)
    ]


def test_slice_files_go_by_the_number_behind_the_filter(tmp_path, tokenizer):
  """Paper 3.2: i is the position after filtering, not the row."""
  output = tmp_path / "out.parquet"
  source = write_parquet(tmp_path / "test.parquet")
  govreport.make(
    output, source=source, tokenizer=tokenizer, min_ids=9, documents=2
  )
  (tmp_path / "slice_0.txt").write_text("[0, 1]")
  (tmp_path / "slice_1.txt").write_text("[4, 7]")
  texts = corpus.open_corpus(output)
  store = slices.read_slice_store(tmp_path, texts)
  assert store.get("govreport/1").spans.tolist() == [[0, 1]]
  assert store.get("govreport/2").spans.tolist() == [[4, 7]]


def test_what_is_wrong_with_a_source_is_named(tmp_path, tokenizer):
  """Cases B2: what is missing, by name."""

  def make(rows):
    govreport.make(
      tmp_path / "out.parquet",
      source=write_json(tmp_path / "bad.jsonl", rows),
      tokenizer=tokenizer,
      min_ids=1,
      documents=1,
    )

  with pytest.raises(ValueError, match="no column 'input_ids'.*: input, pid"):
    make([{"input": "the text", "pid": 3}])
  for ids in (None, "12", [1.5], [[1], [2]]):
    with pytest.raises(ValueError, match="bad.jsonl#0: 'input_ids' holds no"):
      make([{"input_ids": ids}])
  with pytest.raises(ValueError, match="row 0 .*id 4711 is not in its voc"):
    make([{"input_ids": [5, 4711]}])
  (tmp_path / "bad.jsonl").write_text('{"input_ids": [4]}\n{"input_')
  with pytest.raises(ValueError, match="bad.jsonl#1: not JSON"):
    govreport.make(
      tmp_path / "out.parquet",
      source=str(tmp_path / "bad.jsonl"),
      tokenizer=tokenizer,
      min_ids=2,
      documents=1,
    )
  assert not (tmp_path / "out.parquet").exists()


def test_finished_file_is_never_overwritten(tmp_path, tokenizer):
  output = tmp_path / "out.parquet"
  output.write_text("precious")
  source = write_parquet(tmp_path / "test.parquet")
  with pytest.raises(ValueError, match="out.parquet exists"):
    govreport.make(output, source=source, tokenizer=tokenizer)
  assert output.read_text() == "precious"
  with pytest.raises(ValueError, match="no such folder"):
    govreport.make(
      tmp_path / "no" / "out.parquet", source=source, tokenizer=tokenizer
    )


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
  """An empty cache, with a hub that can't be reached (by conftest)."""
  folder = tmp_path / "hub"
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
  return folder


def fill(hub_cache, repo, commit="c0ffee" * 6 + "c0ff"):
  """The snapshot folder of a repository in the cache, as the hub lays it."""
  folder = hub_cache / repo
  (folder / "refs").mkdir(parents=True)
  (folder / "refs" / "main").write_text(commit)
  snapshot = folder / "snapshots" / commit
  snapshot.mkdir(parents=True)
  return snapshot


@pytest.mark.parametrize("offline", [True, False])
def test_without_data_the_error_says_at_once_what_to_copy_where(
  tmp_path, tokenizer, hub_cache, monkeypatch, offline
):
  """Cases L1: declared offline, or with a network that refuses."""
  monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
  timeouts, repo_info = [], huggingface_hub.HfApi.repo_info

  def watched(self, *args, timeout=None, **kwargs):
    timeouts.append(timeout)
    return repo_info(self, *args, timeout=timeout, **kwargs)

  monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", watched)
  start = time.monotonic()
  with pytest.raises(FileNotFoundError) as refusal:
    govreport.make(tmp_path / "out.parquet", tokenizer=tokenizer)
  assert time.monotonic() - start < 5
  message = str(refusal.value)
  assert message.startswith("emozilla/govreport-test-tokenized can't be had")
  assert "data/*.parquet" in message and "--source" in message
  assert str(hub_cache) in message
  source = write_parquet(tmp_path / "test.parquet")
  with pytest.raises(FileNotFoundError) as refusal:
    govreport.make(tmp_path / "out.parquet", source=source)
  assert time.monotonic() - start < 5
  message = str(refusal.value)
  assert message.startswith("NousResearch/Llama-2-7b-hf can't be had")
  assert "tokenizer.json" in message and "--tokenizer FOLDER" in message
  # Nothing that waits is asked a second time.
  assert len(timeouts) == 2 and max(timeouts) < 2


def test_what_the_cache_of_the_hub_holds_is_enough(tmp_path, hub_cache):
  """Cases L1; the revision is the snapshot's commit."""
  data = fill(hub_cache, "datasets--emozilla--govreport-test-tokenized")
  write_parquet(data / "data" / "test-00000-of-00001.parquet")
  commit = "beef" * 10
  decoder = fill(hub_cache, "models--NousResearch--Llama-2-7b-hf", commit)
  llama2().save(str(decoder / "tokenizer.json"))
  table = govreport.make(tmp_path / "out.parquet", min_ids=9, documents=3)
  assert table["text"].to_pylist() == [TEXTS[1], TEXTS[2], TEXTS[4]]
  facts = json.loads(table.schema.metadata[govreport.METADATA_KEY])
  assert facts["data_set"] == govreport.DATA_SET
  assert facts["revision"] == data.name
  assert facts["tokenizer"] == govreport.TOKENIZER
  assert facts["tokenizer_revision"] == commit
  assert list(facts["sha256"]) == ["test-00000-of-00001.parquet"]


def test_of_the_hub_only_the_files_needed_are_fetched(tmp_path, monkeypatch):
  """Never the 13 GB of weights beside the tokenizer, and one fixed commit."""
  commit = "feed" * 10
  asked = {}

  def repo_info(self, repo, *, repo_type, timeout):
    assert timeout < 2
    return type("Info", (), {"sha": commit})

  def snapshot_download(repo, *, repo_type, revision, allow_patterns, **kwargs):
    assert (revision, kwargs) == (commit, {"local_files_only": False})
    published = [
      *("README.md", "data/test-00000-of-00001.parquet", "tokenizer.json"),
      *("model-00001-of-00002.safetensors", "pytorch_model.bin"),
      *("tokenizer.model", "tokenizer_config.json", "generation_config.json"),
    ]
    asked[repo_type, repo] = list(
      huggingface_hub.utils.filter_repo_objects(
        published, allow_patterns=allow_patterns
      )
    )
    folder = tmp_path / repo_type / commit
    write_parquet(folder / "data" / "test-00000-of-00001.parquet")
    llama2().save(str(folder / "tokenizer.json"))
    return str(folder)

  monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
  monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
  table = govreport.make(tmp_path / "out.parquet", min_ids=9, documents=3)
  assert table["source_row"].to_pylist() == [1, 2, 4]
  assert asked == {
    ("dataset", govreport.DATA_SET): ["data/test-00000-of-00001.parquet"],
    ("model", govreport.TOKENIZER): [
      "tokenizer.json",
      "tokenizer.model",
      "tokenizer_config.json",
    ],
  }


def test_defaults_are_those_of_the_reference():
  """Paper 3.2: its run_ppl.sh and perplexity.py."""
  limits = (govreport.MIN_IDS, govreport.DOCUMENTS, govreport.MAX_IDS)
  assert limits == (2**14, 50, 2**15 - 1)
