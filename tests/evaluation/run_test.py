"""Evaluating models on stored key tokens: which numbers, and of which model."""

import dataclasses
import errno
import json
import math
import os
import shutil

import ml_dtypes
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from support import definition, manifests
from support.command_line import Killed, run
from support.tiny_runs import (
  ALPHA,
  BETA,
  FLAGS,
  count_loads,
  make_config,
  make_texts,
  passed,
  save_models,
  share_passes,
  write_jsonl,
)

from longctx_jax import longppl, testing
from longctx_jax.evaluation import files
from longctx_jax.evaluation import foreign as foreign_lib
from longctx_jax.evaluation import run as run_lib
from longctx_jax.key_tokens import store
from longctx_jax.report import comparison
from longctx_jax.scoring import run as score
from longctx_jax.scoring import setup
from longctx_jax.text import corpus as corpus_lib

TEXTS = make_texts()
# Of the run, not of the model: a repeated run may take other ones.
OF_THE_RUN = {
  "seconds", "tokens_per_second", "padding_share", "n_reused", "made",
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("scorers")


@pytest.fixture(scope="module")
def made(tmp_path_factory, compiled):
  """A folder with m0 to m2, corpus.jsonl and, under keys/, its key tokens."""
  folder = tmp_path_factory.mktemp("made")
  save_models(folder, ["m0", "m1", "m2"])
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    path = write_jsonl(folder / "corpus.jsonl", TEXTS)
    config = make_config(data__sources=(path,), evaluator=str(folder / "m0"))
    score.score_corpus(config, workdir=folder / "keys")
  return folder


@pytest.fixture
def config(made):
  return make_config(
    data__sources=(str(made / "corpus.jsonl"),),
    key_tokens=str(made / "keys"),
    models=(str(made / "m1"),),
  )


def open_store(made):
  return store.read_store(made / "keys" / "key_tokens")


def numbers(fields):
  """The fields that belong to the model and not to the run."""
  return {n: v for n, v in fields.items() if n not in OF_THE_RUN}


def read_strict(path):
  """JSON without NaN and Infinity."""

  def refuse(constant):
    raise AssertionError(f"{path} holds {constant}")

  return json.loads(path.read_text(), parse_constant=refuse)


def test_longppl_and_ppl_are_those_of_the_definition(tmp_path, made, config):
  """An oracle in float64: no windows plan, no batches, one byte a token."""
  (result,) = run_lib.evaluate(config, workdir=tmp_path)
  evaluator, model = (testing.tiny_model(seed=seed) for seed in (0, 1))
  key_nll, n_keys, means, ids_of = 0.0, 0, [], []
  for text in TEXTS:
    ids = np.array(testing.byte_tokenizer().encode(text).ids, np.int32)
    long = definition.log_probs(evaluator, ids)
    short = definition.short_log_probs(
      evaluator, ids, short_len=config.longppl.short_len,
      stride=config.longppl.stride,
    )  # fmt: skip
    nll = -definition.log_probs(model, ids)
    key = (long - short > ALPHA) & (long > BETA)
    # Both read the same bytes: a character is key iff all its bytes are in one
    # span, and a byte alone covers the whole character.
    chars = np.array([i for i, c in enumerate(text) for _ in c.encode()])[1:]
    key = np.isin(chars, chars[key])
    key_nll += nll[key].sum()
    n_keys += key.sum()
    means.append(nll.mean())
    ids_of.append(len(ids))
  assert result.n_key_tokens == n_keys
  assert result.longppl == pytest.approx(math.exp(key_nll / n_keys), rel=1e-5)
  ppl = math.exp(np.average(means, weights=ids_of))
  assert result.ppl == pytest.approx(ppl, rel=1e-5)
  assert result.key_nll_sum_nats == pytest.approx(key_nll, rel=1e-5)
  assert result.n_tokens == sum(ids_of) - len(TEXTS)
  assert result.n_documents == result.n_documents_eligible == len(TEXTS)


def test_one_failed_model_is_a_row_and_the_others_go_on(tmp_path, made, config):
  broken = tmp_path / "broken"
  shutil.copytree(made / "m1", broken)
  (broken / "model.safetensors").unlink()
  config.models = tuple(
    str(path) for path in (made / "m1", broken, made / "none", made / "m2")
  )
  found = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert [r.name for r in found] == ["m1", "broken", "none", "m2"]
  assert [r.longppl is None for r in found] == [False, True, True, False]
  for result in found[1:3]:
    assert result.reason.startswith("failed: FileNotFoundError: ")
    assert result.name in result.reason
  assert found[0].ppl != found[3].ppl
  loaded = files.load_results(tmp_path / "w")
  assert {r.name for r in loaded} == {r.name for r in found}
  for fmt in ("text", "markdown", "csv", "latex"):
    table = comparison.compare_table(loaded, fmt=fmt, baseline="m1")
    assert "m2" in table and "failed: FileNotFoundError" in table


def test_a_full_disk_is_no_failure_of_the_model(
  tmp_path, made, config, monkeypatch
):
  """It ends the run: the others have no space either."""

  def full(*args, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(files, "open_ledger", full)
  with pytest.raises(OSError, match="No space left"):
    run_lib.evaluate(config, workdir=tmp_path / "w")
  assert not list(tmp_path.glob("w/results/*"))


def test_a_failure_takes_nobodys_results(tmp_path, made, config):
  copied = tmp_path / "m1"
  shutil.copytree(made / "m1", copied)
  config.models = (str(copied),)
  (first,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  run_lib.check_finished([first])
  (copied / "model.safetensors").unlink()
  (second,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert second.reason.startswith("failed: ")
  (kept,) = files.load_results(tmp_path / "w")
  assert kept.ppl == first.ppl
  with pytest.raises(ValueError, match="1 of 2 models failed: m1$"):
    run_lib.check_finished([first, second])


def test_files_hold_finite_numbers_that_agree_with_each_other(
  tmp_path, made, config
):
  (result,) = run_lib.evaluate(config, workdir=tmp_path)
  written = read_strict(tmp_path / "results" / "m1.json")
  assert written == json.loads(json.dumps(result.to_json()))
  assert written["model"]["name"] == str(made / "m1")
  assert written["keys"] == open_store(made).manifest.to_json()
  assert (written["alpha"], written["beta"]) == (ALPHA, BETA)
  assert written["seconds"] > 0 and written["tokens_per_second"] > 0
  (loaded,) = files.load_results(tmp_path)
  assert loaded == result
  rows = [document.to_row() for document in loaded.documents]
  assert [row["doc_id"] for row in rows] == ["d0", "d1", "d2", "d3"]
  for total, column in (
    ("n_key_tokens", "n_key_tokens"),
    ("n_key_regions", "n_key_regions"),
    ("n_tokens", "n_tokens"),
    ("n_eligible", "n_eligible"),
    ("nll_sum_nats", "nll_sum"),
    ("key_nll_sum_nats", "key_nll_sum"),
  ):
    found = sum(row[column] for row in rows)
    assert written[total] == pytest.approx(found, rel=1e-12)
  bits = written["nll_sum_nats"] / written["n_bytes"] / math.log(2)
  assert written["bits_per_byte"] == pytest.approx(bits, rel=1e-12)


@pytest.mark.parametrize(
  ("texts", "message"),
  [
    (TEXTS[:3], r"1 documents \('d3'\) in the store but not in the corpus"),
    ([*TEXTS, "more"], r"1 documents \('d4'\) in the corpus but not in the"),
    ([TEXTS[0] + ".", *TEXTS[1:]], r"\('d0'\) with another text than the one"),
    (TEXTS[::-1], r"4 documents .* with another text"),
  ],
)
def test_key_tokens_of_other_documents_are_refused_before_any_model(
  tmp_path, config, monkeypatch, texts, message
):
  """Case J6."""
  loaded = count_loads(monkeypatch)
  config.data.sources = (write_jsonl(tmp_path / "other.jsonl", texts),)
  with pytest.raises(ValueError, match=message):
    run_lib.evaluate(config, workdir=tmp_path / "w")
  assert not loaded and not (tmp_path / "w").exists()


def test_documents_match_by_id_whatever_their_order(tmp_path, made, config):
  expected = run_lib.evaluate(config, workdir=tmp_path / "in order")
  path = tmp_path / "mixed.jsonl"
  lines = (made / "corpus.jsonl").read_text().splitlines(keepends=True)
  path.write_text("".join(lines[::-1]))
  config.data.sources = (str(path),)
  found = run_lib.evaluate(config, workdir=tmp_path / "mixed")
  assert numbers(found[0].to_json()) == numbers(expected[0].to_json())


def test_texts_are_hashed_once_however_many_models(
  tmp_path, made, config, monkeypatch
):
  hashed, digest = [], corpus_lib.text_sha256

  def counted(text):
    hashed.append(text)
    return digest(text)

  monkeypatch.setattr(corpus_lib, "text_sha256", counted)
  config.models = (str(made / "m1"), str(made / "m2"))
  run_lib.evaluate(config, workdir=tmp_path)
  assert hashed == TEXTS


@pytest.mark.parametrize(
  ("named", "message"),
  [
    ({"short_len": 48}, "short_len is 32 there and 48 here"),
    ({"protocol": "strict"}, "protocol is 'paper' there and 'strict' here"),
    ({"evaluator": "other"}, "evaluator is '.*m0' there and 'other' here"),
  ],
)
def test_what_the_user_named_must_be_that_of_the_store(
  tmp_path, config, monkeypatch, named, message
):
  """Case J6: K and the evaluator, where they are named."""
  loaded = count_loads(monkeypatch)
  with pytest.raises(ValueError, match=message):
    run_lib.evaluate(config, workdir=tmp_path, named=named)
  assert not loaded


def test_thresholds_are_swept_without_the_evaluator(
  tmp_path, made, config, monkeypatch
):
  loaded = count_loads(monkeypatch)
  counts = []
  for alpha in (0.25, ALPHA, 1.0, 50.0):
    config.longppl.alpha = alpha
    (result,) = run_lib.evaluate(config, workdir=tmp_path / f"a{alpha}")
    counts.append(result.n_key_tokens)
    assert result.alpha == result.keys["alpha"] == alpha
  assert counts[0] > counts[1] > counts[2] > counts[3] == 0
  assert result.null_reasons == {"no_key_tokens": 4}
  assert result.longppl is None and result.ppl is not None
  assert loaded == [str(made / "m1")] * 4
  config.longppl.alpha = 1.0
  config.evaluator, config.key_tokens = str(made / "m0"), ""
  (anew,) = run_lib.evaluate(config, workdir=tmp_path / "anew")
  assert anew.n_key_tokens == counts[2]


def test_slice_files_give_what_the_store_gives(tmp_path, made, config):
  """The reference's slices carry no thresholds but the paper's: see J6."""
  (expected,) = run_lib.evaluate(config, workdir=tmp_path / "store")
  folder = tmp_path / "judge"
  folder.mkdir()
  for row in open_store(made):
    row.to_slices(folder / f"slice_{row.doc_index}.txt")
  config.key_tokens = f"slices:{folder}"
  with pytest.raises(
    ValueError, match=r"alpha=2.0, beta=-2.0.*\(slice files\)"
  ):
    run_lib.evaluate(config, workdir=tmp_path / "w")
  config.longppl.update(alpha=2.0, beta=-2.0)
  (result,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  for name in ("longppl", "ppl", "n_key_tokens", "n_key_regions", "n_tokens"):
    assert getattr(result, name) == getattr(expected, name)
  assert result.keys["evaluator"] == "judge"
  (folder / "slice_2.txt").write_text("[1, 2];__import__('os').getcwd()")
  with pytest.raises(ValueError, match=r"slice_2\.txt"):
    run_lib.evaluate(config, workdir=tmp_path / "junk")


def test_the_rows_per_token_sum_to_the_result(tmp_path, config):
  """Case L4."""
  config.eval.per_token = True
  (result,) = run_lib.evaluate(config, workdir=tmp_path)
  table = pq.read_table(tmp_path / "tokens" / "m1")
  assert table.column_names == [
    "doc_id", "position", "token_start", "token_end", "nll_long", "nll_short",
    "key",
  ]  # fmt: skip
  rows = table.to_pydict()
  nll, key = np.array(rows["nll_long"]), np.array(rows["key"])
  assert len(nll) == result.n_tokens and key.sum() == result.n_key_tokens
  assert nll.sum() == pytest.approx(result.nll_sum_nats, abs=1e-6)
  assert nll[key].sum() == pytest.approx(result.key_nll_sum_nats, abs=1e-6)
  longppl = math.exp(nll[key].mean())
  assert longppl == pytest.approx(result.longppl, rel=1e-6)


def write_log_probs(path, workdir):
  """The rows per token of m1 as another engine's file."""
  rows = []
  for part in sorted((workdir / "tokens" / "m1").iterdir()):
    table = pq.read_table(part).to_pydict()
    rows.append(
      {
        "doc_id": table["doc_id"][0],
        "token_start": table["token_start"],
        "token_end": table["token_end"],
        "log_prob": [-value for value in table["nll_long"]],
      }
    )
  pq.write_table(pa.Table.from_pylist(rows), path)
  return rows


def test_sums_from_the_devices_are_those_of_all_log_probs(tmp_path, config):
  """In all that a result says, also of each document and key region."""
  found = []
  for sums_only in (False, True):
    config.eval.sums_only = sums_only
    workdir = tmp_path / str(sums_only)
    run_lib.evaluate(config, workdir=workdir)
    (result,) = files.load_results(workdir)
    assert result.sums_only == sums_only
    found.append(result)
  host, device = found
  assert host.n_key_tokens and host.documents[0].shared_gap_sum
  for one, other in (
    (host, device),
    *zip(host.documents, device.documents, strict=True),
  ):
    fields = vars(other)
    for name, value in vars(one).items():
      if name not in OF_THE_RUN | {"documents", "sums_only"}:
        is_number = isinstance(value, float | tuple) and name != "warnings"
        expected = pytest.approx(value, rel=1e-6) if is_number else value
        assert fields[name] == expected, name


def test_sums_alone_leave_no_rows_to_write(tmp_path, config):
  config.eval.update(sums_only=True, per_token=True)
  with pytest.raises(ValueError, match="sums_only and per_token"):
    run_lib.evaluate(config, workdir=tmp_path)
  assert not list(tmp_path.iterdir())


def test_log_probs_from_elsewhere_give_the_models_own_result(tmp_path, config):
  config.eval.per_token = True
  (expected,) = run_lib.evaluate(config, workdir=tmp_path / "own")
  path = tmp_path / "log_probs.parquet"
  rows = write_log_probs(path, tmp_path / "own")
  config.models = ()
  foreign = foreign_lib.open_log_probs(path, "lab/engine")
  (result,) = run_lib.evaluate(
    config, workdir=tmp_path / "w", foreign=[foreign]
  )
  assert (result.name, result.model) == (
    "lab--engine",
    {"log_probs": str(path), "checksum": foreign.sha256()},
  )  # fmt: skip
  theirs, own = result.to_json(), expected.to_json()
  of_the_engine = {
    "name", "model", "attention", "rope_tables", "max_length", "over_length",
  } | OF_THE_RUN  # fmt: skip
  for name in own.keys() - of_the_engine:
    assert theirs[name] == own[name], name
  loaded = files.load_results(tmp_path / "w")
  assert "lab--engine" in comparison.compare_table(loaded, fmt="text")
  # A file that does not fit is a row with its reason.
  rows[2]["log_prob"][5] = 0.5
  pq.write_table(pa.Table.from_pylist(rows), path)
  (result,) = run_lib.evaluate(
    config, workdir=tmp_path / "w", foreign=[foreign]
  )
  assert "'d2': log-prob 0.5 at target 5" in result.reason


def test_a_model_never_gets_the_numbers_of_another(
  tmp_path, made, config, scorers
):
  """Case J5: the same name, in the same workdir, with other weights."""
  path = tmp_path / "models" / "m1"
  shutil.copytree(made / "m1", path)
  config.models = (str(path),)
  (first,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  shutil.copy(made / "m2" / "model.safetensors", path)
  with pytest.raises(ValueError, match=r"model\.checksum was '.*' and is '"):
    run_lib.evaluate(config, workdir=tmp_path / "w")
  kept = read_strict(tmp_path / "w" / "results" / "m1.json")
  assert kept == json.loads(json.dumps(first.to_json()))
  (second,) = run_lib.evaluate(config, workdir=tmp_path / "w", overwrite=True)
  assert passed(scorers[-1:]) == first.n_tokens
  config.models = (str(made / "m2"),)
  (expected,) = run_lib.evaluate(config, workdir=tmp_path / "apart")
  assert second.longppl == expected.longppl != first.longppl


def test_the_evaluators_own_pass_is_reused_for_its_weights_alone(
  tmp_path, made, config, scorers
):
  copy = tmp_path / "copy"
  shutil.copytree(made / "m0", copy)
  config.models = (str(made / "m0"), str(made / "m1"), str(copy))
  own, other, again = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert [passed([scorer]) for scorer in scorers] == [0, own.n_tokens, 0]
  assert [r.self_evaluated for r in (own, other, again)] == [1, 0, 1]
  assert (own.n_reused, own.tokens_per_second) == (len(TEXTS), None)
  assert own.longppl == again.longppl != other.longppl
  # Without the stored log-probs the pass runs, and says the same.
  texts = dict(zip(["d0", "d1", "d2", "d3"], TEXTS, strict=True))
  rows = [
    dataclasses.replace(
      row, manifest=manifests.changed(row.manifest, attention="another")
    )
    for row in open_store(made)
  ]
  result = longppl.compute_longppl(
    [texts[row.doc_id] for row in rows],
    setup.load_model(config, str(made / "m0")),
    rows,
  )
  assert passed(scorers[-1:]) == own.n_tokens
  assert result.longppl == pytest.approx(own.longppl, rel=1e-6)


def test_weights_in_int8_are_another_model_of_the_same_checkpoint(
  tmp_path, made, config, scorers
):
  config.models = (str(made / "m0"), str(made / "m1"))
  config.scoring.weights = "int8"
  own, other = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert [r.name for r in (own, other)] == ["m0-int8", "m1-int8"]
  # The evaluator's own weights, by construction; not its own log-probs.
  assert [r.self_evaluated for r in (own, other)] == [True, False]
  assert own.n_reused == 0 and passed(scorers[:1]) == own.n_tokens
  said = "the kernels of this model are rounded to int8"
  assert said in own.warnings and said in other.warnings
  assert other.model["weight_format"] == "safetensors F32 as int8"
  # Beside the rows of the stored weights, which are near and not the same.
  config.scoring.weights = ""
  plain = run_lib.evaluate(config, workdir=tmp_path / "w")[1]
  assert (
    plain.name == "m1" and plain.model["checksum"] == (other.model["checksum"])
  )
  assert plain.longppl == pytest.approx(other.longppl, rel=0.05)
  assert plain.longppl != other.longppl and said not in plain.warnings
  assert len(files.load_results(tmp_path / "w")) == 4
  # Under one name they would take each other's place.
  config.models = (f"m1-int8={made / 'm1'}",)
  with pytest.raises(ValueError, match="weight_format was .* as int8' and is"):
    run_lib.evaluate(config, workdir=tmp_path / "w")
  # The evaluator's rounding is said of every model.
  config.update_from_flattened_dict(
    {"key_tokens": "", "evaluator": str(made / "m0"), "scoring.weights": "int8"}
  )
  (found,) = run_lib.evaluate(config, workdir=tmp_path / "keys_too")
  assert "the kernels of the evaluator are rounded to int8" in found.warnings


def test_a_result_says_in_which_dtype_it_was_made(tmp_path, made, config):
  """In its file, and in every table; float32 goes without saying."""
  path, said = str(made / "m1"), "this model ran in bfloat16"
  config.models = (f"exact={path}",)
  (exact,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert said not in exact.warnings and exact.model["dtype"] == "float32"
  config.models, config.scoring.dtype = (f"half={path}",), "bfloat16"
  (half,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert said in half.warnings and half.model["dtype"] == "bfloat16"
  assert half.ppl == pytest.approx(exact.ppl, rel=0.05)
  assert half.ppl != exact.ppl
  stored = files.load_results(tmp_path / "w")
  for fmt in ("text", "markdown", "csv"):
    table = comparison.compare_table(stored, fmt=fmt)
    assert table.count(said) == 1
  assert f"half: {said}" in comparison.compare_table(stored, fmt="text")
  config.update_from_flattened_dict(
    {"key_tokens": "", "evaluator": str(made / "m0")}
  )
  (found,) = run_lib.evaluate(config, workdir=tmp_path / "keys_too")
  assert "the evaluator ran in bfloat16" in found.warnings


def rounded(weights, form):
  """Weights as a bf16 export holds them, or as 8 bits a weight do."""
  if form == "bf16":
    return weights.astype(ml_dtypes.bfloat16)
  scale = np.maximum(np.abs(weights).max(-1, keepdims=True), 1e-9) / 127
  return (np.round(weights / scale) * scale).astype(weights.dtype)


@pytest.mark.parametrize("form", ["bf16", "8 bits"])
def test_the_evaluators_weights_in_another_form_are_known(
  tmp_path, made, config, form
):
  """Another checksum and dtype: near-equal log-probs tell."""
  path = tmp_path / "export"
  shutil.copytree(made / "m0", path)
  file = path / "model.safetensors"
  tensors = safetensors.numpy.load_file(file)
  safetensors.numpy.save_file(
    {name: rounded(tensor, form) for name, tensor in tensors.items()}, file
  )
  config.models = (f"export={path}", str(made / "m1"))
  own, other = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert own.model["checksum"] != own.keys["checksum"]
  assert [r.self_evaluated for r in (own, other)] == [True, False]
  assert "bounded by construction" in own.warnings[-1]
  # The ledger holds what tells, so that a finished run says it again.
  (again, _) = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert again.self_evaluated and again.warnings == own.warnings
  rows = comparison.comparison_rows([own, other], force=True)
  assert [row.result.name for row in rows] == ["m1", "export"]


def test_the_evaluators_log_probs_from_elsewhere_are_known(
  tmp_path, made, config
):
  path = tmp_path / "engine.parquet"
  rows = [
    {
      "doc_id": keys.doc_id,
      "token_start": keys.offsets[:, 0],
      "token_end": keys.offsets[:, 1],
      "log_prob": keys.long_log_probs * 1.01,
    }
    for keys in open_store(made)
  ]
  pq.write_table(pa.Table.from_pylist(rows), path)
  config.models = ()
  (result,) = run_lib.evaluate(
    config,
    workdir=tmp_path / "w",
    foreign=[foreign_lib.open_log_probs(path, "engine")],
  )
  assert result.self_evaluated
  assert "to within 1.0%" in result.warnings[-1]


@pytest.mark.parametrize(
  ("field", "value", "message"),
  [
    ("longppl.alpha", 1.0, r"keys\.alpha was 0\.5 and is 1\.0"),
    ("data.max_length", 150, "max_length was 4096 and is 150"),
    (
      "data.over_length",
      "skip",
      "over_length was 'truncate_end' and is 'skip'",
    ),
    ("eval.per_token", True, "per_token was False and is True"),
  ],
)
def test_a_workdir_of_other_settings_is_refused_by_field(
  tmp_path, config, scorers, field, value, message
):
  (first,) = run_lib.evaluate(config, workdir=tmp_path)
  config.update_from_flattened_dict({field: value})
  with pytest.raises(ValueError, match=message):
    run_lib.evaluate(config, workdir=tmp_path)
  assert passed(scorers[1:]) == 0
  kept = read_strict(tmp_path / "results" / "m1.json")
  assert kept == json.loads(json.dumps(first.to_json()))
  run_lib.evaluate(config, workdir=tmp_path, overwrite=True)
  assert passed(scorers[-1:]) > 0


def test_a_finished_evaluation_runs_no_pass(tmp_path, config, scorers):
  first = run_lib.evaluate(config, workdir=tmp_path)
  again = run_lib.evaluate(config, workdir=tmp_path)
  assert passed(scorers) == first[0].n_tokens
  # Of the run that made the numbers: what made them is said once.
  assert again == first and first[0].tokens_per_second > 0
  assert files.load_results(tmp_path) == first


def test_documents_without_keys_are_counted_by_reason(tmp_path, made, config):
  """Cases C2, C3, C4; `too_short` still has a PPL."""
  texts = ["", "x", TEXTS[0][:40], TEXTS[1][:40]]
  config.data.sources = (write_jsonl(tmp_path / "odd.jsonl", texts),)
  config.evaluator, config.key_tokens = str(made / "m0"), ""
  (result,) = run_lib.evaluate(config, workdir=tmp_path / "w")
  assert result.null_reasons == {
    "empty": 1, "nothing_to_score": 1, "too_short": 2
  }  # fmt: skip
  assert (result.longppl, result.reason) == (None, "too_short")
  assert result.n_tokens == 78
  assert (result.n_documents, result.n_documents_eligible) == (4, 0)
  read_strict(tmp_path / "w" / "results" / "m1.json")
  config.data.sources = (write_jsonl(tmp_path / "odder.jsonl", texts[:2]),)
  message = "none of 2 documents could be scored: 1 empty, 1 nothing_to_score"
  with pytest.raises(ValueError, match=message):
    run_lib.evaluate(config, workdir=tmp_path / "nothing")


def test_a_store_of_scores_alone_says_what_it_lacks(tmp_path, made, config):
  config.evaluator, config.key_tokens = str(made / "m0"), ""
  config.scoring.detail = "scores"
  with pytest.raises(ValueError, match="detail=scores.*detail=tokens"):
    run_lib.evaluate(config, workdir=tmp_path)


def test_two_results_of_one_name_are_refused_first(tmp_path, made, config):
  config.models = (str(made / "m1"), str(tmp_path / "m1"))
  with pytest.raises(ValueError, match="two models are called 'm1'"):
    run_lib.evaluate(config, workdir=tmp_path)
  foreign = foreign_lib.ForeignLogProbs("m1", "x.parquet")
  config.models = config.models[:1]
  with pytest.raises(ValueError, match="'m1' is the name of a model and of"):
    run_lib.evaluate(config, workdir=tmp_path, foreign=[foreign])
  config.models = ()
  with pytest.raises(ValueError, match="no model is named"):
    run_lib.evaluate(config, workdir=tmp_path)


def test_a_killed_evaluation_ends_as_one_that_was_not(tmp_path, made):
  """Case L3 for the ledger: SIGKILL, then the same command."""
  path = write_jsonl(tmp_path / "corpus.jsonl", make_texts(40))
  home = tmp_path / "home"
  command = [
    "scripts/eval.py", "--data", path, "--keys", tmp_path / "keys",
    "--model", made / "m1", "--per_token", *FLAGS, "--workdir",
  ]  # fmt: skip
  killed = tmp_path / "killed"
  scored, whole, dead, again = run(
    [
      ["scripts/score.py", "--evaluator", made / "m0", "--data", path, *FLAGS,
       "--workdir", tmp_path / "keys"],
      [*command, tmp_path / "whole"],
      Killed([*command, killed], killed / "tokens" / "m1" / "*.parquet", 5),
      [*command, killed],
    ],
    cwd=tmp_path,
    home=home,
  )  # fmt: skip
  assert not (scored.status or whole.status or again.status), again.err
  assert dead.status == -9 and 5 <= len(dead.files) < 40
  rewritten = [
    path for path, changed in dead.files.items()
    if (killed / "tokens" / "m1" / path.split("/")[-1]).stat().st_mtime_ns
    != changed
  ]  # fmt: skip
  # At most the one whose line the ledger had not got yet.
  assert len(rewritten) <= 1
  kept = [
    pq.read_table(folder / "log_probs" / "m1.parquet")
    for folder in (tmp_path / "whole", killed)
  ]
  assert len(kept[0]) == 40 and kept[0].equals(kept[1])
  results = [
    read_strict(folder / "results" / "m1.json")
    for folder in (tmp_path / "whole", killed)
  ]
  assert numbers(results[0]) == numbers(results[1])
  tables = [
    pq.read_table(folder / "documents" / "m1.parquet")
    for folder in (tmp_path / "whole", killed)
  ]
  assert tables[0].equals(tables[1]) and tables[0].num_rows == 40
