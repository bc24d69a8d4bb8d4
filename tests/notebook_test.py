"""The notebook from top to bottom, and each number in it from the library."""

import json
import os
import re

import pytest
from support.command_line import ROOT, environment

import longctx_jax as lc
from longctx_jax import testing

pytestmark = pytest.mark.notebook

PATH = ROOT / "notebooks" / "longppl.ipynb"
CELLS = json.loads(PATH.read_text())["cells"]
# In the place of SmolLM2: models of bytes, and windows for them.
TINY = """
from longctx_jax import testing
EVALUATOR, MODEL = "m0", "m1"
TEXT = testing.synthetic_document(0, num_words=60)
OTHERS = [testing.synthetic_document(i, num_words=80) for i in (1, 2)]
SHORT_LEN, STRIDE, MAX_LENGTH = 32, 16, 0
THRESHOLDS = {"alpha": 0.5, "beta": -20.0}
STEPS, SEQ_LEN, LEARNING_RATE = 20, 64, 3e-3
WORKDIR = "notebook"
"""
SECONDS = 120


def sources():
  """Source of each code cell, with the parameters of this test."""
  for cell in CELLS:
    if cell["cell_type"] == "code":
      tagged = "parameters" in cell["metadata"].get("tags", ())
      yield TINY if tagged else "".join(cell["source"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("notebook")
  for seed in range(2):
    testing.RandomSource(testing.tiny_config(), seed=seed).save(
      folder / f"m{seed}"
    )
  return folder


@pytest.fixture(scope="module")
def outputs(folder):
  """What each code cell showed: (text, HTML)."""
  import nbclient
  import nbformat

  notebook = nbformat.v4.new_notebook(
    cells=[nbformat.v4.new_code_cell(source) for source in sources()]
  )
  # The kernel of this Python, and of this checkout, wherever others are.
  own = environment(folder, PYTHONPATH=str(ROOT))
  nbclient.NotebookClient(
    notebook, timeout=SECONDS, kernel_name="python3",
    resources={"metadata": {"path": str(folder)}},
  ).execute(env=os.environ | own)  # fmt: skip
  shown = []
  for cell in notebook.cells:
    text = "".join(one.text for one in cell.outputs if "text" in one)
    html = "".join(
      one.data.get("text/html", "") for one in cell.outputs if "data" in one
    )
    shown.append((text, html))
  return shown


@pytest.fixture(scope="module")
def names(folder):
  """The names of the notebook, its code run here, by the library alone."""
  known = {}
  before = os.getcwd()
  os.chdir(folder)
  try:
    for source in sources():
      source = source.replace('WORKDIR = "notebook"', 'WORKDIR = "again"')
      exec(compile(source, str(PATH), "exec"), known)
  finally:
    os.chdir(before)
  return known


def printed(outputs, start):
  """The lines of the one cell whose output starts with a word."""
  (text,) = (text for text, _ in outputs if text.startswith(start))
  return text.splitlines()


def test_it_runs_from_top_to_bottom(outputs):
  assert printed(outputs, lc.__version__)[0].startswith(
    f"{lc.__version__} [CpuDevice"
  )
  (html,) = (html for _, html in outputs if html)
  assert html.startswith("<iframe") and "LSD of document 0" in html


def test_its_key_tokens_are_those_of_the_library(outputs, names):
  keys = names["keys"]
  first, *lines = printed(outputs, "KeyTokens(")
  assert first == repr(keys)
  tokens = keys.tokens()[:12]
  assert len(lines) == len(tokens) > 3
  for line, token in zip(lines, tokens, strict=True):
    assert line.strip().startswith(repr(token.text))
    short, long = map(float, re.findall(r"\d\.\d{3}", line)[-2:])
    assert (short, long) == (
      round(token.short_prob, 3), round(token.long_prob, 3)
    )  # fmt: skip


def test_its_results_are_those_of_the_library(outputs, names):
  text, keys = names["TEXT"], names["keys"]
  expected = {
    name: lc.compute_longppl(text, names[name], keys)
    for name in ("evaluator", "model")
  }
  lines = printed(outputs, "evaluator ")
  assert lines == [f"{name:<10} {one}" for name, one in expected.items()]
  assert expected["evaluator"].self_evaluated


def test_the_trained_model_is_the_one_that_a_second_run_gives(outputs, names):
  before, after = names["before"]["model"], names["after"]
  assert printed(outputs, "before ") == [
    f"before {before}",
    f"after  {after}",
    f"LongPPL x {after.longppl / before.longppl:.3f}",
    f"PPL     x {after.ppl / before.ppl:.3f}",
  ]
  assert after.ppl != before.ppl


def test_no_output_is_stored_and_every_cell_has_an_id():
  assert all(not cell.get("outputs") for cell in CELLS)
  assert len({cell["id"] for cell in CELLS}) == len(CELLS)
