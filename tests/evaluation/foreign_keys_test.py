"""Another engine's two passes as a store: equal, or an error that says why."""

import dataclasses
import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.checks import refuses
from support.tiny_runs import (
  D,
  K,
  make_config,
  make_texts,
  passed,
  save_models,
  share_passes,
  write_jsonl,
)

from longctx_jax import testing
from longctx_jax.evaluation import foreign_keys
from longctx_jax.evaluation import run as run_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.scoring import run as score
from longctx_jax.scoring import setup

TEXTS = [*make_texts(3), "", "a short one", "x"]

pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def made(tmp_path_factory, compiled):
  """Model m1, texts, and what another finds under both protocols.

  Under "strict" that has a BOS.
  """
  folder = tmp_path_factory.mktemp("made")
  save_models(folder, ["m1"])
  for protocol in ("paper", "strict"):
    source = testing.RandomSource(testing.tiny_config(), seed=0)
    source.save(folder / f"of-{protocol}", add_bos=protocol == "strict")
  sources = ["web"] * len(TEXTS)
  path = write_jsonl(folder / "corpus.jsonl", TEXTS, source=sources)
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    for protocol in ("paper", "strict"):
      config = make_config(
        data__sources=(path,),
        evaluator=str(folder / f"of-{protocol}"),
        longppl__protocol=protocol,
        data__columns=("source",),
      )
      score.score_corpus(config, workdir=folder / protocol)
  return folder


def read(made, protocol="paper"):
  return store_lib.read_store(made / protocol)


@pytest.fixture
def config(made):
  return make_config(
    data__sources=(str(made / "corpus.jsonl"),),
    evaluator="lab/gpt-oss",
    data__columns=("source",),
  )


def rows_of(made, config, protocol="paper"):
  """What an engine would write of each document that it can read."""
  model = setup.load_model(config, str(made / f"of-{protocol}"))
  texts = dict(zip(read(made).hashes, TEXTS, strict=True))
  for keys in read(made, protocol):
    if keys.offsets is None:
      continue
    text = texts[keys.doc_id]
    ids = model.tokenizer.encode(text, add_special_tokens=False).ids.tolist()
    if protocol == "strict":
      ids = [model.tokenizer.leading_bos, *ids]
    short = keys.short_log_probs.tolist()
    yield {
      "doc_id": keys.doc_id,
      "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
      "token_start": keys.offsets[:, 0].tolist(),
      "token_end": keys.offsets[:, 1].tolist(),
      "log_prob": keys.long_log_probs.tolist(),
      "short_log_prob": [None if np.isnan(x) else x for x in short],
      "ids": ids,
    }


@pytest.fixture
def write(tmp_path, made, config):
  """Writes the rows, those of the first document or a whole column changed."""

  def write_file(*, drop=(), change=lambda row: {}, protocol="paper", extra=()):
    rows = list(rows_of(made, config, protocol))
    rows[0] |= change(rows[0])
    rows += [{"doc_id": "x", "text_sha256": "", "token_start": [],
              "token_end": [], "log_prob": [], "short_log_prob": [],
              "ids": [1]} | {"doc_id": doc_id} for doc_id in extra]  # fmt: skip
    table = pa.Table.from_pylist(rows).drop_columns(list(drop))
    path = tmp_path / "log_probs.parquet"
    pq.write_table(table, path, row_group_size=2)
    return str(path)

  return write_file


def single(config):
  """The row of "x", a token that nothing predicts."""
  return hashlib.sha256(b"x").hexdigest()


def fields(keys):
  found = dataclasses.asdict(dataclasses.replace(keys, manifest=None))
  return {
    name: value.tolist() if isinstance(value, np.ndarray) else value
    for name, value in found.items()
    if name != "manifest"
  }


def same(a, b):
  assert a.keys() == b.keys()
  for name in a:
    assert str(a[name]) == str(b[name]), name  # NaN is NaN.
  return True


@pytest.mark.parametrize("protocol", ["paper", "strict"])
def test_the_store_is_that_of_the_native_run(
  tmp_path, made, config, protocol, scorers
):
  config.longppl.protocol = protocol
  rows = list(rows_of(made, config, protocol))
  known = {row["doc_id"] for row in rows}
  if protocol == "paper":
    rows.append(
      dict(doc_id="d5", text_sha256=single(config), token_start=[],
           token_end=[], log_prob=[], short_log_prob=[], ids=[88])
    )  # fmt: skip
  path = tmp_path / "log_probs.parquet"
  pq.write_table(pa.Table.from_pylist(rows), path)
  before = passed(scorers)
  store = foreign_keys.score_corpus(
    config, log_probs=str(path), workdir=tmp_path / "w"
  )
  native = read(made, protocol)
  assert store.hashes == native.hashes and {"d0", "d1", "d2"} <= known
  for ours, theirs in zip(native, store, strict=True):
    assert same(fields(ours), fields(theirs))
  assert sum(int(row.key_mask.sum()) for row in store if row.spans.size) > 3
  assert passed(scorers) == before
  manifest = store.manifest
  assert manifest.evaluator == "lab/gpt-oss"
  assert manifest.source == f"log_probs:{path}"
  assert manifest.checksum == hashlib.sha256(path.read_bytes()).hexdigest()
  assert manifest.tokenizer_fingerprint is manifest.weight_format is None
  assert manifest.bos == (256 if protocol == "strict" else None)
  # The same command finds all done; models are evaluated on it as on any.
  again = foreign_keys.score_corpus(
    config, log_probs=str(path), workdir=tmp_path / "w"
  )
  assert again.hashes == store.hashes
  config.data.columns = ()
  found = []
  for keys in (tmp_path / "w", made / protocol):
    config.update_from_flattened_dict(
      {"key_tokens": str(keys), "models": (str(made / "m1"),)}
    )
    where = tmp_path / f"eval-{keys.name}"
    found += run_lib.evaluate(config, workdir=where)
  assert found[0].longppl == found[1].longppl
  assert found[0].n_key_tokens == found[1].n_key_tokens > 3


