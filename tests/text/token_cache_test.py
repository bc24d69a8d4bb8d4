"""The token cache: made once, whole after a kill, new where data changed."""

import json
import multiprocessing
import os

import numpy as np
import pytest

from longctx_jax import testing
from longctx_jax.text import chunks, corpus, token_cache
from longctx_jax.text.tokenizer import TextTokenizer

TEXTS = [f"text {i} naïve 🙂 " * (3 + i) for i in range(7)] + [""]


def tokenizer(**options):
  return TextTokenizer(testing.byte_tokenizer(**options), name="bytes")


def write(path, texts=TEXTS):
  lines = [json.dumps({"id": f"d{i}", "text": t}) for i, t in enumerate(texts)]
  path.write_text("\n".join(lines))
  return str(path)


@pytest.fixture
def source(tmp_path):
  return write(tmp_path / "a.jsonl")


def open_cache(folder, source, *, chunk_len=40, **options):
  return token_cache.open_cache(
    folder, corpus.open_corpus(source), tokenizer(**options),
    chunk_len=chunk_len,
  )  # fmt: skip


def expected(chunk_len=40):
  for i, text in enumerate(TEXTS):
    document = corpus.Document(f"d{i}", i, text, None, {})
    for chunk in chunks.cut_document(
      document, tokenizer(), chunk_len=chunk_len
    ):
      if len(chunk.ids):
        yield chunk


def assert_holds(cache, found):
  found = list(found)
  assert cache.doc_ids == [chunk.doc_id for chunk in found]
  assert cache.lengths.tolist() == [len(chunk.ids) for chunk in found]
  assert cache.hashes == [corpus.text_sha256(c.text) for c in found]
  for i, chunk in enumerate(found):
    ids, offsets = cache.read(i)
    assert ids.dtype == np.int32
    np.testing.assert_array_equal(ids, chunk.ids)
    np.testing.assert_array_equal(offsets, chunk.offsets)


@pytest.fixture
def tokenised(monkeypatch):
  """Ids of the documents that are cut from now on."""
  cut_document, seen = chunks.cut_document, []

  def cut(document, *args, **kwargs):
    seen.append(document.doc_id)
    return cut_document(document, *args, **kwargs)

  monkeypatch.setattr(chunks, "cut_document", cut)
  return seen


def test_the_cache_holds_the_chunks_and_is_made_once(
  tmp_path, source, tokenised
):
  cache = open_cache(tmp_path / "c", source)
  assert_holds(cache, expected())
  per_document = {}
  for doc_id, length in zip(cache.doc_ids, cache.lengths, strict=True):
    name = doc_id.split("#")[0]
    per_document[name] = per_document.setdefault(name, 0) + length
  assert cache.document_lengths.tolist() == [
    per_document[doc_id.split("#")[0]] for doc_id in cache.doc_ids
  ]
  found = list(expected())
  tokenised.clear()
  again = open_cache(tmp_path / "c", source)
  assert not tokenised
  assert_holds(again, found)


def test_specials_come_back_with_no_characters(tmp_path, source):
  cache = open_cache(tmp_path / "c", source, add_bos=True)
  ids, offsets = cache.read(0)
  assert ids[0] == 256 and offsets[0].tolist() == [0, 0]


def test_what_determines_the_chunks_determines_the_folder(tmp_path, source):
  """Other text, tokenizer, length, columns or rows; never the same folder."""
  folders = {open_cache(tmp_path, source).folder}
  folders.add(open_cache(tmp_path, source, chunk_len=41).folder)
  folders.add(open_cache(tmp_path, source, add_bos=True).folder)
  part = corpus.open_corpus(source, row_range=(0, 3))
  cache = token_cache.open_cache(tmp_path, part, tokenizer(), chunk_len=40)
  folders.add(cache.folder)
  text = TEXTS[0].replace("0", "9")  # As long as before.
  write(tmp_path / "a.jsonl", [text, *TEXTS[1:]])
  os.utime(source, ns=(1, 1))
  cache = open_cache(tmp_path, source)
  folders.add(cache.folder)
  assert len(folders) == 5
  assert text.startswith(tokenizer().decode(cache.read(0)[0]))


