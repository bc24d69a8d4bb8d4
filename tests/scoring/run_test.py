"""Scoring a corpus: the same numbers from every format, and each once."""

import json

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import Killed, run
from support.tiny_runs import (
  BETA,
  FLAGS,
  D,
  K,
  count_loads,
  make_config,
  make_texts,
  passed,
  save_models,
  write_jsonl,
)

from longctx_jax import testing
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.runtime import files
from longctx_jax.runtime.shards import Shard
from longctx_jax.scoring import protocol, setup
from longctx_jax.scoring import run as run_lib
from longctx_jax.scoring import scorer as scorer_lib

TEXTS = make_texts()
ARRAYS = ("offsets", "long_log_probs", "short_log_probs", "key_mask", "spans")
FIELDS = (
  "doc_index", "text_sha256", "n_chars", "n_tokens", "n_tokens_full",
  "n_eligible", "reason", "truncated", "scores", "columns",
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  save_models(folder, ["m0"])
  return folder


@pytest.fixture
def config(tmp_path, models):
  """A config of TEXTS as JSON lines, scored with m0."""
  path = write_jsonl(tmp_path / "corpus.jsonl", TEXTS)
  return make_config(data__sources=(path,), evaluator=str(models / "m0"))


def assert_same_rows(first, second, *, fields=FIELDS):
  """Rows by doc_index, equal in every number and bit of an array."""
  first, second = list(first), list(second)
  assert len(first) == len(second) > 0
  for a, b in zip(first, second, strict=True):
    for name in fields:
      assert getattr(a, name) == getattr(b, name), name
    for name in ARRAYS:
      np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)


def test_a_text_has_the_same_numbers_from_every_format(
  tmp_path, config, models
):
  """Case B1: .txt files, JSON lines, a Parquet column, token ids."""
  expected = run_lib.score_corpus(config, workdir=tmp_path / "jsonl")
  assert all(row.reason == "" for row in expected)
  folder = tmp_path / "txt"
  folder.mkdir()
  for i, text in enumerate(TEXTS):
    (folder / f"{i}.txt").write_bytes(text.encode())
  tokenizer = testing.byte_tokenizer()
  ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
  path = tmp_path / "corpus.parquet"
  pq.write_table(pa.table({"name": [*"abcd"], "body": TEXTS, "ids": ids}), path)
  sources = {
    "txt": dict(data__sources=(str(folder),)),
    "parquet": dict(
      data__sources=(str(path),),
      data__text_column="body",
      data__id_column="name",
    ),
    "ids": dict(data__sources=(str(path),), data__ids_column="ids"),
    "ids of another": dict(
      data__sources=(str(path),),
      data__ids_column="ids",
      data__ids_tokenizer=str(models / "m0"),
    ),
  }  # fmt: skip
  names = {}
  for name, fields in sources.items():
    other = make_config(evaluator=config.evaluator, **fields)
    store = run_lib.score_corpus(other, workdir=tmp_path / f"{name} run")
    assert_same_rows(expected, store)
    names[name] = list(store.hashes)
  assert names["txt"] == [f"{i}.txt" for i in range(4)]
  assert names["parquet"] == [*"abcd"]
  assert names["ids"] == [f"corpus.parquet#{i}" for i in range(4)]


def test_every_document_that_has_no_keys_says_why(tmp_path, config, caplog):
  """Cases C2, C3, C4: counted by reason, nothing is fatal."""
  lines = [
    json.dumps({"id": name, "text": text})
    for name, text in [
      ("good", TEXTS[0]),
      ("empty", ""),
      ("one", "x"),
      ("short", "x" * (K + D)),
      ("null", None),
    ]
  ]
  path = tmp_path / "odd.jsonl"
  path.write_text("\n".join([*lines, "{not json"]) + "\n")
  config.data.sources = (str(path),)
  with caplog.at_level("INFO"):
    store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert [row.reason for row in store] == [
    "", "empty", "nothing_to_score", "too_short", "failed", "failed",
  ]  # fmt: skip
  assert (
    "1 empty, 2 failed, 1 nothing_to_score, 1 too_short, 1 with key tokens"
    in caplog.text
  )
  assert "'null': column 'text' is null" in caplog.text
  short = store.get("short")
  assert short.n_tokens == K + D - 1 and np.isfinite(short.long_log_probs).all()
  scored = short.long_log_probs[K - 1 :]
  np.testing.assert_array_equal(short.short_log_probs[K - 1 :], scored)
  for row in store:
    numbers = [value for value in row.scores.values() if value is not None]
    assert np.isfinite(numbers).all()


