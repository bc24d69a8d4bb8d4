"""One stream for all processes; whole runs of several are marked slow."""

import dataclasses
import signal
import time

import numpy as np
import pytest
from support import loopback, tiny_runs
from support.command_line import ROOT

from longctx_jax import testing
from longctx_jax.evaluation import files
from longctx_jax.key_tokens import store
from longctx_jax.runtime import channel, machine, settings
from longctx_jax.scoring import eval_step, shared
from longctx_jax.scoring import scorer as scorer_lib


class Recorder:
  """A scorer that takes two jobs a pass and notes what came when."""

  def __init__(self):
    self.noted = []

  def score(self, jobs):
    self.noted.append("score")
    waiting = []
    for job in jobs:
      if not isinstance(job, scorer_lib.Job | eval_step.SumJob):
        yield job
        continue
      waiting.append(job)
      fields = dict(vars(job))
      del fields["key"]
      self.noted.append({n: np.array(v).tolist() for n, v in fields.items()})
      if len(waiting) == 2:
        self.noted.append("pass")
        yield from waiting
        waiting = []
    self.noted.append("rest")
    yield from waiting

  def score_long(self, jobs):
    self.noted.append("long")
    yield from self.score(jobs)

  sum = score_long


def job(n, prefix_len=0):
  return scorer_lib.Job(n, np.arange(n), prefix_len)


def read(n, prefix_len=0):
  """What a scorer notes of `job(n, prefix_len)`."""
  return {"ids": list(range(n)), "prefix_len": prefix_len}


@pytest.fixture
def become(monkeypatch):
  return loopback.pretend(monkeypatch, count=2)


def follow(become):
  """What the scorer of process 1 notes, and how its following ended."""
  become(1)
  scorer, ended = Recorder(), None
  try:
    shared.Group().follow(lambda path: (scorer, scorer))
  except channel.Ended as error:
    ended = error
  become(0)
  return scorer.noted, ended


def lead(scorer):
  group = shared.Group()
  group.tell({"do": "load", "path": "m"})
  return group, group.lead(scorer)


def test_one_process_scores_as_it_is():
  scorer = Recorder()
  assert shared.Group().lead(scorer) is scorer


def test_all_scorers_get_one_stream_of_jobs(become):
  """Also that of the BOS check, which runs before the first document."""
  scorer = Recorder()
  group, told = lead(scorer)

  def documents():
    assert len(list(told.score_long([job(9), job(8)]))) == 2
    yield "not scored"
    yield job(3, 1)
    yield "not scored"
    yield job(5)
    yield job(4)

  assert len(list(told.score(documents()))) == 5
  group.tell({"do": "end"})
  noted, ended = follow(become)
  assert ended is None and noted == scorer.noted
  assert noted[-1] == "rest" and read(3, 1) in noted


def test_masks_and_expected_values_come_with_the_ids(become):
  scorer = Recorder()
  group, _ = lead(scorer)
  mask = np.array([True, False, True, True])
  expected = np.array([-1.5, np.inf, -0.25, -9.0], np.float32)
  one = eval_step.SumJob("a", np.array([7, 8, 9, 1, 2]), mask, expected)
  told = shared.SharedSummer(scorer, group)
  list(told.sum([one, dataclasses.replace(one, key_mask=~mask)]))
  group.tell({"do": "end"})
  assert follow(become) == (scorer.noted, None)
  assert scorer.noted[2]["key_mask"] == mask.tolist()
  assert scorer.noted[3]["expected"] == expected.tolist()


def test_an_error_while_reading_breaks_all_off_at_one_place(become):
  """And what process 0 does next is followed."""
  scorer = Recorder()
  group, told = lead(scorer)

  def documents():
    yield job(3)
    yield job(4)
    yield job(5)
    raise ValueError("unreadable")

  with pytest.raises(ValueError, match="unreadable"):
    list(told.score(documents()))
  list(told.score_long([job(7)]))
  group.tell({"do": "end"})
  noted, ended = follow(become)
  assert ended is None and noted == scorer.noted and read(7) in noted


def test_no_pass_follows_one_that_was_given_up(become):
  """A fault behind the scorer: the others are somewhere in the pass."""
  group, told = lead(Recorder())
  with pytest.raises(OSError, match="full"):
    for _ in told.score([job(3), job(4)]):
      raise OSError("full")
  with pytest.raises(channel.Ended, match="no longer at the same place"):
    list(told.score([job(3)]))


def test_a_signal_ends_all_after_the_same_document(become, monkeypatch):
  monkeypatch.setattr(shared, "_LOOK_SECONDS", -1.0)
  scorer = Recorder()
  group, told = lead(scorer)
  before = signal.getsignal(signal.SIGTERM)

  def documents():
    for n in range(3, 9):
      if n == 6:
        signal.raise_signal(signal.SIGTERM)
      yield job(n)

  with pytest.raises(channel.Ended) as ended, group.stoppable():
    list(told.score(documents()))
  assert ended.value.status == 143 and "process 0 of 2" in str(ended.value)
  assert signal.getsignal(signal.SIGTERM) is before
  noted, heard = follow(become)
  assert noted == scorer.noted
  assert noted[-1] == read(5)
  assert heard.status == 143 and str(heard) == str(ended.value)


