"""Other thresholds and windows from stored log-probs, against evaluations."""

import itertools
import re
import xml.etree.ElementTree as ElementTree

import pytest
from support.tiny_runs import (
  ALPHA,
  BETA,
  D,
  K,
  make_config,
  make_texts,
  passed,
  save_models,
  share_passes,
  write_jsonl,
)

from longctx_jax.evaluation import foreign, log_probs
from longctx_jax.evaluation import run as run_lib
from longctx_jax.report import alike, sweep, sweep_plot
from longctx_jax.scoring import run as score

PAIRS = tuple(itertools.product((0.2, ALPHA, 1.0, 50.0), (-6.0, BETA)))
ALPHAS, BETAS = sorted({a for a, _ in PAIRS}), sorted({b for _, b in PAIRS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory, compiled):
  """m0 to m2, two stores of m0 with other K and d, and an evaluation of all."""
  folder = tmp_path_factory.mktemp("sweep")
  save_models(folder, ["m0", "m1", "m2"])
  path = write_jsonl(folder / "corpus.jsonl", make_texts())
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    config = make_config(data__sources=(path,), evaluator=str(folder / "m0"))
    score.score_corpus(config, workdir=folder / "keys")
    config.longppl.update(short_len=2 * K, stride=2 * D)
    score.score_corpus(config, workdir=folder / "wide")
    run_lib.evaluate(at(folder, ALPHA, BETA), workdir=folder / "eval")
  return folder


def at(folder, alpha, beta, keys="keys", models=("m0", "m1", "m2")):
  """The config of an evaluation under these thresholds."""
  wide = dict(longppl__short_len=2 * K, longppl__stride=2 * D)
  config = make_config(
    data__sources=(str(folder / "corpus.jsonl"),),
    key_tokens=str(folder / keys),
    models=tuple(str(folder / name) for name in models),
    **wide if keys == "wide" else {},
  )
  config.longppl.update(alpha=alpha, beta=beta)
  return config


def swept(folder, keys=("keys",), **options):
  values = dict(alpha=ALPHAS, beta=BETAS) | options
  places = [str(folder / name) for name in keys]
  return sweep.sweep(folder / "eval", keys=places, **values)


@pytest.mark.parametrize("keys", ["keys", "wide"])
def test_each_cell_is_what_an_evaluation_finds(folder, tmp_path, scorers, keys):
  cells = swept(folder, keys=("keys", "wide"))
  assert not passed(scorers)
  windows = (K, D) if keys == "keys" else (2 * K, 2 * D)
  own = {
    (c.alpha, c.beta, c.model): c
    for c in cells
    if (c.short_len, c.stride) == windows
  }
  assert len(own) == 3 * len(PAIRS)
  for i, (alpha, beta) in enumerate(PAIRS[i] for i in (0, 1, 5, 7)):
    for result in run_lib.evaluate(
      at(folder, alpha, beta, keys), workdir=tmp_path / str(i)
    ):
      cell = own[alpha, beta, result.name]
      assert cell.n_key_tokens == result.n_key_tokens
      assert (cell.longppl or 0.0) == pytest.approx(
        result.longppl or 0.0, rel=1e-12
      )
  assert len({c.n_key_tokens for c in own.values()}) > 3


def test_ranks_are_of_the_models_that_did_not_choose_the_keys(folder):
  for _, row in itertools.groupby(swept(folder), key=lambda c: c.setting):
    row = list(row)
    ranked = [c for c in row if c.rank]
    scored = {c.model for c in row if c.longppl is not None} - {"m0"}
    assert {c.model for c in ranked} == scored
    assert [c.rank for c in ranked] == list(range(1, len(ranked) + 1))
    assert [c.longppl for c in ranked] == sorted(c.longppl for c in ranked)


def test_the_table_has_a_row_per_setting_and_csv_one_per_cell(folder):
  cells = swept(folder, keys=("keys", "wide"), alpha=[ALPHA], beta=[BETA])
  text = sweep.sweep_table(cells, fmt="text")
  header, _, first, second = text.strip().splitlines()
  assert header.split()[-5:] == ["m1", "m2", "m0", "key", "tokens"] or (
    "m1" in header and "m2" in header
  )
  assert f"{K}, {D}" in first and f"{2 * K}, {2 * D}" in second
  best = next(c for c in cells if c.rank == 1)
  assert f"{best.longppl:,.2f} (1)" in first
  table = sweep.sweep_table(cells, fmt="csv").splitlines()
  assert table[0].split(",")[:5] == [
    "short_len", "stride", "alpha", "beta", "model",
  ]  # fmt: skip
  assert len(table) == 1 + len(cells) and str(best.longppl) in table[1]
  notes = " ".join(sweep.notes(cells))
  assert "not ranked" in notes and "m0" in notes and "order" in notes


def test_the_note_on_the_order_leaves_out_rows_without_key_tokens():
  def row(alpha, *models):
    return [
      sweep.Cell(4, 2, alpha, -2.0, model, 2.0 + i, 9, 4, i + 1)
      for i, model in enumerate(models)
    ]

  none = [sweep.Cell(4, 2, 9.0, -2.0, m, None, 0, 4) for m in ("a", "b")]
  same = [*row(1.0, "a", "b"), *row(2.0, "a", "b"), *none]
  assert "of all 2 that are ranked is the same in all 2 rows" in " ".join(
    sweep.notes(same)
  )
  other = [*row(1.0, "a", "b"), *row(2.0, "b", "a"), *none]
  assert "changes: 2 orders in 2 rows" in " ".join(sweep.notes(other))


def test_a_setting_without_key_tokens_says_so(folder):
  cells = swept(folder, alpha=[ALPHA, 50.0], beta=[BETA])
  none = [c for c in cells if c.alpha == 50.0]
  assert {(c.longppl, c.n_key_tokens, c.rank) for c in none} == {
    (None, 0, None)
  }
  assert "none" in sweep.sweep_table(cells, fmt="text")
  svg = sweep_plot.sweep_plot(cells)
  assert len(re.findall("<circle", svg)) == 3
  with pytest.raises(ValueError, match="lower alpha"):
    sweep_plot.sweep_plot(none)


def test_the_picture_is_whole_and_has_each_cell(folder, tmp_path):
  path = tmp_path / "sweep.svg"
  said = sweep_plot.write(
    str(folder / "eval"),
    keys=[str(folder / "keys"), str(folder / "wide")],
    alpha="0.2,0.5,1",
    beta="-20",
    fmt="text",
    output=str(path),
  )
  assert said.endswith(f"picture: {path}")
  root = ElementTree.fromstring(path.read_text())
  tag = "{http://www.w3.org/2000/svg}"
  assert len(root.findall(f"{tag}circle")) == 3 * 3 * 2
  texts = [one.text for one in root.iter(f"{tag}text")]
  assert {"m0", "m1", "m2", f"K = {K}, d = {D}"} <= set(texts)
  # Nothing lies outside of the picture.
  _, _, width, height = map(float, root.attrib["viewBox"].split())
  for one in root.findall(f"{tag}circle"):
    assert 0 < float(one.attrib["cx"]) < width
    assert 0 < float(one.attrib["cy"]) < height


def test_what_another_engine_gave_is_swept_too(folder, tmp_path):
  path = log_probs.path_of(folder / "eval", "m1")
  config = at(folder, ALPHA, BETA, models=("m2",))
  run_lib.evaluate(
    config,
    workdir=tmp_path / "w",
    foreign=[foreign.open_log_probs(path, "engine")],
  )
  options = dict(keys=[str(folder / "keys")], alpha=[0.2], beta=[BETA])
  found = {c.model: c for c in sweep.sweep(tmp_path / "w", **options)}
  (own,) = (c for c in swept(folder, **options | {"keys": ("keys",)})
            if c.model == "m1")  # fmt: skip
  assert found["engine"].longppl == own.longppl
  assert found["engine"].n_key_tokens == own.n_key_tokens


def test_what_can_not_be_swept_is_refused(folder, tmp_path, compiled):
  def refused(error, message, **options):
    with pytest.raises(error, match=message):
      swept(folder, **options)

  refused(ValueError, "have both K=32 and d=16", keys=("keys", "keys"))
  refused(ValueError, "both thresholds", alpha=[])
  with pytest.raises(ValueError, match="--alpha 1;2: numbers with commas"):
    sweep.parse_values("1;2", flag="alpha")
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    config = at(folder, ALPHA, BETA)
    config.key_tokens, config.evaluator = "", str(folder / "m0")
    other = write_jsonl(tmp_path / "other.jsonl", make_texts()[::-1])
    config.data.sources = (other,)
    score.score_corpus(config, workdir=tmp_path / "other")
    config.data.sources = (str(folder / "corpus.jsonl"),)
    config.scoring.detail = "keys"
    score.score_corpus(config, workdir=tmp_path / "few")
  with pytest.raises(alike.NotComparable, match="another text of document"):
    swept(folder, keys=(tmp_path / "other",))
  with pytest.raises(ValueError, match="thresholds can rise but not fall"):
    swept(folder, keys=(tmp_path / "few",))
  config = at(folder, ALPHA, BETA, models=("m1",))
  config.eval.log_probs = False
  run_lib.evaluate(config, workdir=tmp_path / "bare")
  with pytest.raises(FileNotFoundError, match="no log-probs of 'm1'.*again"):
    sweep.sweep(
      tmp_path / "bare", keys=[str(folder / "keys")], alpha=[1], beta=[-2]
    )
