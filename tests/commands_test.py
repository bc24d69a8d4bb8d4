"""What a user sees of a mistake: one line, the nearest name, status 2."""

import re

import pytest
from support.command_line import run
from support.tiny_runs import make_config, save_models, write_jsonl

from longctx_jax import commands

EVAL, SCORE, REPORT = (
  f"scripts/{name}.py" for name in ("eval", "score", "report")
)
# As on a machine that has the device, while JAX finds no plugin for it.
ON_A_MACHINE_WITH = """
import os, runpy, sys
import jax
path, sys.argv = sys.argv[1], sys.argv[2:]
exists = os.path.exists
devices = lambda p: p == path if str(p).startswith("/dev/") else exists(p)
os.path.exists = devices
jax.config.update("jax_platforms", None)
jax.default_backend = lambda: "cpu"
runpy.run_path(sys.argv[0], run_name="__main__")
"""

MISTAKES = {
  "a flag": (
    [EVAL, "--modle", "m"],
    "Unknown command line flag 'modle'. Did you mean: model",
  ),
  "a field of the config": (
    [EVAL, "--config.longppl.alhpa=1"], '"alpha" instead of "alhpa"'
  ),
  "a block of the config": (
    [EVAL, "--config.longpl.alpha=1"], '"longppl" instead of "longpl"'
  ),
  "a number": ([EVAL, "--config.longppl.alpha=x"], "longppl.alpha=x"),
  "an integer flag": ([EVAL, "--max_length=many"], "max_length=many"),
  "a choice": ([REPORT, "--format=html"], "<text|markdown|csv|latex>"),
  "a protocol": ([EVAL, "--protocol=papr"], "<paper|strict>"),
  "a config file": ([EVAL, "--config=none.py"], "none.py"),
  "a variant": (
    [EVAL, "--config={root}/configs/longppl.py:k1025"],
    "variant 'k1025' is not one of '', 'k1024'",
  ),
  "a range of rows": (
    [SCORE, "--workdir=w", "--row_range=5"], "row_range='5' must be a:b"
  ),
  "a flag that must be given": ([SCORE, "--model=m0"], "--workdir must have"),
  "a word without a flag": ([SCORE, "--workdir=w", "m0"], "without a flag: m0"),
  "a verb": (
    [REPORT, "comprae", "w"], "expected one of compare, html, correlate"
  ),
  "a verb alone": ([REPORT, "compare"], "then a workdir"),
  "no results": ([REPORT, "compare", "w"], "no results in w/results"),
  "no model": ([EVAL, "--data=c.jsonl"], "no model is named"),
  "no keys": ([EVAL, "--model=m", "--data=c.jsonl", "--keys=w"], "Score first"),
  "a model that is missing": (
    [SCORE, "--workdir=w", "--data=c.jsonl", "--model=./m9"],
    "./m9: no such file or folder",
  ),
  "data that is missing": (
    [SCORE, "--workdir=w", "--data=nothing/*.txt", "--model=m0"],
    "nothing/*.txt matches no file",
  ),
  "a setting of the program that the config names": (
    ["scripts/train.py", "--config={root}/configs/retrieval.py", "--workdir=w",
     "--config.optimizer.steps=10"],
    "go past the last step, 10",
  ),
  "a program that is not there": (
    ["scripts/train.py", "--config={root}/configs/retrieval.py", "--workdir=w",
     "--config.program=retreival"],
    "config.program='retreival': there is no ",
  ),
  "a list of models that is missing": (
    [EVAL, "--models_file=none.txt"], "No such file or directory: 'none.txt'"
  ),
  "log-probs that are missing": (
    [EVAL, "--log_probs=none.parquet", "--name=x"], "none.parquet"
  ),
  "a platform": ([EVAL, "--platform=qpu"], "--platform qpu: "),
  "a TPU without its extra": (
    ["with.py", "/dev/accel0", "{root}/" + EVAL, "--model=m0"],
    "has a tpu, but JAX sees only the CPU: install the extra for it "
    "(pip install -e '.[tpu]'), or go on with --platform cpu",
  ),
  "a GPU without its extra": (
    ["with.py", "/dev/nvidiactl", "{root}/" + EVAL, "--model=m0"],
    "(pip install -e '.[cuda]')",
  ),
  "a TPU, and a script without a model": (
    ["with.py", "/dev/accel0", "{root}/" + REPORT, "compare", "w"],
    "no results in w/results",
  ),
  "a TPU, and the CPU was chosen": (
    ["with.py", "/dev/accel0", "{root}/" + EVAL, "--model=m", "--platform=cpu"],
    "no data given",
  ),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """What each command of MISTAKES, and --help, left."""
  folder = tmp_path_factory.mktemp("commands")
  (folder / "with.py").write_text(ON_A_MACHINE_WITH)
  save_models(folder, ["m0"])
  write_jsonl(folder / "c.jsonl", ["text"])
  root = commands.__file__.rpartition("/longctx_jax/")[0]
  given = {name: command for name, (command, _) in MISTAKES.items()}
  given["help"] = [EVAL, "--help"]
  done = run(
    [
      [
        folder / word if word == "with.py" else word.format(root=root)
        for word in command
      ]
      for command in given.values()
    ],
    cwd=folder,
    home=folder / "home",
  )
  return dict(zip(given, done, strict=True))


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(finished, name):
  """Cases L5, L6."""
  one = finished[name]
  assert one.status == 2, one.err
  # JAX itself warns of a GPU that it cannot use.
  (line,) = (x for x in one.err.splitlines() if not x.startswith("An NVIDIA"))
  assert line.startswith("error: ") and MISTAKES[name][1] in line
  assert "Traceback" not in line


def test_the_first_line_says_what_it_runs_on(finished):
  line = finished["no results"].out.splitlines()[0]
  assert re.fullmatch(r"jax [\d.]+ \| cpu x\d+ \| \d+ GiB", line)
  # Nothing is started for a mistake in the command line itself.
  assert finished["a flag"].out == ""


def test_help_is_the_docstring_of_the_script(finished):
  one = finished["help"]
  assert one.status in (0, 1) and one.err == ""
  assert "LongPPL and PPL of one or many models." in one.out
  assert "--[no]per_token" in one.out and "--keys" in one.out


def test_flags_that_are_not_given_leave_the_config_alone():
  config = make_config(models=("a",), longppl__alpha=1.0).lock()
  values = {"models": None, "data.sources": ["x", "y"], "longppl.alpha": None}
  changed = commands.override(config, values | {"eval.per_token": False})
  assert changed.models == ("a",) and changed.longppl.alpha == 1.0
  assert changed.data.sources == ("x", "y") and changed.is_locked
  with pytest.raises(KeyError, match="alhpa"):
    commands.override(config, {"longppl.alhpa": 1.0})


def test_models_come_from_flags_and_then_from_the_file(tmp_path):
  path = tmp_path / "models.txt"
  path.write_text("# the small ones\nB\n\n  C # \n")
  assert commands.read_models(["A"], str(path)) == ["A", "B", "C #"]
  assert commands.read_models(None, "") is None


@pytest.mark.parametrize(
  "text", ["", ":", "1:", "-1:2", "1:2:3", "a:b", "1 :2"]
)
def test_a_row_range_is_two_numbers(text):
  assert commands.row_range("3:14") == (3, 14)
  assert commands.row_range(None) is None
  with pytest.raises(ValueError, match=re.escape(f"row_range={text!r}")):
    commands.row_range(text)