def test_a_killed_run_goes_on_after_the_last_whole_part(
  tmp_path, source, tokenised, monkeypatch
):
  monkeypatch.setattr(token_cache, "_PART_IDS", 150)
  write_part, calls = token_cache._write_part, []

  def kill(folder, number, pending, documents):
    if number == 1:
      (folder / "part-00001.array_record.tmp").write_bytes(b"half")
      raise KeyboardInterrupt
    write_part(folder, number, pending, documents)
    calls.append(documents)

  with monkeypatch.context() as killed:
    killed.setattr(token_cache, "_write_part", kill)
    with pytest.raises(KeyboardInterrupt):
      open_cache(tmp_path / "c", source)
  (done,) = calls
  assert 0 < done < len(TEXTS)
  tokenised.clear()
  cache = open_cache(tmp_path / "c", source)
  assert tokenised == [f"d{i}" for i in range(done, len(TEXTS))]
  assert_holds(cache, expected())
  assert not list(cache.folder.glob("*.tmp"))
  assert len(list(cache.folder.glob("*.array_record"))) > 2


def test_records_without_their_index_are_written_again(
  tmp_path, source, monkeypatch
):
  """Killed between the two files of a part."""
  cache = open_cache(tmp_path / "c", source)
  for name in ("manifest.json", "part-00000.parquet"):
    (cache.folder / name).unlink()
  assert_holds(open_cache(tmp_path / "c", source), expected())


def _open_in_process(folder, source, queue):
  queue.put(len(open_cache(folder, source)))


def test_processes_that_start_together_share_one_cache(tmp_path, source):
  context = multiprocessing.get_context("spawn")
  queue = context.Queue()
  arguments = (tmp_path / "c", source, queue)
  processes = [
    context.Process(target=_open_in_process, args=arguments) for _ in range(2)
  ]
  for process in processes:
    process.start()
  counts = {queue.get(timeout=60) for _ in processes}
  for process in processes:
    process.join()
  assert counts == {len(list(expected()))}
  assert_holds(open_cache(tmp_path / "c", source), expected())


def test_a_cache_that_lost_a_part_is_named(tmp_path, source, monkeypatch):
  monkeypatch.setattr(token_cache, "_PART_IDS", 150)
  cache = open_cache(tmp_path / "c", source)
  (cache.folder / "part-00001.parquet").unlink()
  with pytest.raises(ValueError, match="is damaged: . parts of .*Remove the"):
    open_cache(tmp_path / "c", source)


def test_documents_that_cannot_be_read_are_left_out_and_named(tmp_path, caplog):
  path = tmp_path / "a.jsonl"
  rows = [{"id": "good", "text": "abcdef"}, {"id": "bad", "text": None}]
  path.write_text("\n".join(map(json.dumps, rows)))
  with caplog.at_level("WARNING"):
    cache = open_cache(tmp_path / "c", str(path))
  assert cache.doc_ids == ["good#0"]
  assert "document 'bad' is left out: column 'text' is null" in caplog.text
  path.write_text(json.dumps(rows[1]))
  with pytest.raises(ValueError, match="none of the 1 documents can be read"):
    open_cache(tmp_path / "c", str(path))


def test_ids_need_no_tokenizer_and_texts_do(tmp_path, source):
  path = tmp_path / "ids.jsonl"
  path.write_text(json.dumps({"id": "d", "ids": list(range(50))}))
  found = corpus.open_corpus(str(path), ids_column="ids")
  cache = token_cache.open_cache(tmp_path / "c", found, None, chunk_len=40)
  read = [cache.read(i) for i in range(len(cache))]
  assert np.concatenate([ids for ids, _ in read]).tolist() == list(range(50))
  assert all(offsets is None for _, offsets in read)
  assert cache.hashes == ["", ""]
  with pytest.raises(ValueError, match="texts need a tokenizer"):
    token_cache.open_cache(
      tmp_path, corpus.open_corpus(source), None, chunk_len=4
    )