def test_ten_texts_without_keys_end_with_windows_that_fit(
  tmp_path, config, caplog
):
  """Case C3."""
  texts = [text[: 30 + i] for i, text in enumerate(make_texts(10))]
  config.data.sources = (write_jsonl(tmp_path / "short.jsonl", texts),)
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert {row.reason for row in store} == {"too_short"}
  ids = max(len(text.encode()) for text in texts)
  assert f"a document of {ids} ids has no key tokens" in caplog.text
  assert "short_len=8 and stride=4" in caplog.text


@pytest.mark.parametrize("policy", protocol.OVER_LENGTH)
def test_a_policy_for_long_documents_comes_before_any_pass(
  tmp_path, config, scorers, policy
):
  """Case B7; the denominators count what was read (case C5)."""
  texts = ["a" * 90, TEXTS[0]]
  config.data.sources = (write_jsonl(tmp_path / "long.jsonl", texts),)
  config.data.max_length = 100
  config.data.over_length = policy
  if policy == "error":
    with pytest.raises(
      ValueError, match="'d1': the document has .* limit is 100"
    ):
      run_lib.score_corpus(config, workdir=tmp_path / "w")
    assert not scorers and not (tmp_path / "w").exists()
    return
  short, long = run_lib.score_corpus(config, workdir=tmp_path / "w")
  full = len(TEXTS[0].encode()) - 1
  assert not short.truncated and long.n_tokens_full == full
  if policy == "skip":
    assert (long.reason, long.n_tokens, long.n_chars) == ("too_long", 0, 0)
    assert passed(scorers) == 89
  else:
    # The limit falls into a character of two bytes, which is cut whole.
    assert TEXTS[0][long.n_chars] == "ï" and long.n_tokens == 98
    assert long.truncated and long.reason == ""
    config.data.sources = (
      write_jsonl(tmp_path / "cut.jsonl", [TEXTS[0][: long.n_chars]]),
    )
    config.data.over_length = "error"
    (cut,) = run_lib.score_corpus(config, workdir=tmp_path / "cut")
    for name in ARRAYS:
      np.testing.assert_array_equal(getattr(cut, name), getattr(long, name))


def test_a_finished_document_is_not_scored_again(tmp_path, config, scorers):
  """Cases L3, L7: halves by row range end as one run does."""
  whole = run_lib.score_corpus(config, workdir=tmp_path / "whole")
  counts = [row.n_tokens for row in whole]
  for row_range, new in (((0, 2), 2), ((2, 9), 2), ((0, 0), 0)):
    config.data.row_range = row_range
    store = run_lib.score_corpus(config, workdir=tmp_path / "halves")
    skipped = len(store) - new
    assert passed(scorers[-1:]) == sum(counts[skipped : len(store)])
  assert_same_rows(whole, store)
  config.data.row_range = (2, 4)
  apart = run_lib.score_corpus(config, workdir=tmp_path / "second half")
  assert_same_rows(list(whole)[2:], apart)


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("longppl.short_len", 48, "short_len was 32 and is 48"),
    ("longppl.protocol", "strict", "protocol was 'paper' and is 'strict'"),
    ("data.max_length", 150, "max_length was 4096 and is 150"),
    ("data.over_length", "skip", "over_length was 'truncate_end' and"),
    ("scoring.detail", "keys", "detail was 'tokens' and is 'keys'"),
    ("scoring.dtype", "bfloat16", "dtype was 'float32' and is 'bfloat16'"),
    (
      "scoring.weights",
      "int8",
      "weight_format was 'safetensors F32' and is 'safetensors F32 as int8'",
    ),
  ],
)
def test_a_store_of_other_settings_is_refused_by_field(
  tmp_path, config, scorers, field, value, message
):
  config.data.row_range = (0, 1)
  run_lib.score_corpus(config, workdir=tmp_path)
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ValueError, match=message):
    run_lib.score_corpus(config, workdir=tmp_path)
  assert len(scorers) == 1