def test_a_signal_outside_of_a_pass_ends_at_once(become):
  with pytest.raises(machine.Terminated), shared.Group().stoppable():
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
  ("other", "error", "expected"),
  [
    ({"checksum": "b"}, settings.OtherSettings, "'a' in process 0 and 'b' in"),
    ({"error": "no file"}, ValueError, "^process 1: no file$"),
    ({"checksum": "a", "tokenizer": ""}, None, ""),
  ],
)
def test_all_load_one_model(become, monkeypatch, other, error, expected):
  mine = {"checksum": "a", "tokenizer": "t"}
  channel.put(
    "longctx/model/1/1", channel.json.dumps({"tokenizer": "t"} | other)
  )
  group = shared.Group()

  def load():
    return group.load("m", lambda: "model", lambda model: mine)

  if error is None:
    assert load() == "model"
  else:
    with pytest.raises(error, match=expected):
      load()


def run_all(count, workdir, documents, evaluator, *flags, script="score"):
  """Starts a script as `count` processes with a device each."""
  command = [
    ROOT / "scripts" / f"{script}.py", *tiny_runs.FLAGS, f"--data={documents}",
    f"--workdir={workdir}", f"--evaluator={evaluator}",
    "--compilation_cache=", *flags,
  ]  # fmt: skip
  if count == 1:
    return [loopback.start(command, cwd=workdir.parent)]
  return loopback.start_all(command, count=count, cwd=workdir.parent)


def require_finished(running):
  for status, out in loopback.finish(running):
    assert not status, out[-3000:]


def rows(workdir):
  return list(store.read_store(workdir / "key_tokens"))


def require_equal(found, expected):
  assert [row.doc_id for row in found] == [row.doc_id for row in expected]
  for one, other in zip(found, expected, strict=True):
    assert one.reason == other.reason
    for name in ("long_log_probs", "short_log_probs"):
      a, b = getattr(one, name), getattr(other, name)
      assert (a is None) == (b is None)
      if a is not None:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
  """(documents, model, rows of one process)."""
  folder = tmp_path_factory.mktemp("inputs")
  # A vocabulary that two devices divide.
  config = testing.tiny_config(vocab_size=264)
  testing.RandomSource(config, seed=0).save(folder / "m0")
  texts = [*tiny_runs.make_texts(9), "", "short"]
  documents = tiny_runs.write_jsonl(folder / "d.jsonl", texts)
  model = folder / "m0"
  require_finished(run_all(1, folder / "one", documents, model))
  return documents, model, rows(folder / "one")


@pytest.mark.slow
@pytest.mark.parametrize(
  ("count", "mesh"),
  [
    (2, {"tensor": 2}),
    (2, {"fsdp": 2}),
    (4, {"data": 4}),
    (4, {"data": 2, "tensor": 2}),
  ],
)
def test_several_processes_write_the_rows_of_one(inputs, tmp_path, count, mesh):
  # cases H3, H4
  documents, model, expected = inputs
  sizes = {"data": 1, "fsdp": 1, "tensor": 1} | mesh
  flags = [f"--config.mesh.{axis}={n}" for axis, n in sizes.items()]
  require_finished(run_all(count, tmp_path / "w", documents, model, *flags))
  require_equal(rows(tmp_path / "w"), expected)


@pytest.mark.slow
def test_a_killed_process_ends_the_others_and_the_run_goes_on(inputs, tmp_path):
  # case L3
  documents, model, expected = inputs
  running = run_all(
    2, tmp_path / "w", documents, model,
    "--config.scoring.flush_seconds=0", "--config.scoring.window_batch=1",
  )  # fmt: skip
  parts = tmp_path / "w" / "key_tokens"
  while not list(parts.glob("*.parquet")):
    assert running[1].poll() is None, running[1].communicate()[0]
    time.sleep(0.05)
  running[1].kill()
  (status, out), _ = loopback.finish(running)
  assert status == 2 and "process 1 of 2 was not heard of" in out
  kept = len(list(parts.glob("*.parquet")))
  assert kept
  require_finished(run_all(2, tmp_path / "w", documents, model))
  require_equal(rows(tmp_path / "w"), expected)


@pytest.mark.slow
def test_several_processes_evaluate_as_one(inputs, tmp_path):
  documents, model, _ = inputs
  found = {}
  for count in (1, 2):
    workdir = tmp_path / f"w{count}"
    require_finished(
      run_all(
        count, workdir, documents, model, f"--model={model}",
        "--protocol=strict", script="eval",
      )
    )  # fmt: skip
    (found[count],) = files.load_results(workdir)
  one, two = found[1], found[2]
  assert one.n_key_tokens == two.n_key_tokens and one.longppl
  assert two.longppl == pytest.approx(one.longppl, rel=1e-5)
  assert two.ppl == pytest.approx(one.ppl, rel=1e-5)


@pytest.mark.slow
def test_other_settings_of_one_process_end_all(inputs, tmp_path):
  documents, model, _ = inputs
  command = [
    ROOT / "scripts" / "score.py", f"--data={documents}",
    f"--evaluator={model}", f"--workdir={tmp_path / 'w'}",
    "--compilation_cache=",
  ]  # fmt: skip
  running = loopback.start_all(
    command,
    count=3,
    cwd=tmp_path,
    each=lambda process: [f"--max_length={64 + process // 2}"],
  )
  for status, out in loopback.finish(running):
    assert status == 2
    assert "data.max_length is 64 in process 0 and 65 in process 2" in out
  assert not (tmp_path / "w").exists()
