"""What a user sees of a mistake: one line, the nearest name, status 2."""

import re
import signal

import pytest
from support.command_line import ROOT, run
from support.tiny_runs import save_models, write_jsonl

from longctx_jax import commands

EVAL, SCORE, REPORT, TRAIN, DEMO, CONTROLS, CONVERT, DATA = (
  f"scripts/{name}.py"
  for name in (
    "eval", "score", "report", "train", "demo", "controls", "convert", "data"
  )
)  # fmt: skip
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

# As where the disk of the workdir is full.
FULL_DISK = """
import errno, os, runpy, stat, sys
sys.argv = sys.argv[1:]
fsync = os.fsync
def full(descriptor):
  if stat.S_ISREG(os.fstat(descriptor).st_mode):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
  fsync(descriptor)
os.fsync = full
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# As where a signal comes while documents are scored.
INTERRUPTED = """
import os, runpy, sys, time
from longctx_jax.scoring import run
number, sys.argv = int(sys.argv[1]), sys.argv[2:]
def score(*args, **kwargs):
  os.kill(os.getpid(), number)
  time.sleep(60)
run.score_corpus = score
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
  "a flag that must be given": (
    [SCORE, "--evaluator=m0"], "--workdir must have"
  ),
  "a word without a flag": ([SCORE, "--workdir=w", "m0"], "without a flag: m0"),
  "a verb": (
    [REPORT, "comprae", "w"], "expected one of compare, html, correlate"
  ),
  "a verb alone": ([REPORT, "compare"], "then a workdir"),
  "no results": ([REPORT, "compare", "w"], "no results in w/results"),
  "no model": ([EVAL, "--data=c.jsonl"], "no model is named"),
  "no keys": ([EVAL, "--model=m", "--data=c.jsonl", "--keys=w"], "Score first"),
  "a model that is missing": (
    [SCORE, "--workdir=w", "--data=c.jsonl", "--evaluator=./m9"],
    "./m9: no such file or folder",
  ),
  "data that is missing": (
    [SCORE, "--workdir=w", "--data=nothing/*.txt", "--evaluator=m0"],
    "nothing/*.txt matches no file",
  ),
  "a setting of the program that the config names": (
    ["scripts/train.py", "--config={root}/configs/retrieval.py", "--workdir=w",
     "--config.optimizer.steps=10"],
    "go past the last step, 10",
  ),
  "a list of models that is missing, for a config of a flag file": (
    [EVAL, "--flagfile={folder}/flags.txt", "--models_file=none.txt"],
    "none.txt: No such file or directory",
  ),
  "a variant of a config in a flag file": (
    [EVAL, "--flagfile={folder}/variant.txt"], "variant 'k1025' is not one of"
  ),
  "a flag file that is missing": ([EVAL, "--flagfile=no.txt"], "no.txt"),
  "a program that is not there": (
    ["scripts/train.py", "--config={root}/configs/retrieval.py", "--workdir=w",
     "--config.program=retreival"],
    "config.program='retreival': there is no ",
  ),
  "a list of models that is missing": (
    [EVAL, "--models_file=none.txt"],
    "none.txt: No such file or directory: check how it is spelled",
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
  "a place without its package": (
    [SCORE, "--workdir=w", "--evaluator=m0", "--data=gs://b/k.jsonl"],
    "gs://b/k.jsonl needs a package that is not installed: pip install gcsfs",
  ),
  "a hub without a network": (
    [SCORE, "--workdir=w", "--evaluator=m0", "--data=hf://datasets/o/n/*.parquet"],
    "hf://datasets/o/n/*.parquet can't be read: ",
  ),
  "results in a place without its package": (
    [REPORT, "compare", "s3://b/runs"], "pip install s3fs"
  ),
  "a dtype": (
    [SCORE, "--workdir=w", "--data=c.jsonl", "--evaluator=m0",
     "--config.scoring.dtype=bf16"],
    "scoring.dtype='bf16' is not one of float32, bfloat16, float16",
  ),
  "a dtype in training": (
    [TRAIN, "--config={root}/configs/tiny.py", "--workdir=t", "--model=m0",
     "--data=c.jsonl", "--config.model.dtype=half"],
    "model.dtype='half' is not one of",
  ),
  "no model to train": (
    [TRAIN, "--config={root}/configs/tiny.py", "--workdir=t", "--data=c.jsonl"],
    "no model is named: give --model",
  ),
  "no benchmarks": (
    [REPORT, "correlate", "r"],
    "no benchmark scores are named: give --benchmarks FILE.csv",
  ),
  "benchmarks that are no text": (
    [REPORT, "correlate", "r", "--benchmarks=junk.bin"], "junk.bin is damaged"
  ),
  "log-probs that are no Parquet": (
    [EVAL, "--log_probs=junk.bin", "--name=x"], "junk.bin is damaged"
  ),
  "a list of models that is no text": (
    [EVAL, "--models_file=junk.bin"], "junk.bin is damaged"
  ),
  "a JSON file of another form": (
    [SCORE, "--workdir=w", "--data=r/results/a.json", "--evaluator=m0"],
    "a.json has no column 'text'; it has: name, reason",
  ),
  "an array that is cut off": (
    [SCORE, "--workdir=w", "--data=cut.json", "--evaluator=m0"],
    "cut.json is one JSON array, and damaged at element 1",
  ),
  "a config that raises": (
    [SCORE, "--config=raises.py", "--workdir=w"],
    "--config raises.py does not load: ZeroDivisionError: division by zero",
  ),
  "a config that is none": (
    [SCORE, "--config", "c.jsonl", "--workdir=w"], "c.jsonl is no config: it"
  ),
  "a config of another script": (
    [SCORE, "--config={root}/configs/tiny.py", "--workdir=w", "--evaluator=m0"],
    "tiny.py is made for another script: it has no field data.chunk_len, ",
  ),
  "a workdir without a name": ([SCORE, "--workdir="], "--workdir is empty"),
  "a workdir that is a file": (
    [SCORE, "--workdir=c.jsonl", "--evaluator=m0", "--data=c.jsonl"],
    "c.jsonl: File exists: it stands in the way, name another or move it",
  ),
  "a source without a name": (
    [SCORE, "--workdir=w", "--evaluator=m0", "--data="], "a source is empty"
  ),
  "a size below nothing": (
    [SCORE, "--workdir=w", "--evaluator=m0", "--data=c.jsonl",
     "--max_length=-3"],
    "data.max_length=-3 must be at least 0",
  ),
  "a chunk of nothing": (
    [SCORE, "--workdir=w", "--data=c.jsonl", "--config.scoring.chunk=0"],
    "scoring.chunk=0 must be at least 1",
  ),
  "a pattern": (
    [CONVERT, "--model=m0", "--output=c", "--allow_missing=["],
    "the pattern '[' is no regular expression: ",
  ),
  "logits that are none": (
    [CONVERT, "--model=m0", "--verify=junk.bin"], "junk.bin is no .npz file"
  ),
  "a full disk": (
    ["full.py", "{root}/" + SCORE, "--workdir=w", "--data=c.jsonl",
     "--evaluator=m0"],
    ": no space left on the disk. Free some, and the same command goes on",
  ),
  **{
    f"{flag} of {script} in a bucket": (
      [script, f"--{flag}=gs://b/k", *words], f"--{flag} gs://b/k is a URL"
    )
    for script, flag, *words in (
      (SCORE, "workdir"), (EVAL, "workdir"), (TRAIN, "workdir"),
      (DEMO, "workdir"), (CONTROLS, "workdir"),
      (CONVERT, "output", "--model=m0"), (DATA, "output", "govreport"),
      (REPORT, "output", "html", "r"),
    )
  },
  "a TPU, and the CPU was chosen": (
    ["with.py", "/dev/accel0", "{root}/" + EVAL, "--model=m", "--platform=cpu"],
    "no data given",
  ),
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """What each command of MISTAKES left."""
  folder = tmp_path_factory.mktemp("commands")
  (folder / "with.py").write_text(ON_A_MACHINE_WITH)
  (folder / "full.py").write_text(FULL_DISK)
  (folder / "stop.py").write_text(INTERRUPTED)
  (folder / "raises.py").write_text("def get_config():\n  return 1 / 0\n")
  (folder / "junk.bin").write_bytes(b"\xff\xfe\x00\x81" * 99)
  (folder / "cut.json").write_text('[{"text": "a"}, {"te')
  (folder / "r" / "results").mkdir(parents=True)
  (folder / "r" / "results" / "a.json").write_text(
    '{"name": "a", "reason": "failed", "longppl": null, "ppl": null}'
  )
  save_models(folder, ["m0"])
  write_jsonl(folder / "c.jsonl", ["text"])
  config = f"{ROOT}/configs/longppl.py"
  for name, variant in (("flags", "k1024"), ("variant", "k1025")):
    (folder / f"{name}.txt").write_text(
      f"--config={config}:{variant}\n--config.longppl.stride=512\n"
    )
  root = commands.__file__.rpartition("/longctx_jax/")[0]
  own = ("with.py", "full.py", "stop.py")
  given = {name: command for name, (command, _) in MISTAKES.items()}
  missing = [SCORE, "--workdir=w", "--data=c.jsonl", "--evaluator=./m9"]
  given["verbose"] = [*missing, "--verbose"]
  for number in signal.SIGINT, signal.SIGTERM:
    stopped = ["stop.py", str(int(number)), f"{{root}}/{SCORE}", "--workdir=w"]
    given[number] = stopped
  done = run(
    [
      [
        folder / word if word in own else word.format(root=root, folder=folder)
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
  said = ("An NVIDIA", "loading m0")
  (line,) = (x for x in one.err.splitlines() if not x.startswith(said))
  assert line.startswith("error: ") and MISTAKES[name][1] in line
  assert "Traceback" not in line


def test_verbose_shows_where_an_error_comes_from(finished):
  one = finished["verbose"]
  assert one.status == 2
  assert "Traceback" in one.err and "in resolve" in one.err
  last = one.err.splitlines()[-1]
  assert last.startswith("error: ./m9: no such file or folder")


@pytest.mark.parametrize(
  ("number", "said"),
  [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "told to end")],
)
def test_a_signal_ends_in_one_line(finished, number, said):
  one = finished[number]
  assert one.status == 128 + number
  assert one.err == (
    f"{said}: what is finished is kept, and the same command goes on\n"
  )


def test_the_first_line_says_what_it_runs_on(finished):
  line = finished["no model"].out.splitlines()[0]
  assert re.fullmatch(r"jax [\d.]+ \| cpu x\d+ \| \d+ GiB", line)
  # Nothing is started for a mistake in the command line itself.
  assert finished["a flag"].out == ""