def test_overwrite_starts_anew(tmp_path, config, scorers):
  run_lib.score_corpus(config, workdir=tmp_path)
  config.longppl.alpha = 1.0
  config.scoring.detail = "keys"
  config.data.row_range = (0, 2)
  store = run_lib.score_corpus(config, workdir=tmp_path, overwrite=True)
  assert len(store) == 2 and passed(scorers[-1:]) > 0
  assert store.manifest.thresholds.alpha == 1.0


def test_a_changed_text_is_scored_again_and_no_other(
  tmp_path, config, scorers, caplog
):
  """Case J6; the store is that of a run over the new texts."""
  run_lib.score_corpus(config, workdir=tmp_path / "w")
  path = write_jsonl(tmp_path / "corpus.jsonl", [*TEXTS[:3], TEXTS[3] + "."])
  config.data.sources = (path,)
  with caplog.at_level("INFO"):
    store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert "1 documents have another text than the one scored ('d3' first)" in (
    caplog.text
  )
  assert passed(scorers[-1:]) == store.get("d3").n_tokens
  assert_same_rows(
    run_lib.score_corpus(config, workdir=tmp_path / "new"), store
  )
  rows = [pq.read_metadata(p).num_rows for p in parts_of(tmp_path / "w")]
  assert sum(rows) == 4


def test_documents_that_are_gone_are_pruned_on_request(tmp_path, config):
  run_lib.score_corpus(config, workdir=tmp_path)
  path = write_jsonl(tmp_path / "fewer.jsonl", TEXTS[:3])
  config.data.sources = (path,)
  assert len(run_lib.score_corpus(config, workdir=tmp_path)) == 4
  store = run_lib.score_corpus(config, workdir=tmp_path, prune=True)
  assert list(store.hashes) == ["d0", "d1", "d2"]
  config.data.row_range = (0, 2)
  with pytest.raises(ValueError, match="--prune with --row_range would remove"):
    run_lib.score_corpus(config, workdir=tmp_path, prune=True)


def spoil(monkeypatch, name, doc):
  """Lets one document's log-probs come out as NaN, in one place."""
  score = scorer_lib.Scorer.score

  def spoiled(self, jobs):
    for done in score(self, jobs):
      if isinstance(done, scorer_lib.Scores) and done.job.key == doc:
        getattr(done, name)[-1] = np.nan
      yield done

  monkeypatch.setattr(scorer_lib.Scorer, "score", spoiled)


@pytest.mark.parametrize("name", ["long", "short"])
def test_a_document_without_numbers_fails_alone_and_is_tried_again(
  tmp_path, config, scorers, monkeypatch, caplog, name
):
  """Of the short pass alone it looked like a document without key tokens."""
  whole = run_lib.score_corpus(config, workdir=tmp_path / "whole")
  with monkeypatch.context() as patch:
    # Long documents go first.
    order = sorted(range(4), key=lambda i: len(TEXTS[i]), reverse=True)
    spoil(patch, name, order.index(1))
    store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert [row.reason for row in store] == ["", "failed", "", ""]
  assert store.get("d1").offsets is None
  assert "document 'd1' failed" in caplog.text and "(NaN)" in caplog.text
  assert "1 of 4 documents failed (1 log-probs that are no" in caplog.text
  assert "'d1' first; the same command" in caplog.text
  again = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert passed(scorers[-1:]) == whole.get("d1").n_tokens
  assert_same_rows(whole, again)


