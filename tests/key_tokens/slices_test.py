import json

import numpy as np
import pytest

from longctx_jax.key_tokens import slices
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.text import corpus as corpus_lib

SLICES = ["[0, 3];[4, 9]", "", "[2, 5]"]
TEXTS = ["the first text", "the second", "third"]


@pytest.fixture
def folder(tmp_path):
  folder = tmp_path / "Some-Evaluator"
  folder.mkdir()
  for i, content in enumerate(SLICES):
    (folder / f"slice_{i}.txt").write_text(content)
  (folder / "README.md").write_text("not a slice file")
  return folder


@pytest.fixture
def corpus_of(tmp_path):
  def make(texts, **kwargs):
    path = tmp_path / "corpus.jsonl"
    rows = [{"text": t, "id": f"d{i}"} for i, t in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return corpus_lib.open_corpus(path, **kwargs)

  return make


def test_slices_belong_to_documents_by_number(folder, corpus_of, warnings):
  store = slices.read_slice_store(folder, corpus_of(TEXTS))
  assert isinstance(store, store_lib.KeyTokenStore)
  assert len(store) == 3
  assert [keys.spans.tolist() for keys in store] == [
    [[0, 3], [4, 9]],
    [],
    [[2, 5]],
  ]
  assert [keys.reason for keys in store] == ["", "no_key_tokens", ""]
  keys = store.get("d0")
  assert keys.offsets is None and keys.key_mask is None
  assert keys.n_chars == len(TEXTS[0])
  assert keys.text_sha256 == corpus_lib.text_sha256(TEXTS[0])
  assert store.manifest.to_json() == {
    "evaluator": "Some-Evaluator",
    "source": f"slices:{folder}",
    "detail": "spans",
    "alpha": 2.0,
    "beta": -2.0,
    "short_len": 4096,
    "stride": 1024,
    "protocol": "paper",
  }
  assert not warnings


def test_slices_match_their_documents(folder, corpus_of):
  corpus = corpus_of(TEXTS)
  store = slices.read_slice_store(folder, corpus)
  pairs = list(store_lib.match_documents(store, corpus))
  assert [keys.doc_id for keys, _ in pairs] == ["d0", "d1", "d2"]
  with pytest.raises(ValueError, match=r"\('d1'\) with another text"):
    store_lib.match_documents(
      store, corpus_of(["the first text", "?", "third"])
    )


def test_row_range_keeps_the_numbers(folder, corpus_of):
  corpus = corpus_of(TEXTS, row_range=(2, 3))
  store = slices.read_slice_store(folder, corpus)
  assert [keys.spans.tolist() for keys in store] == [[[2, 5]]]


def test_other_thresholds_are_refused_by_name(folder, corpus_of):
  """Paper 3.2: alpha and beta can't be changed, no scores are stored."""
  store = slices.read_slice_store(folder, corpus_of(TEXTS))
  same = store.with_thresholds(2.0, -2.0)
  assert same.get("d0").spans.tolist() == [[0, 3], [4, 9]]
  refusal = "alpha=2.0, beta=-2.0 .*alpha=1.0, beta=-2.0.*slice files"
  with pytest.raises(ValueError, match=refusal):
    store.with_thresholds(1.0, -2.0)


def test_numbers_of_files_and_documents_must_agree(folder, corpus_of):
  """Cases J6: nothing else ties slices to texts."""
  with pytest.raises(ValueError, match=r"slice_3.txt is missing.* 3 slice.* 4"):
    slices.read_slice_store(folder, corpus_of([*TEXTS, "fourth"]))
  with pytest.raises(ValueError, match="slice_2.txt has no document"):
    slices.read_slice_store(folder, corpus_of(TEXTS[:2]))
  first = corpus_of([*TEXTS, "fourth"], row_range=(0, 3))
  assert len(slices.read_slice_store(folder, first)) == 3


def test_folder_without_slices_is_refused(tmp_path, corpus_of):
  for name in (".", "absent"):
    with pytest.raises(FileNotFoundError, match="holds no slice files"):
      slices.read_slice_store(tmp_path / name, corpus_of(TEXTS))


def test_span_behind_its_text_is_named_with_likely_causes(folder, corpus_of):
  """Cases J6: the slices of another text."""
  (folder / "slice_0.txt").write_text("[4, 9]")
  with pytest.raises(ValueError) as refusal:
    slices.read_slice_store(folder, corpus_of(["text", *TEXTS[1:]]))
  message = str(refusal.value)
  assert "slice_0.txt: span [4, 9] ends behind the text" in message
  assert "has 4 characters" in message
  for cause in ("order", "filtered", "revision", "another tokenizer"):
    assert cause in message
  assert "Moved by" not in message


def test_spans_of_a_text_with_bos_are_recognised(folder, corpus_of):
  """Paper 3.2: where the ids held BOS, the text starts with "<s>"."""
  (folder / "slice_2.txt").write_text("[5, 8]")
  refusal = "Moved by 3 characters all spans fit.*special tokens kept"
  with pytest.raises(ValueError, match=refusal):
    slices.read_slice_store(folder, corpus_of(TEXTS))


def test_text_with_bos_is_called_out(folder, corpus_of, warnings):
  corpus = corpus_of([TEXTS[0], "<s>second", "<s>third"])
  slices.read_slice_store(folder, corpus)
  (warning,) = warnings
  assert warning.startswith("2 texts start with '<s>' ('d1' first)")
  (folder / "slice_2.txt").write_text("[2, 50]")
  with pytest.raises(ValueError, match="The text starts with '<s>'"):
    slices.read_slice_store(folder, corpus)


def test_unreadable_document_fails_alone(folder, corpus_of):
  store = slices.read_slice_store(folder, corpus_of([None, *TEXTS[1:]]))
  keys = store.get("d0")
  assert (keys.reason, keys.text_sha256, len(keys.spans)) == ("failed", "", 0)
  assert store.get("d2").reason == ""


def test_token_ids_must_be_decoded_first(folder, tmp_path):
  """The published slices are cut from texts that ids decode to."""
  path = tmp_path / "ids.jsonl"
  rows = [json.dumps({"ids": list(map(ord, text))}) for text in TEXTS]
  path.write_text("\n".join(rows))
  corpus = corpus_lib.open_corpus(path, ids_column="ids")
  with pytest.raises(ValueError, match="decode them first"):
    slices.read_slice_store(folder, corpus)
  decoded = corpus.decoded(lambda ids: "".join(map(chr, ids)))
  store = slices.read_slice_store(folder, decoded)
  assert store.get("ids.jsonl#0").spans.tolist() == [[0, 3], [4, 9]]


def test_code_in_a_slice_file_is_never_run(folder, corpus_of, tmp_path):
  """Cases J6."""
  witness = tmp_path / "witness"
  (folder / "slice_1.txt").write_text(f"open({str(witness)!r}, 'w')")
  with pytest.raises(ValueError, match="slice_1.txt, character 0"):
    slices.read_slice_store(folder, corpus_of(TEXTS))
  assert not witness.exists()


@pytest.mark.golden
def test_published_folder_reads_as_a_store(golden_dir, corpus_of):
  """Paper 3.3: 50 documents, of which number 9 has no key tokens."""
  corpus = corpus_of(["x" * 140_000] * 50)
  folder = golden_dir / "key_text" / "Qwen2-72B-Instruct"
  store = slices.read_slice_store(folder, corpus)
  assert np.sum([len(keys.spans) for keys in store]) == 2_705
  assert [k.doc_id for k in store if k.reason] == ["d9"]
  with pytest.raises(ValueError, match="ends behind the text"):
    slices.read_slice_store(folder, corpus_of(["x" * 100_000] * 50))
