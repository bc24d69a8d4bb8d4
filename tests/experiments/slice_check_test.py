"""Slices against texts that are theirs, and against all that nearly are."""

import dataclasses
import functools
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from support.command_line import ROOT
from tokenizers import decoders, models, pre_tokenizers, processors

from longctx_jax import testing
from longctx_jax.experiments import slice_check
from longctx_jax.key_tokens import slices
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.paper import spans
from longctx_jax.paper.windows import Windows
from longctx_jax.text import corpus as corpus_lib
from longctx_jax.text.tokenizer import TextTokenizer

FIRST = 4096 + 1024  # K + d
DOCUMENTS = 3


@functools.cache
def texts():
  return tuple(
    testing.synthetic_document(seed, num_words=4000)
    for seed in range(DOCUMENTS)
  )


@functools.cache
def backend(*, bos=False):
  """A byte-level BPE of a few characters a token."""
  tokenizer = tokenizers.Tokenizer(models.BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=600,
    special_tokens=["<bos>"],
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator(texts(), trainer)
  if bos:
    tokenizer.post_processor = processors.TemplateProcessing(
      single="<bos> $A",
      special_tokens=[("<bos>", tokenizer.token_to_id("<bos>"))],
    )
  return tokenizer


@pytest.fixture
def tokenizer():
  return TextTokenizer(backend(), name="evaluator")


@functools.cache
def offsets_of(text):
  """By the tokenizers library itself."""
  offsets = np.array(backend().encode(text).offsets)
  assert len(offsets) > FIRST + 300
  return offsets


@functools.cache
def key_spans(text):
  """Sixty key tokens and what touches them."""
  offsets = offsets_of(text)
  rng = np.random.default_rng(len(text))
  chosen = rng.choice(np.arange(FIRST, len(offsets)), 60, replace=False)
  found = spans.merge_adjacent(offsets[np.sort(chosen)])
  assert len(found) > 30
  return found


@pytest.fixture
def folder_of(tmp_path):
  def write(cut):
    folder = tmp_path / "slices"
    folder.mkdir(exist_ok=True)
    for i, each in enumerate(cut):
      spans.write_slices(folder / f"slice_{i}.txt", each)
    return folder

  return write


@pytest.fixture
def corpus_of(tmp_path):
  def write(texts, **kwargs):
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": f"d{i}", "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return corpus_lib.open_corpus(path, **kwargs)

  return write


@pytest.fixture
def folder(folder_of):
  return folder_of(map(key_spans, texts()))


def test_slices_fit_the_texts_that_they_were_cut_from(
  folder, corpus_of, tokenizer
):
  """Paper 3.2: starts and ends are token boundaries, none before K + d."""
  report = slice_check.check_slices(folder, corpus_of(texts()), tokenizer)
  assert report.problem == "" and report.shift == 0
  assert report.share() == 1.0
  for fit, text in zip(report.documents, texts(), strict=True):
    assert (fit.n_spans, fit.n_outside, fit.n_early, fit.misfit) == (
      len(key_spans(text)),
      0,
      0,
      "",
    )


@pytest.mark.parametrize("bos", ["<s>", "<s> "], ids=["bare", "spaced"])
def test_slices_of_texts_with_bos_are_recognised(
  folder_of, corpus_of, tokenizer, bos
):
  """Paper 3.2: "<s>" at the start moves everything; both ways."""
  moved = folder_of(key_spans(text) + len(bos) for text in texts())
  report = slice_check.check_slices(moved, corpus_of(texts()), tokenizer)
  assert report.share() < 0.6 and report.share(-len(bos)) == 1.0
  assert report.shift == -len(bos)
  assert f"Moved by -{len(bos)} characters, 100% of all edges" in report.problem
  assert "the slices were cut from texts that start with '<s>'" in (
    report.problem
  )

  folder = folder_of(map(key_spans, texts()))
  with_bos = corpus_of(bos + text for text in texts())
  report = slice_check.check_slices(folder, with_bos, tokenizer)
  assert report.shift == len(bos)
  assert f"Moved by +{len(bos)} characters" in report.problem
  assert "these are texts that start with '<s>'" in report.problem


def test_documents_in_another_order_are_named(folder, corpus_of, tokenizer):
  """Cases J6: files are tied to documents by their number alone."""
  first, second, third = texts()
  end = key_spans(first).max()
  padded = second + " and" * max(0, end - len(second))
  swapped = corpus_of([first, third, padded])
  report = slice_check.check_slices(folder, swapped, tokenizer)
  assert [bool(fit.misfit) for fit in report.documents] == [False, True, True]
  assert all(fit.share < 0.6 for fit in report.documents[1:])
  assert report.shift == 0
  assert report.problem.startswith(
    "the slices of 2 of 3 documents don't fit, 'd1' first"
  )
  shares = {fit.doc_id: fit.share for fit in report.documents}
  worst = min(shares, key=shares.get)
  assert report.worst.doc_id == worst
  assert f"the worst is {worst!r}, {shares[worst]:.0%} on" in report.problem
  assert "another order" in report.problem


def test_no_shift_is_made_up_where_none_fits(folder, corpus_of, tokenizer):
  others = corpus_of("and and and " + text for text in texts())
  report = slice_check.check_slices(folder, others, tokenizer)
  shares = {shift: report.share(shift) for shift in (0, 3, -3, 4, -4)}
  assert max(shares, key=shares.get) != 0
  assert report.shift == 0 and "Moved" not in report.problem


def test_starts_are_starts_and_ends_are_ends(folder_of, corpus_of):
  """Between words that leave their spaces out the two differ."""
  words = tokenizers.Tokenizer(
    models.WordLevel({"<unk>": 0, "ab": 1, "cd": 2, "ef": 3}, "<unk>")
  )
  words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  corpus = corpus_of(["ab cd ef"])
  for span, share in (((3, 5), 1.0), ((2, 5), 0.5), ((3, 6), 0.5), ((2, 6), 0)):
    report = slice_check.check_slices(
      folder_of([[span]]), corpus, TextTokenizer(words, name="words")
    )
    assert report.share() == share


def test_text_that_differs_from_its_middle_on_is_found(
  folder, corpus_of, tokenizer
):
  """Cases A9: clean-up drops characters here and there."""
  first, second, third = texts()
  middle = int(np.median(key_spans(second)))
  other = second[: middle - 50] + second[middle - 48 :]
  report = slice_check.check_slices(
    folder, corpus_of([first, other, third]), tokenizer
  )
  assert [fit.misfit for fit in report.documents] == ["", "off the tokens", ""]
  assert 0.4 < report.documents[1].share < 0.9
  assert "spaces cleaned up" in report.problem


def test_spans_behind_a_text_are_counted(folder, corpus_of, tokenizer):
  first, second, third = texts()
  end = int(key_spans(second)[-1, 1])
  cut = corpus_of([first, second[: end - 1], third])
  for report in (
    slice_check.check_slices(folder, cut, tokenizer),
    slice_check.check_slices(folder, cut),
  ):
    assert [fit.n_outside for fit in report.documents] == [0, 1, 0]
    assert "'d1' first (outside the text)" in report.problem
  whole = corpus_of([first, second[:end], third])
  assert slice_check.check_slices(folder, whole).problem == ""


@pytest.mark.parametrize("bos", [False, True])
def test_no_span_may_start_before_token_k_plus_d(folder_of, corpus_of, bos):
  """Paper 1.3; K + d counts what the evaluator reads, BOS too (1.5)."""
  (text, *_), tokenizer = texts(), TextTokenizer(backend(bos=bos), name="bos")
  first = FIRST - bos
  offsets = offsets_of(text)
  corpus = corpus_of([text])
  report = slice_check.check_slices(
    folder_of([offsets[first : first + 1]]), corpus, tokenizer
  )
  assert report.problem == ""
  report = slice_check.check_slices(
    folder_of([offsets[[first - 1, first]]]), corpus, tokenizer
  )
  assert report.documents[0].n_early == 1 and report.share() == 1.0
  assert "'d0' first (too early)" in report.problem


def test_in_a_short_text_every_span_is_too_early(
  folder_of, corpus_of, tokenizer
):
  text = texts()[0][:200]
  cut = spans.merge_adjacent(backend().encode(text).offsets[3:4])
  report = slice_check.check_slices(
    folder_of([cut]), corpus_of([text]), tokenizer
  )
  assert report.documents[0].misfit == "too early"


def test_without_a_tokenizer_only_lengths_are_checked(folder, corpus_of):
  report = slice_check.check_slices(folder, corpus_of(["x" * 10**6] * 3))
  assert (
    report.problem == "" and report.share() is None and report.worst is None
  )
  assert report.shift == 0
  assert not any(fit.on_boundary for fit in report.documents)
  (row,) = [
    line
    for line in slice_check.format_report(report).splitlines()
    if line.startswith("all")
  ]
  total = sum(len(key_spans(text)) for text in texts())
  assert row.split()[:5] == ["all", str(total), "0", "0", "-"]


def test_document_without_key_tokens_fits(folder_of, corpus_of, tokenizer):
  """Paper 3.1: an empty file; it has no share and is never the worst."""
  none = np.zeros((0, 2), int)
  folder = folder_of([key_spans(texts()[0]), none])
  corpus = corpus_of([*texts()[:1], "short"])
  report = slice_check.check_slices(folder, corpus, tokenizer)
  assert report.problem == ""
  assert report.documents[1].share is None
  assert report.worst.doc_id == "d0"
  (folder / "slice_1.txt").unlink()
  only = slice_check.check_slices(
    folder_of([none]), corpus_of(["short"]), tokenizer
  )
  assert only.problem == "" and only.share() is None


def test_store_and_folder_give_the_same_report(folder, corpus_of, tokenizer):
  corpus = corpus_of(texts())
  store = slices.read_slice_store(folder, corpus)
  assert isinstance(store, store_lib.KeyTokenStore)
  assert slice_check.check_slices(
    store, corpus, tokenizer
  ) == slice_check.check_slices(folder, corpus, tokenizer)


def test_store_brings_its_own_windows_and_protocol(folder_of, corpus_of):
  """In the strict protocol BOS counts not in K."""
  text = texts()[0]
  tokenizer = TextTokenizer(backend(bos=True), name="bos")
  corpus = corpus_of([text])
  store = slices.read_slice_store(
    folder_of([offsets_of(text)[[14, 20]]]), corpus
  )

  def n_early(**fields):
    manifest = dataclasses.replace(store.manifest, **fields)
    changed = dataclasses.replace(store, manifest=manifest)
    report = slice_check.check_slices(changed, corpus, tokenizer)
    return report.documents[0].n_early

  assert n_early(windows=Windows(10, 5)) == 0
  assert n_early(windows=Windows(10, 5), protocol="strict") == 1
  assert n_early(windows=Windows(10, 4), protocol="strict") == 0
  with pytest.raises(ValueError, match="detail=scores"):
    n_early(detail="scores")


def test_files_and_documents_come_in_equal_number(folder, corpus_of):
  """Cases J6."""
  with pytest.raises(FileNotFoundError, match="slice_3.txt is missing.* 4 doc"):
    slice_check.check_slices(folder, corpus_of([*texts(), "fourth"]))
  with pytest.raises(ValueError, match="slice_2.txt has no document.* has 2"):
    slice_check.check_slices(folder, corpus_of(texts()[:2]))
  (folder / "slice_0.txt").unlink()
  tail = corpus_of(texts(), row_range=(1, 3))
  assert slice_check.check_slices(folder, tail).problem == ""
  (folder / "slice_1.txt").write_text("[1, 2];poetry new")
  with pytest.raises(ValueError, match="slice_1.txt, character 7: 'poetry"):
    slice_check.check_slices(folder, tail)


def test_unreadable_document_is_a_misfit(folder, corpus_of, tokenizer):
  corpus = corpus_of([None, *texts()[1:]])
  report = slice_check.check_slices(folder, corpus, tokenizer)
  assert [fit.misfit for fit in report.documents] == ["unreadable", "", ""]
  assert "'d0' first (unreadable)" in report.problem


def test_token_ids_must_be_decoded_first(folder_of, tmp_path):
  (tmp_path / "ids.jsonl").write_text('{"ids": [1, 2]}')
  corpus = corpus_lib.open_corpus(tmp_path / "ids.jsonl", ids_column="ids")
  with pytest.raises(ValueError, match="holds token ids"):
    slice_check.check_slices(folder_of([[(0, 1)]]), corpus)


def test_table_has_a_row_per_document_and_one_for_all(
  folder, corpus_of, tokenizer
):
  first, _, third = texts()
  report = slice_check.check_slices(
    folder, corpus_of([first, "gone", third]), tokenizer
  )
  lines = slice_check.format_report(report).splitlines()
  assert lines[0].split() == (
    ["document", "slices", "outside", "early", "on", "tokens", "misfit"]
  )
  counts = [len(key_spans(text)) for text in texts()]
  assert [line.split() for line in lines[2:]] == [
    ["d0", str(counts[0]), "0", "0", "100.0%"],
    ["d1", *[str(counts[1])] * 3, "0.0%", "outside", "the", "text"],
    ["d2", str(counts[2]), "0", "0", "100.0%"],
    [
      *("all", str(sum(counts)), str(counts[1]), str(counts[1])),
      f"{(counts[0] + counts[2]) / sum(counts):.1%}",
    ],
  ]


def test_script_makes_the_set_and_ends_with_status_2_on_a_misfit(
  folder_of, tmp_path
):
  """Cases L1: offline, from local paths."""
  backend().save(str(tmp_path / "tokenizer.json"))
  ids = [backend().encode(text).ids for text in ("short", *texts())]
  pq.write_table(pa.table({"input_ids": ids}), tmp_path / "tokenized.parquet")
  folder = folder_of(map(key_spans, texts()))

  def script(*arguments):
    return subprocess.run(
      [sys.executable, ROOT / "scripts" / "data.py", *arguments],
      cwd=tmp_path,
      env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
      capture_output=True,
      text=True,
    )

  made = script(
    *("govreport", "--source", "tokenized.parquet", "--tokenizer", tmp_path),
    *("--output", "out.parquet", "--min_ids=4000", "--documents=3"),
  )
  assert made.returncode == 0, made.stderr
  assert "3 documents in out.parquet" in made.stdout
  assert "next: python scripts/data.py check_slices" in made.stdout
  (folder / "slice_1.txt").write_text("[1000000, 1000001]")
  checked = script(
    *("check_slices", "--slices", folder, "--data", "out.parquet"),
    *("--tokenizer", tmp_path),
  )
  assert checked.returncode == 2
  assert [line.split()[4:] for line in checked.stdout.splitlines()[2:5]] == [
    ["100.0%"],
    ["0.0%", "outside", "the", "text"],
    ["100.0%"],
  ]
  assert checked.stderr.splitlines()[-1].startswith(
    "error: the slices of 1 of 3 documents don't fit, 'govreport/2' first"
  )