def test_without_ids_all_but_the_copied_share_is_there(
  tmp_path, made, config, write
):
  config.data.row_range = (0, 3)
  store = foreign_keys.score_corpus(
    config, log_probs=write(drop=["ids"]), workdir=tmp_path / "w"
  )
  for ours, theirs in zip(read(made), store, strict=False):
    expected = {**ours.scores, "copied_share": None}
    assert theirs.scores == expected and theirs.scores["n_mirror"] is not None
    np.testing.assert_array_equal(ours.key_mask, theirs.key_mask)


def test_what_the_engine_did_not_read_is_said(tmp_path, config, write):
  def cut(row):
    return {
      name: value[:150]
      for name, value in row.items()
      if isinstance(value, list) and name != "ids"
    } | {"ids": row["ids"][:151]}

  config.data.row_range = (0, 1)
  (keys,) = foreign_keys.score_corpus(
    config, log_probs=write(change=cut), workdir=tmp_path / "w"
  )
  assert keys.truncated and keys.n_tokens == 150
  assert keys.n_chars == keys.offsets[-1, 1] < len(TEXTS[0])
  assert keys.n_tokens < keys.n_tokens_full <= len(TEXTS[0].encode())


def swapped(row, name, at, value):
  values = list(row[name])
  values[at] = value
  return {name: values}


FIRST, SECOND = K - 1, K + D - 1
FAULTS = {
  "another text": (
    lambda row: {"text_sha256": "0" * 64},
    "'d0': the log-probs are of another text .text_sha256 0000",
  ),
  "lengths": (
    lambda row: {"token_end": row["token_end"][1:]},
    "token_start and .* token_end",
  ),
  "short lengths": (
    lambda row: {"short_log_prob": row["short_log_prob"][1:]},
    "short_log_prob and .* log_prob; there must be one of each",
  ),
  "ids": (lambda row: {"ids": row["ids"][1:]}, "ids and .* log-probs"),
  "offsets": (
    lambda row: swapped(row, "token_end", -1, 10**4),
    "unordered or outside the text",
  ),
  "a later start": (
    lambda row: {"token_start": [300] * len(row["token_start"])},
    "unordered or outside|begin at character",
  ),
  "no log-prob": (
    lambda row: swapped(row, "log_prob", 3, 0.5),
    "0.5 at target",
  ),
  "no short log-prob": (
    lambda row: swapped(row, "short_log_prob", SECOND, 0.5),
    "short_log_prob 0.5 at target 47",
  ),
  "a hole": (
    lambda row: swapped(row, "short_log_prob", SECOND, None),
    "target 47 lacks its short_log_prob",
  ),
  "too early": (
    lambda row: swapped(row, "short_log_prob", FIRST - 1, -1.0),
    "target 30 has a short_log_prob; with short_len=32, stride=16 .* from 31",
  ),
  "the first window": (
    lambda row: swapped(row, "short_log_prob", FIRST, -1.25),
    "target 31 lies in the first window",
  ),
  "a stride too long": (
    lambda row: {
      "short_log_prob": row["short_log_prob"][:SECOND]
      + row["log_prob"][SECOND : SECOND + D]
      + row["short_log_prob"][SECOND + D :]
    },
    "targets 47 to 63 have the same value in both passes",
  ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_right_is_refused_before_the_store_is_made(
  tmp_path, config, write, fault
):
  change, message = FAULTS[fault]
  config.data.row_range = (0, 3)
  path = write(change=change)
  with refuses(message):
    foreign_keys.score_corpus(config, log_probs=path, workdir=tmp_path / "w")
  assert not (tmp_path / "w").exists()


def test_files_that_no_store_can_be_made_of(tmp_path, config, write):
  def run(path, **changes):
    for name, value in changes.items():
      config[name.partition("__")[0]][name.partition("__")[2]] = value
    foreign_keys.score_corpus(config, log_probs=path, workdir=tmp_path / "w")

  for column in ("text_sha256", "short_log_prob", "token_end"):
    with refuses(f"missing columns {column}"):
      run(write(drop=[column]))
  with refuses("document 'd0' twice"):
    run(write(extra=["d0"]))
  with refuses("no row for document 'd5'"):
    run(write())
  with refuses("'strict' needs the column ids"):
    run(write(drop=["ids"]), longppl__protocol="strict")
  with refuses("chunk_len=64 with log-probs from elsewhere"):
    run(write(), data__chunk_len=64)
  config.data.chunk_len = 0
  config.evaluator = ""
  with refuses("--evaluator names the model"):
    run(write())


def test_another_file_is_another_evaluator(tmp_path, config, write):
  config.data.row_range = (0, 3)
  options = dict(workdir=tmp_path / "w")
  foreign_keys.score_corpus(config, log_probs=write(), **options)
  path = write(change=lambda row: swapped(row, "log_prob", 0, -1.0))
  with refuses("other settings.*checksum was"):
    foreign_keys.score_corpus(config, log_probs=path, **options)