def test_a_row_that_can_be_read_now_is_scored(tmp_path, config):
  path = tmp_path / "odd.jsonl"
  lines = [json.dumps({"id": f"d{i}", "text": TEXTS[i]}) for i in range(2)]
  path.write_text("\n".join([lines[0], '{"id": "d1", "text": null}']) + "\n")
  config.data.sources = (str(path),)
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert store.get("d1").reason == "failed"
  path.write_text("\n".join(lines) + "\n")
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert [row.reason for row in store] == ["", ""]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_run_keeps_what_it_finished(
  tmp_path, config, monkeypatch, error
):
  run_windows = scorer_lib.Scorer.score

  def interrupted(self, jobs):
    for number, done in enumerate(run_windows(self, jobs)):
      if number == 2:
        raise error
      yield done

  with monkeypatch.context() as patch, pytest.raises(error):
    patch.setattr(scorer_lib.Scorer, "score", interrupted)
    run_lib.score_corpus(config, workdir=tmp_path)
  assert len(store_lib.read_store(tmp_path)) == 2


def test_two_documents_of_one_id_are_found_before_a_model_loads(
  tmp_path, config, monkeypatch
):
  loaded = count_loads(monkeypatch)
  path = tmp_path / "twice.jsonl"
  rows = [{"id": f"d{i % 3}", "text": text} for i, text in enumerate(TEXTS)]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  config.data.sources = (str(path),)
  with pytest.raises(ValueError, match="two documents have the id 'd0'"):
    run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert not loaded


def test_documents_that_can_not_be_read_are_refused_before_a_model_loads(
  tmp_path, config, monkeypatch
):
  loaded = count_loads(monkeypatch)
  path = tmp_path / "odd.jsonl"
  path.write_text("{not json\n[1]\n")
  config.data.sources = (str(path),)
  with pytest.raises(ValueError, match="none of 2 documents can be read: '"):
    run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert not loaded


def test_a_run_in_which_nothing_could_be_scored_is_an_error(tmp_path, config):
  config.data.max_length, config.data.over_length = 100, "skip"
  with pytest.raises(ValueError, match="none of 4 .* scored: 4 too_long"):
    run_lib.score_corpus(config, workdir=tmp_path)
  config.data.sources = (write_jsonl(tmp_path / "e.jsonl", ["", ""]),)
  with pytest.raises(ValueError, match="none of 2 .* scored: 2 empty"):
    run_lib.score_corpus(config, workdir=tmp_path / "w")


@pytest.mark.parametrize("policy", ["truncate_end", "skip"])
def test_what_is_not_read_is_said_with_share_and_remedy(
  tmp_path, config, caplog, policy
):
  texts = ["a" * 90, *TEXTS[:3]]
  config.data.sources = (write_jsonl(tmp_path / "long.jsonl", texts),)
  config.data.max_length, config.data.over_length = 100, policy
  store = run_lib.score_corpus(config, workdir=tmp_path / "w")
  full = sum(len(text.encode()) - 1 for text in texts[1:])
  read = sum(row.n_tokens for row in list(store)[1:])
  share = f"{100 - 100 * read / full:.0f} % of them unread"
  expected = {
    "truncate_end": f"3 of 4 documents cut to 100 ids, {share}; --max_length",
    "skip": "3 of 4 documents have more than 100 ids and were skipped; --max_",
  }[policy]
  assert expected in caplog.text


def parts_of(workdir):
  return sorted((workdir / "key_tokens").glob("*.parquet"))


def test_shards_of_any_number_make_the_store_of_one_run(tmp_path, config):
  whole = run_lib.score_corpus(config, workdir=tmp_path / "whole")
  workdir = tmp_path / "w"
  run_lib.score_corpus(config, workdir=workdir, shard=Shard(2, 3))
  assert list(store_lib.read_store(workdir).hashes) == ["d2"]
  run_lib.score_corpus(config, workdir=workdir, shard=Shard(0, 3))
  # The rest by another number, which finds some of its documents done.
  run_lib.score_corpus(config, workdir=workdir, shard=Shard(1, 2))
  store = run_lib.score_corpus(config, workdir=workdir, shard=Shard(7, 8))
  assert_same_rows(whole, store)
  with pytest.raises(ValueError, match="--overwrite with --shard 0/2"):
    run_lib.score_corpus(
      config, workdir=workdir, shard=Shard(0, 2), overwrite=True
    )


