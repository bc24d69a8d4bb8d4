"""The page of a workdir, without a flag: it finds all that it shows."""

import html
import json
import re
import shutil

import pytest
from support.tiny_runs import (
  ALPHA,
  BETA,
  make_config,
  make_texts,
  save_models,
  share_passes,
  write_jsonl,
)

from longctx_jax.evaluation import run as run_lib
from longctx_jax.report import run_page, sweep
from longctx_jax.scoring import run as score


@pytest.fixture(scope="module")
def folder(tmp_path_factory, compiled):
  folder = tmp_path_factory.mktemp("page")
  save_models(folder, ["m0", "m1", "m2"])
  path = write_jsonl(folder / "corpus.jsonl", make_texts(num_words=80))
  config = make_config(data__sources=(path,), evaluator=str(folder / "m0"))
  with pytest.MonkeyPatch.context() as monkeypatch:
    share_passes(monkeypatch, compiled)
    score.score_corpus(config, workdir=folder / "keys")
    config.key_tokens = str(folder / "keys")
    config.models = tuple(str(folder / name) for name in ("m1", "m2"))
    run_lib.evaluate(config, workdir=folder / "eval")
  return folder


@pytest.fixture(scope="module")
def page(folder):
  path = run_page.write(str(folder / "eval"))
  assert path == f"{folder}/eval/report.html"
  return (folder / "eval" / "report.html").read_text()


def test_it_finds_its_store_and_its_texts(page):
  assert page.count('<article class="document"') == 3
  assert "d0" in page and "Where the long context helps" in page


def test_the_sliders_hold_what_a_sweep_gives(page, folder):
  (text,) = re.findall(r'id="grid">(.*?)</script>', page, re.DOTALL)
  grid = json.loads(html.unescape(text))
  cells = sweep.sweep(
    folder / "eval", keys=[folder / "keys"], alpha=grid["alpha"],
    beta=grid["beta"],
  )  # fmt: skip
  assert [
    [grid["alpha"].index(c.alpha), grid["beta"].index(c.beta), c.model,
     c.longppl, c.n_key_tokens, c.rank] for c in cells
  ] == grid["cells"]  # fmt: skip
  a, b = grid["at"]
  assert (grid["alpha"][a], grid["beta"][b]) == (ALPHA, BETA)
  # Where the sliders stand, the models have the numbers of the run.
  results = {
    name: json.loads((folder / "eval" / "results" / f"{name}.json").read_text())
    for name in ("m1", "m2")
  }
  here = {cell[2]: cell[3] for cell in grid["cells"] if cell[:2] == [a, b]}
  for name, result in results.items():
    assert here[name] == pytest.approx(result["longppl"])


def test_two_models_are_set_against_each_other(page):
  assert "<h2>m1 against m2</h2>" in page
  spans, better = re.search(
    r"Of ([\d,]+) spans it is better on ([\d,]+)", page
  ).groups()
  assert 0 < int(better) < int(spans)


def test_it_says_what_made_it(page):
  assert "longctx_jax 0" in page and "m1, m2: python " in page
  assert "characters from the start of the document" in page
  # The evaluator by its name, not by where it lies.
  assert re.search(r"<dt>Evaluator</dt><dd>m0</dd>", page)


def test_what_is_gone_is_said_and_the_rest_is_shown(folder, tmp_path, caplog):
  moved = folder / "corpus.jsonl"
  away = moved.rename(folder / "elsewhere.jsonl")
  try:
    with caplog.at_level("INFO"):
      run_page.write(str(folder / "eval"), str(tmp_path / "r.html"))
  finally:
    away.rename(moved)
  assert "is not on this disk; name the texts with --data" in caplog.text
  text = (tmp_path / "r.html").read_text()
  assert "<article" not in text and 'id="grid"' in text


def test_results_of_before_have_no_provenance_and_a_page(folder, tmp_path):
  shutil.copytree(folder / "eval", tmp_path / "old")
  for path in (tmp_path / "old" / "results").glob("*.json"):
    fields = json.loads(path.read_text())
    del fields["made"]
    path.write_text(json.dumps(fields))
  run_page.write(str(tmp_path / "old"))
  assert "<h2>Models</h2>" in (tmp_path / "old" / "report.html").read_text()
