"""The documented commands, as a user runs them, on tiny models (case L5)."""

import ast
import csv
import io
import json
import math
import re
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import ROOT, run
from support.tiny_runs import ALPHA, FLAGS, make_texts, save_models

from longctx_jax.key_tokens import store as store_lib

SCRIPTS = {path.stem: path for path in sorted((ROOT / "scripts").glob("*.py"))}
# Where commands are documented.
PAGES = [
  *SCRIPTS.values(), *sorted((ROOT / "configs").glob("*.py")),
  *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")),
]  # fmt: skip
TEXTS = make_texts()
SCORE, EVAL, REPORT = (
  f"scripts/{name}.py" for name in ("score", "eval", "report")
)
# Thresholds apply to what is stored; windows are those of the store.
THRESHOLDS = FLAGS[2:]
COMMANDS = {
  "score": [SCORE, "--evaluator", "m0", "--data", "docs/*.txt", "--text_column",
            "text", "--workdir", "keys", *FLAGS],
  "next of score": [EVAL, "--keys", "keys", "--data=docs/*.txt",
                    "--text_column=text", "--model", "m1", "--workdir",
                    "runs/eval"],
  "score, then evaluate": [EVAL, "--evaluator", "m0", "--data", "docs",
                           "--model", "m1", "--workdir", "once", *FLAGS],
  "many models": [EVAL, "--keys", "keys", "--data", "docs", "--model", "m1",
                  "--models_file", "models.txt", "--workdir", "many",
                  "--per_token", *THRESHOLDS],
  "once more": [EVAL, "--keys", "keys", "--data", "docs", "--model", "m1",
                "--workdir", "many", "--per_token", *THRESHOLDS],
  "slices": [EVAL, "--keys", "slices:judge", "--data", "docs", "--model", "m1",
             "--workdir", "sliced"],
  "log-probs": [EVAL, "--keys", "keys", "--data", "docs", "--log_probs",
                "engine.parquet", "--name", "lab/A", "--workdir", "foreign",
                *THRESHOLDS],
  "what both hold": [EVAL, "--keys", "keys", "--data", "docs/d0.txt", "--model",
                     "m1", "--workdir", "shared", "--intersection"],
  "nothing read": [EVAL, "--keys", "keys", "--data", "docs", "--model", "m1",
                   "--workdir", "nothing", "--max_length=10",
                   "--over_length=skip"],
  "a variant": [EVAL, "--config", f"{ROOT}/configs/longppl.py:k1024", "--model",
                "m1", "--evaluator", "m0", "--data", "docs", "--workdir", "k1"],
  "text": [REPORT, "compare", "many"],
  "markdown": [REPORT, "compare", "many", "--format", "markdown",
               "--baseline", "m1"],
  "csv": [REPORT, "compare", "many", "--format=csv"],
  "two runs": [REPORT, "compare", "many", "foreign", "--format=csv"],
  "latex": [REPORT, "compare", "many", "--format=latex"],
  "correlate": [REPORT, "correlate", "many", "--benchmarks", "scores.csv"],
  "html": [REPORT, "html", "many", "--keys", "keys", "--data", "docs",
           "--documents", "2"],
  "html without flags": [REPORT, "html", "many", "--output", "bare.html"],
  "other windows": [EVAL, "--keys", "keys", "--data", "docs", "--model", "m1",
                    "--config.longppl.short_len=2048"],
  "another protocol": [EVAL, "--keys", "keys", "--data", "docs", "--model",
                       "m1", "--protocol", "strict"],
  "another evaluator": [EVAL, "--keys", "keys", "--data", "docs", "--model",
                        "m1", "--evaluator", "m1"],
  "other thresholds": [EVAL, "--keys", "keys", "--data", "docs", "--model",
                       "m1", "--workdir", "many", "--per_token", *THRESHOLDS,
                       "--config.longppl.alpha=3"],
  "other texts": [EVAL, "--keys", "keys", "--data", "docs/d0.txt", "--model",
                  "m1"],
}  # fmt: skip
# One of its models is missing; no document is short enough.
INCOMPLETE, NOTHING = "many models", "nothing read"
REFUSED = {
  "other windows": "short_len is 32 there and 2048 here",
  "another protocol": "protocol is 'paper' there and 'strict' here",
  "another evaluator": "evaluator is 'm0' there and 'm1' here",
  "other thresholds": f"keys.alpha was {ALPHA} and is 3.0",
  "other texts": "3 documents ('d1.txt', 'd2.txt', 'd3.txt') in the store but",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Models, documents, slices, log-probs and benchmark scores."""
  folder = tmp_path_factory.mktemp("scripts")
  save_models(folder, ["m0", "m1", "m2"])
  for name in ("docs", "judge"):
    (folder / name).mkdir()
  for i, text in enumerate(TEXTS):
    (folder / "docs" / f"d{i}.txt").write_bytes(text.encode())
    (folder / "judge" / f"slice_{i}.txt").write_text("[20, 25];[60, 61]")
  (folder / "models.txt").write_text("# by path\nm2\nmissing\n\n")
  (folder / "scores.csv").write_text("model,LongBench\nm1,40\nm2,50\n")
  rows = [
    {
      "doc_id": f"d{i}.txt",
      "token_start": list(range(1, len(text))),
      "token_end": list(range(2, len(text) + 1)),
      "log_prob": [-1.0] * (len(text) - 1),
    }
    for i, text in enumerate(TEXTS)
  ]
  pq.write_table(pa.Table.from_pylist(rows), folder / "engine.parquet")
  return folder


@pytest.fixture(scope="module")
def finished(folder):
  """What each of COMMANDS left, in their order, one after the other."""
  done = run(COMMANDS.values(), cwd=folder, home=folder / "home")
  return dict(zip(COMMANDS, done, strict=True))


def result(folder, workdir, name):
  return json.loads((folder / workdir / "results" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in REFUSED])
def test_a_documented_command_works(finished, name):
  one = finished[name]
  assert one.status == (2 if name in (INCOMPLETE, NOTHING) else 0), one.err
  # A table for a program is alone on stdout.
  runs_a_model = COMMANDS[name][0] != REPORT
  assert one.out.startswith("jax ") is runs_a_model
  assert "Traceback" not in one.err


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_belong_together_is_refused_in_one_line(finished, name):
  """Cases J5, J6."""
  one = finished[name]
  assert one.status == 2
  (line,) = (x for x in one.err.splitlines() if not x.startswith("loading "))
  assert line.startswith("error: ") and REFUSED[name] in line


def test_what_a_script_prints_last_can_be_typed(finished):
  """The command after `next:` is one of those that were run here."""
  (line,) = re.findall("^next: python (.*)$", finished["score"].out, re.M)
  words = [word.replace("MODEL", "m1") for word in shlex.split(line)]
  assert words == COMMANDS["next of score"]
  (line,) = re.findall("^next: python (.*)$", finished["many models"].out, re.M)
  assert shlex.split(line) == COMMANDS["html"][:3]


def test_the_numbers_do_not_depend_on_the_way(finished, folder):
  one, other = (result(folder, w, "m1") for w in ("once", "many"))
  for field in ("longppl", "ppl", "n_key_tokens", "nll_sum_nats", "n_tokens"):
    assert one[field] == other[field] is not None
  sliced = result(folder, "sliced", "m1")
  assert sliced["n_key_tokens"] == 6 * len(TEXTS)
  assert sliced["nll_sum_nats"] == one["nll_sum_nats"]
  # The thresholds are those that were scored with, unless others are named.
  assert result(folder, "runs/eval", "m1")["alpha"] == ALPHA
  assert result(folder, "runs/eval", "m1")["longppl"] == one["longppl"]
  assert result(folder, "foreign", "lab--A")["longppl"] == pytest.approx(math.e)


def test_a_failed_model_is_a_row_in_every_format(finished, folder):
  assert "missing" in result(folder, "many", "missing")["reason"]
  assert "error: 1 of 3 models failed: missing" in finished[INCOMPLETE].err
  for name in ("many models", "text", "markdown", "csv", "latex"):
    assert "m2" in finished[name].out
    assert "failed: FileNotFoundError" in finished[name].out
  assert "| m1 |" in finished["markdown"].out
  rows = list(csv.DictReader(io.StringIO(finished["csv"].out)))
  assert {row["model"] for row in rows} == {"m1", "m2", "missing"}
  rows = list(csv.DictReader(io.StringIO(finished["two runs"].out)))
  assert {"m1", "lab--A"} < {row["model"] for row in rows}
  assert finished["latex"].out.count(r"\\") >= 4
  assert "LongBench" in finished["correlate"].out
  assert "left out: missing" in finished["correlate"].out


def test_where_nothing_is_read_nothing_comes_next(finished):
  one = finished[NOTHING]
  assert "error: m1 scored nothing: of 4 documents 4 too_long" in one.err
  assert "0 of 4" in one.out and "next:" not in one.out


def test_what_key_tokens_and_data_share_is_counted(finished, folder):
  said = finished["what both hold"].err
  assert "1 documents are in the corpus and in the key tokens" in said
  assert result(folder, "shared", "m1")["n_documents"] == 1


def test_a_finished_command_repeated_says_the_same(finished, folder):
  first, again = (finished[name].out for name in ("many models", "once more"))
  assert first == again
  assert "0 documents in" in finished["once more"].err


def test_too_short_documents_say_which_windows_would_fit(finished, folder):
  assert result(folder, "k1", "m1")["null_reasons"] == {"too_short": 4}
  assert "it would need more than 2048" in finished["a variant"].err


def test_the_page_shows_the_documents_with_most_key_tokens(finished, folder):
  assert "wrote many/report.html" in finished["html"].out
  page = (folder / "many" / "report.html").read_text()
  store = store_lib.read_store(folder / "keys" / "key_tokens")
  counts = {row.doc_id: int(row.key_mask.sum()) for row in store}
  shown = {name for name in counts if name in page}
  assert shown == set(sorted(counts, key=counts.get)[-2:])
  assert f"α</dt><dd>{ALPHA:g}" in re.sub(r"\s", "", page)
  # Without flags it finds the texts and key tokens that were evaluated.
  assert "wrote bare.html" in finished["html without flags"].out
  bare = (folder / "bare.html").read_text()
  assert bare.count('<article class="document"') == 3


def documented():
  """(page, script, words) of each command in docstrings and pages."""
  for path in PAGES:
    text = path.read_text()
    if path.suffix == ".py":
      text = ast.get_docstring(ast.parse(text))
    text = re.sub(r"\\\n\s*", " ", text)
    for name, rest in re.findall(r"python scripts/(\w+)\.py([^\n#`]*)", text):
      yield path.name, name, shlex.split(rest)


def defined_flags(path):
  """Names in DEFINE calls of a file."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text())):
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    if called.startswith("flags.DEFINE_") and node.args:
      names |= {getattr(node.args[0], "value", "")}
    elif called == "fields.define_values":
      names |= {keyword.arg for keyword in node.keywords}
  return names


def test_documented_flags_and_files_exist():
  shared = defined_flags(ROOT / "longctx_jax" / "commands.py")
  shared |= defined_flags(ROOT / "longctx_jax" / "fields.py")
  shared |= {"config", "help"}
  found = list(documented())
  assert {name for _, name, _ in found} >= {"score", "eval", "report", "data"}
  for page, name, words in found:
    assert name in SCRIPTS, f"{page}: scripts/{name}.py"
    known = defined_flags(SCRIPTS[name]) | shared
    for word in words:
      flag = re.match(r"--(?:no)?(\w+)", word)
      assert not flag or flag[1] in known, f"{page}: {name}.py {word}"
      if word.startswith("configs/"):
        assert (ROOT / word.partition(":")[0]).exists(), f"{page}: {word}"


def test_documented_targets_of_make_exist():
  targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
  for path in PAGES:
    for line in re.findall(r"(?:^|`)make ([\w -]+)", path.read_text(), re.M):
      assert set(line.split()) <= set(targets), f"{path.name}: make {line}"