def test_shards_side_by_side_do_not_meet_and_others_are_refused(
  tmp_path, config, scorers
):
  """Locks of another process are told apart by file, as these are."""
  folder = tmp_path / "key_tokens"
  with writer_lib.claimed(folder, Shard(0, 2)):
    folder.mkdir()
    run_lib.score_corpus(config, workdir=tmp_path, shard=Shard(1, 2))
    for other in (Shard(0, 2), Shard(1, 3), Shard(0, 1)):
      with pytest.raises(files.InUse, match="another process is scoring into"):
        run_lib.score_corpus(config, workdir=tmp_path, shard=other)
  with writer_lib.claimed(folder):
    for other in (Shard(0, 2), Shard(0, 1)):
      with pytest.raises(files.InUse, match="another process is scoring into"):
        run_lib.score_corpus(config, workdir=tmp_path, shard=other)
  assert len(scorers) == 1
  assert len(run_lib.score_corpus(config, workdir=tmp_path)) == 4


def test_overwrite_does_not_remove_what_came_after_its_start(
  tmp_path, config, monkeypatch
):
  """Two at once in a new workdir: loading a model takes minutes."""
  load_model = setup.load_model

  def load_late(*arguments):
    monkeypatch.setattr(setup, "load_model", load_model)
    run_lib.score_corpus(config, workdir=tmp_path)
    return load_model(*arguments)

  monkeypatch.setattr(setup, "load_model", load_late)
  with pytest.raises(files.InUse, match="since this one began: --overwrite"):
    run_lib.score_corpus(config, workdir=tmp_path, overwrite=True)
  assert len(store_lib.read_store(tmp_path)) == 4


def test_a_document_that_got_lost_is_missed_at_the_end(
  tmp_path, config, monkeypatch
):
  """As where another run's part was removed under this one."""
  write = writer_lib.StoreWriter.write

  def lose(self, rows):
    write(self, [row for row in rows if row.doc_id != "d2"])

  monkeypatch.setattr(writer_lib.StoreWriter, "write", lose)
  with pytest.raises(ValueError, match=r"1 of 4 documents are missing .*'d2'"):
    run_lib.score_corpus(config, workdir=tmp_path)


def test_other_thresholds_need_no_new_pass(tmp_path, config, scorers):
  loose = run_lib.score_corpus(config, workdir=tmp_path)
  config.longppl.alpha = 1.0
  strict = run_lib.score_corpus(config, workdir=tmp_path)
  assert passed(scorers[-1:]) == 0 and strict.manifest.thresholds.alpha == 1.0
  for a, b in zip(loose, strict, strict=True):
    lsd = a.long_log_probs - a.short_log_probs
    assert 0 < b.key_mask.sum() < a.key_mask.sum()
    np.testing.assert_array_equal(b.key_mask, lsd > 1)


def test_a_store_resumed_under_other_thresholds_lacks_nothing(tmp_path, config):
  """Its rows are those of a run in one go, scores that need the ids too."""
  whole = run_lib.score_corpus(config, workdir=tmp_path / "whole")
  config.data.row_range = (0, 2)
  run_lib.score_corpus(config, workdir=tmp_path / "resumed")
  config.data.row_range = (0, 0)
  config.longppl.alpha = 1.0
  run_lib.score_corpus(config, workdir=tmp_path / "resumed")
  resumed = store_lib.read_store(tmp_path / "resumed")
  assert resumed.manifest.thresholds == whole.manifest.thresholds
  for a, b in zip(whole, resumed, strict=True):
    assert a.scores == b.scores
    assert a.scores["n_mirror"] is not None


@pytest.mark.parametrize("detail", ["keys", "scores"])
def test_less_detail_keeps_scores_and_columns(tmp_path, config, detail):
  """Case L7: columns of the corpus pass through beside the scores."""
  write_jsonl(
    tmp_path / "corpus.jsonl", TEXTS, url=[*"wxyz"], n=[1, None, 3, 4]
  )
  config.data.columns = ("url", "n")
  full = run_lib.score_corpus(config, workdir=tmp_path / "tokens")
  config.scoring.detail = detail
  less = run_lib.score_corpus(config, workdir=tmp_path / detail)
  for a, b in zip(full, less, strict=True):
    assert a.scores == b.scores and a.columns == b.columns
    assert a.scores["n_key_tokens"] == a.key_mask.sum() > 0
    if detail == "keys":
      np.testing.assert_array_equal(b.offsets, a.offsets[a.key_mask])
      np.testing.assert_array_equal(b.spans, a.spans)
    else:
      assert b.offsets is b.long_log_probs is b.key_mask is None
  assert [row.columns["url"] for row in less] == [*"wxyz"]
  assert [row.columns["n"] for row in less] == [1, None, 3, 4]


