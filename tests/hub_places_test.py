"""hf:// wherever a path goes: stores, slices, texts, log-probs, results."""

import json
import pathlib

import pytest
from support.command_line import run
from support.hub_server import Repository, serving
from support.tiny_runs import FLAGS, make_texts, save_models, write_jsonl

pytestmark = pytest.mark.slow
EVAL, REPORT = "scripts/eval.py", "scripts/report.py"
THRESHOLDS = FLAGS[2:]
HERE = {
  "score": ["scripts/score.py", "--evaluator", "m0", "--data", "corpus.jsonl",
            "--workdir", "keys", *FLAGS],
  "eval": [EVAL, "--keys", "keys", "--data", "corpus.jsonl", "--model", "m1",
           "--workdir", "here", *THRESHOLDS],
  "sweep": [REPORT, "sweep", "here", "--keys", "keys", "--alpha=0.5",
            "--beta=-20", "--format=csv"],
}  # fmt: skip
KEYS, DATA = "hf://datasets/lab/keys", "hf://datasets/lab/texts/*.jsonl"
THERE = {
  "eval": [EVAL, "--keys", KEYS, "--data", DATA, "--model", "m1", "--workdir",
           "there", *THRESHOLDS],
  "log-probs": [EVAL, "--keys", f"{KEYS}/key_tokens", "--data", DATA,
                "--log_probs", "hf://datasets/lab/here/log_probs/m1.parquet",
                "--name", "m1", "--workdir", "engine", *THRESHOLDS],
  "slices": [EVAL, "--keys", "slices:hf://datasets/lab/slices/judge", "--data",
             DATA, "--model", "m1", "--workdir", "sliced"],
  "sweep": [REPORT, "sweep", "hf://datasets/lab/here", "--keys", KEYS,
            "--alpha=0.5", "--beta=-20", "--format=csv"],
  "compare": [REPORT, "compare", "hf://datasets/lab/here", "--format=csv"],
  "nothing": [EVAL, "--keys", "hf://datasets/lab/gone", "--data", DATA,
              "--model", "m1", "--workdir", "gone"],
}  # fmt: skip


def repository(folder):
  """What an upload of the folder would hold."""
  return Repository(
    {
      str(path.relative_to(folder)): path.read_bytes()
      for path in folder.rglob("*")
      if path.is_file() and not path.name.startswith(".")
    }
  )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
  folder = tmp_path_factory.mktemp("hub")
  save_models(folder, ["m0", "m1"])
  texts = make_texts()
  write_jsonl(folder / "corpus.jsonl", texts)
  options = dict(cwd=folder, home=folder / "home")
  here = dict(zip(HERE, run(HERE.values(), **options), strict=True))
  slices = {
    f"judge/slice_{i}.txt": b"[20, 25];[60, 61]" for i in range(len(texts))
  }
  hub = {
    "datasets/lab/keys": repository(folder / "keys"),
    "datasets/lab/here": repository(folder / "here"),
    "datasets/lab/slices": Repository(slices),
    "datasets/lab/texts": Repository(
      {"a.jsonl": (folder / "corpus.jsonl").read_bytes()}
    ),
  }
  with serving(hub) as served:
    ran = run(
      THERE.values(), **options, loopback=True, HF_ENDPOINT=served.url
    )  # fmt: skip
  return folder, here, dict(zip(THERE, ran, strict=True))


def result(folder, workdir):
  path = pathlib.Path(folder, workdir, "results", "m1.json")
  return json.loads(path.read_text())


def test_each_command_takes_it(done):
  folder, here, there = done
  for one in (*here.values(), *there.values()):
    expected = 2 if one is there["nothing"] else 0
    assert one.status == expected, one.err


def test_the_numbers_are_those_of_the_files_here(done):
  folder, here, there = done
  own = result(folder, "here")
  for workdir in ("there", "engine"):
    other = result(folder, workdir)
    for name in ("longppl", "ppl", "n_key_tokens", "documents_sha256"):
      assert other[name] == own[name] is not None
  table = here["sweep"].out[here["sweep"].out.index("short_len") :]
  assert there["sweep"].out.endswith(table) and str(own["longppl"]) in table
  assert "m1" in there["compare"].out
  assert (folder / "sweep.svg").exists()


def test_slices_are_named_by_their_folder(done):
  assert result(done[0], "sliced")["keys"]["evaluator"] == "judge"


def test_a_store_that_is_not_there_is_named(done):
  line = done[2]["nothing"].err.splitlines()[-1]
  assert line.startswith("error: hf://datasets/lab/gone")
