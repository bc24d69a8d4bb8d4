"""Random sequences of commands: every number is the true one, or refused."""

import json
import os

import pyarrow.parquet as pq
import pytest
from support.tiny_runs import save_models

from fuzz import sequences, texts, truth
from fuzz.disk import Disk, Killed
from fuzz.faults import Wrong
from fuzz.processes import Server
from fuzz.sequences import Player

# Seeds of a slow test; eight of them are 200 sequences.
BLOCK = 25


@pytest.fixture(scope="module")
def models(tmp_path_factory):
  folder = tmp_path_factory.mktemp("models")
  save_models(folder, [f"m{seed}" for seed in range(4)])
  return folder


@pytest.fixture(scope="module")
def player(models):
  return Player(models)


@pytest.fixture
def world(player):
  with player.world() as world:
    yield world


def check(player, seeds, make=sequences.make):
  """Plays sequences; the shortest that shows a fault is in the message."""
  for seed in seeds:
    steps = make(seed)
    fault = player.play(steps)
    if fault:
      small = player.shrink(steps, fault.kind)
      script = "\n".join(f"  world.{step}" for step in small)
      pytest.fail(f"seed {seed}: {fault}\n\n{script}")


def test_sequences_of_commands(player):
  check(player, range(15))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_many_sequences_of_commands(player, block):
  check(player, range(15 + BLOCK * block, 15 + BLOCK * (block + 1)))


@pytest.mark.slow
def test_sequences_of_processes_that_sigkill_ends(tmp_path, models):
  with Server(truth.checksums(), tmp_path) as server:
    player = Player(models, open_terminal=server.terminal)
    check(player, range(1000, 1020), sequences.make_killed)


def test_no_key_token_hangs_on_rounding():
  """Float32 passes and the float64 definition find the same key tokens."""
  assert min(texts.margins()) > 1e-4


def test_the_same_seed_is_the_same_sequence():
  assert sequences.make(7) == sequences.make(7) != sequences.make(8)


# That the fuzzer sees what it is for: a falsehood is planted in each file.


def evaluated(world):
  world.score("k0", "A")
  evaluate(world)
  return world.root


def evaluate(world):
  thresholds = texts.THRESHOLDS[0]
  world.evaluate("e0", "A", ("m1",), "k0", thresholds=thresholds)


def planted(path, change):
  """Changes a Parquet file that stays whole."""
  table = pq.read_table(path)
  rows = table.to_pylist()
  change(rows)
  pq.write_table(type(table).from_pylist(rows, schema=table.schema), path)


def test_a_planted_line_of_the_ledger_is_found(world):
  root = evaluated(world)
  path = root / "e0" / "documents" / "m1.jsonl"
  first, line, *rest = path.read_text().splitlines(keepends=True)
  fields = json.loads(line)
  fields["nll_sum"] *= 2
  path.write_text("".join([first, json.dumps(fields) + "\n", *rest]))
  with pytest.raises(Wrong, match="result: nll_sum_nats"):
    evaluate(world)


def test_a_planted_row_of_a_store_is_found(world):
  root = evaluated(world)
  (path,) = (root / "k0" / "key_tokens").glob("*.parquet")

  def exchange(rows):
    rows[0]["text_sha256"], rows[1]["text_sha256"] = (
      rows[1]["text_sha256"], rows[0]["text_sha256"],
    )  # fmt: skip

  planted(path, exchange)
  with pytest.raises(Wrong, match="a row's"):
    world.check_store("k0")


def test_a_planted_number_of_a_result_is_found(world):
  root = evaluated(world)
  path = root / "e0" / "results" / "m1.json"
  result = json.loads(path.read_text())
  path.write_text(json.dumps(result | {"longppl": result["longppl"] + 1}))
  with pytest.raises(Wrong, match="result: longppl"):
    world.compare("e0")


def test_a_planted_row_of_the_documents_is_found(world):
  path = evaluated(world) / "e0" / "documents" / "m1.parquet"
  planted(path, lambda rows: rows[2].update(n_key_tokens=1))
  with pytest.raises(Wrong, match="documents.parquet: n_key_tokens"):
    world.compare("e0")


def test_a_planted_log_prob_is_found(world):
  path = evaluated(world) / "e0" / "log_probs" / "m1.parquet"

  def change(rows):
    rows[0]["log_prob"] = [value - 1.0 for value in rows[0]["log_prob"]]

  world.sweep("e0", "k0")
  planted(path, change)
  with pytest.raises(Wrong, match="sweep: longppl"):
    world.sweep("e0", "k0")


def test_a_process_that_is_killed_writes_no_more(tmp_path, monkeypatch):
  disk, path = Disk(tmp_path), tmp_path / "file"
  disk.watch(monkeypatch)
  file = None
  with pytest.raises(Killed), disk.process(at=3):
    os.mkdir(tmp_path / "folder")
    file = open(path, "w")
    file.write("12345678")
    try:
      file.flush()
    finally:
      with pytest.raises(Killed):
        path.unlink()
  file.close()
  assert path.read_text() == "1234" and (tmp_path / "folder").is_dir()


def test_what_a_buffer_holds_goes_with_its_process(tmp_path, monkeypatch):
  disk = Disk(tmp_path)
  disk.watch(monkeypatch)
  with pytest.raises(Killed), disk.process(at=2):
    with open(tmp_path / "file", "w") as file:
      file.write("12345678")
      os.replace(tmp_path / "file", tmp_path / "other")
  assert (tmp_path / "file").read_text() == ""