def test_an_evaluator_without_numbers_is_no_evaluator_without_keys(
  tmp_path, config, caplog
):
  """Case A4's law: a fault may not look like `no_key_tokens`."""
  model = setup.load_model(config, config.evaluator)
  model.params["norm"]["scale"].set_value(
    jax.numpy.full_like(model.params["norm"]["scale"][...], np.nan)
  )
  with pytest.raises(ValueError, match="none of 4 .* scored: 4 failed"):
    run_lib.score_corpus(config, workdir=tmp_path, evaluator=model)
  assert "(NaN)" in caplog.text


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("evaluator", "", "no evaluator is named"),
    ("data.sources", (), "no data given"),
    ("longppl.stride", 33, "stride"),
    ("longppl.protocol", "papr", "protocol='papr' is not one of paper, strict"),
    ("data.over_length", "cut", "over_length='cut' is not one of"),
    (
      "scoring.detail",
      "all",
      "detail='all' is not one of tokens, keys, scores",
    ),
    ("data.text_column", "body", "no column 'body'; it has: id, text"),
    ("mesh.fsdp", 3, "does not cover"),
  ],
)
def test_settings_that_no_run_can_have_are_refused_first(
  tmp_path, config, scorers, field, value, message
):
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ValueError, match=message):
    run_lib.score_corpus(config, workdir=tmp_path / "w")
  assert not scorers and not (tmp_path / "w").exists()


def test_ids_without_their_tokenizer_are_refused(tmp_path, config):
  path = write_jsonl(tmp_path / "ids.jsonl", TEXTS, ids=[[1, 2]] * 4)
  config.data.sources, config.data.ids_column = (path,), "ids"
  assert next(iter(setup.open_corpus(config))).text
  config.evaluator = ""
  with pytest.raises(
    ValueError, match="'ids' needs the tokenizer .*: set ids_"
  ):
    setup.open_corpus(config)


def test_a_killed_run_ends_as_one_that_was_not(tmp_path, models):
  """Case L3: SIGKILL, the same command again; equal after sorting."""
  path = write_jsonl(tmp_path / "corpus.jsonl", make_texts(40))
  command = [
    "scripts/score.py", "--evaluator", models / "m0", "--data", path,
    "--config.scoring.flush_seconds=0", *FLAGS,
  ]  # fmt: skip
  killed, folder = tmp_path / "killed", tmp_path / "killed" / "key_tokens"
  whole, dead, again = run(
    [
      [*command, "--workdir", tmp_path / "whole"],
      Killed([*command, "--workdir", killed], folder / "part-*.parquet", 3),
      [*command, "--workdir", killed],
    ],
    cwd=tmp_path,
    home=tmp_path / "home",
  )
  assert (whole.status, dead.status, again.status) == (0, -9, 0), again.err
  assert 3 <= len(dead.files) < 40
  # What was there was kept, and only the rest was written.
  assert dead.files.items() <= {
    (str(path), path.stat().st_mtime_ns) for path in folder.glob("part-*")
  }
  assert "40 documents in" in again.out
  assert not list(folder.glob("*.tmp"))
  assert_same_rows(
    store_lib.read_store(folder),
    store_lib.read_store(tmp_path / "whole" / "key_tokens"),
  )


def test_the_thresholds_leave_tokens_on_both_sides(tmp_path, config):
  """The other tests speak of key tokens: there are some, and not all are."""
  for row in run_lib.score_corpus(config, workdir=tmp_path):
    assert 5 < row.key_mask.sum() < row.n_eligible / 2
    assert row.long_log_probs.min() > BETA
