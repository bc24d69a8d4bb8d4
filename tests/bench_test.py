"""The benchmark's own arithmetic, and its turns."""

import shutil
import subprocess
import sys

import pytest
from absl import flags
from support.command_line import ROOT

from longctx_jax import testing
from longctx_jax.model import flops

sys.path += [str(ROOT / "bench")]

import against  # noqa: E402
import floor  # noqa: E402
import gpu  # noqa: E402
import parts  # noqa: E402

# They are of scripts of their own; others define the same.
for script in ("parts", "gpu"):
  for flag in list(flags.FLAGS.flags_by_module_dict()[script]):
    delattr(flags.FLAGS, flag.name)

# Notes down when it begins and ends, and answers with its own name.
WORKER = """
import json, sys, time
name, log = sys.argv[1:]
print(json.dumps({"ready": name}), flush=True)
for _ in sys.stdin:
  with open(log, "a") as f:
    print("begin", name, file=f, flush=True)
    time.sleep(0.05)
    print("end", name, file=f, flush=True)
  seconds = {"a": 2.0, "b": 4.0}[name]
  print(json.dumps({"name": name, "s": seconds}), flush=True)
"""


def test_a_window_pass_computes_its_last_layer_where_it_scores():
  config = testing.tiny_config(num_layers=3, windows=(0,) * 3)
  short_len, stride = 11, 4
  length = short_len + stride - 1
  dim, head, mlp = 40, 8, 56
  operations = 2 * stride * 263 * dim
  for layer in range(3):
    for position in range(length):
      operations += 2 * dim * 2 * (2 * head)  # keys and values
      if layer < 2 or position >= length - stride:
        operations += 2 * dim * 2 * (4 * head)  # queries and output
        operations += 2 * 3 * dim * mlp
        operations += 2 * 2 * (4 * head) * (position + 1)
  assert operations == floor.window_flops(
    config, short_len=short_len, stride=stride
  )


def test_parts_are_counted_as_whole_passes_are():
  config = testing.tiny_config()
  shapes = floor.product_shapes(config, rows=9, head_rows=9)
  often = {"q, o": 2, "k, v": 2, "gate, up": 2, "down": 1}
  products = sum(
    often.get(name, 0) * 2 * rows * wide * out
    for name, (rows, wide, out) in shapes.items()
  )
  layers = 2 * (products + floor.attention_flops(config, 9))
  whole = layers + floor.head_flops(config, 9)
  assert whole == flops.forward_flops(config, 9)
  rows, wide, out = shapes["head"]
  assert 2 * rows * wide * out == floor.head_flops(config, 9)


def test_a_share_is_of_the_seconds_that_the_rates_allow():
  rates = dict(flops_rate=1e11, copy_rate=1e10)
  head = floor.Part("head", 2e9)  # 0.02 s
  adam = floor.Part("optimizer", 0.0, moved=3e8)  # 0.03 s
  assert head.floor(**rates) == pytest.approx(0.02)
  assert adam.floor(**rates) == pytest.approx(0.03)
  table = floor.format_table(
    [(head, [0.9, 0.04, 0.03]), (adam, [0.03, 0.05])], **rates
  ).splitlines()
  assert table[1].split() == (
    "head 2.0 0.0400 50.0 0.50 0.9000 0.0400 0.0300".split()
  )
  assert table[2].split() == (
    "optimizer 0.0 0.0400 0.0 0.75 0.0300 0.0500".split()
  )


def start(stack_names, log):
  return {
    name: against.worker([sys.executable, "-c", WORKER, name, str(log)], {})
    for name in stack_names
  }


def test_workers_take_turns_and_never_overlap(tmp_path):
  log = tmp_path / "log"
  workers = start("ab", log)
  with workers["a"] as a, workers["b"] as b:
    ready, results = against.alternate({"a": a, "b": b}, 3)
  assert ready == {name: {"ready": name} for name in "ab"}
  turns = log.read_text().splitlines()
  assert turns[::2] == [f"begin {name}" for name in "abbaab"]
  assert turns[1::2] == [f"end {name}" for name in "abbaab"]
  assert [line["name"] for line in results["b"]] == ["b"] * 3
  assert against.ratios(results, "s") == (2.0, [2.0, 2.0, 2.0])


def test_a_worker_that_ends_is_said():
  command = [sys.executable, "-c", "raise SystemExit(3)"]
  with against.worker(command, {}) as process:
    with pytest.raises(RuntimeError, match="ended with 3"):
      against.answer(process)


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git")
def test_an_older_version_is_extracted(tmp_path):
  def git(*arguments):
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", *author, "-C", str(tmp_path), *arguments]
    subprocess.run(command, check=True, capture_output=True)

  git("init")
  for text in ("old", "new"):
    (tmp_path / "file").write_text(text)
    git("add", "file")
    git("commit", "-m", text)
  commit = against.extract(tmp_path, "HEAD~1", tmp_path / "older")
  assert (tmp_path / "older" / "file").read_text() == "old"
  assert (tmp_path / "file").read_text() == "new" and len(commit) == 40
  with pytest.raises(ValueError, match="'nowhere' is no revision"):
    against.extract(tmp_path, "nowhere", tmp_path / "other")


def test_every_part_is_measured_in_every_round(mesh):
  model = testing.tiny_model(mesh=mesh)
  measured = parts.measure(
    model, n=40, short_len=16, stride=8, rounds=2, copied=1000
  )
  names = [part.name for part, _ in measured["parts"]]
  assert [name.partition(",")[0] for name in names] == (
    ["long pass", "window pass", "head", "attention", "sweep", "optimizer"]
  )
  for _, seconds in measured["parts"]:
    assert len(seconds) == 2 and min(seconds) > 0
  assert set(measured["rates"]) == {"float32", "bfloat16"}
  rates = [rate for of in measured["rates"].values() for rate in of.values()]
  assert len(rates) == 10 and min(rates) > 0 and measured["copy_rate"] > 0


def test_an_accelerator_is_measured_part_by_part():
  lines = {line["part"]: line for line in gpu.measure(gpu.TINY, 1e4)}
  assert list(lines) == list(gpu.PARTS)
  assert not any({"failed", "left_out"} & set(line) for line in lines.values())
  rated = [lines["scoring"], lines["longce_step"]]
  assert all(len(one["seconds"]) == 3 for one in rated)
  expected = flops.forward_flops(gpu.TINY.config, 96)
  median = sorted(lines["scoring"]["seconds"])[1]
  assert lines["scoring"]["tflops_per_s"] == pytest.approx(
    expected / median / 1e12
  )
  # The peak of a CPU is not known.
  assert lines["scoring"]["mfu"] is None
  assert lines["scoring"]["busy_share"] > 0
  # Rounding, and no more; see the same of whole models.
  assert 1e-4 < lines["parity"]["rms_nats"] < 0.1
  # The loss of ids that are random.
  assert 4 < lines["longce_step"]["loss"] < 9
  assert lines["longce_step"]["windows"] == 4


def test_a_part_that_has_no_time_is_left_out(monkeypatch):
  def fail(shape, mesh):
    raise MemoryError("no room\nfor it")

  monkeypatch.setitem(gpu.PARTS, "scoring", fail)
  scoring, parity, step = gpu.measure(gpu.TINY, 185.0)
  assert scoring["failed"] == "MemoryError: no room"
  assert "rms_nats" in parity
  assert step["left_out"].endswith("of 185, and it may take 210")
