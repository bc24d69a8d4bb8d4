"""What a config asks of the devices, without weights and without devices."""

import jax
import pytest
from support.checks import refuses

from longctx_jax import testing
from longctx_jax.experiments.plan import workloads
from longctx_jax.model import sharding


def test_a_config_is_planned_as_what_it_is_made_for(load_config):
  assert workloads.read(load_config("llama2_7b")).kind == "train"
  assert workloads.read(load_config("govreport_llama31_8b")).kind == "score"
  config = load_config("govreport_llama31_8b", models=("mistralai/M", "other"))
  with refuses("mistralai/M is neither a folder", FileNotFoundError):
    workloads.read(config, kind="eval")


@pytest.mark.parametrize(
  ("name", "kind", "message"),
  [
    ("llama2_7b", "score", "this config is one of training: train"),
    ("longppl", "train", "this config is one of scoring: score or eval"),
    ("longppl", "", "no model is named: give --model"),
    ("tiny", "", "no model is named: give --model"),
  ],
)
def test_what_cannot_be_planned_is_refused(load_config, name, kind, message):
  with refuses(message):
    workloads.read(load_config(name), kind=kind)


def test_a_config_json_is_enough_of_a_model(load_config, tmp_path):
  testing.RandomSource(testing.tiny_config(), seed=0).save(tmp_path / "m")
  (tmp_path / "m" / "model.safetensors").unlink()
  found = workloads.read(load_config("longppl"), model=str(tmp_path / "m"))
  assert found.facts.embed_dim == 40 and found.length == 4096


def test_weights_and_optimizer_are_those_of_the_published_model(load_config):
  found = workloads.read(load_config("llama2_7b"))
  mesh = sharding.abstract_mesh(found.sizes, 8)
  memory = found.memory("train step", mesh)
  assert memory.weights == 4 * 6_738_415_616 // 8 + 4 * 65 * 4096 * 7 // 8
  # Two moments; the norms lie on every device, and there are two counters.
  assert memory.optimizer == 2 * memory.weights + 8


def test_stored_weights_need_no_store_and_no_short_pass(load_config):
  live = workloads.read(load_config("llama31_8b")).operations()
  stored = workloads.read(load_config("llama31_8b", "stored")).operations()
  assert stored.short == 0 < live.short and stored.long == live.long


def test_an_evaluation_has_no_windows(load_config):
  config = load_config("govreport_llama31_8b")
  score, evaluate = (workloads.read(config, kind=k) for k in ("score", "eval"))
  assert score.programs == ("long pass", "short pass")
  assert evaluate.programs == ("long pass",)
  assert evaluate.operations().long == score.operations().long
  assert evaluate.operations().short == 0 < score.operations().short


def test_a_mesh_that_does_not_share_the_batch_is_refused(load_config):
  found = workloads.read(load_config("smollm2_135m", "train"))
  with refuses("batch_size=1 rows are not a multiple of"):
    found.memory("train step", sharding.abstract_mesh(found.sizes, 8))


CASES = [
  ("smollm2_135m", "", {"data.max_length": 1024, "longppl.short_len": 256}),
  ("smollm2_135m", "train", {"data.seq_len": 1024, "data.batch_size": 8}),
]


@pytest.mark.parametrize(("name", "variant", "changed"), CASES)
def test_the_program_is_the_one_that_runs(load_config, tmp_path, name, variant,
                                          changed):  # fmt: skip
  """On eight CPU devices: what it is given is what the plan counts."""
  testing.RandomSource(testing.tiny_config(vocab_size=264), seed=0).save(
    tmp_path / "m"
  )
  backend = "model.backend" if variant else "scoring.backend"
  rope = {"model.rope.max_position": 4096} if variant else {}
  found = workloads.read(
    load_config(name, variant, **changed, **rope, **{backend: "blockwise"}),
    model=str(tmp_path / "m"),
  )
  mesh = sharding.make_mesh(found.sizes, jax.devices())
  for program in found.programs:
    memory = found.compile(program, mesh).memory_analysis()
    planned = found.memory(program, mesh)
    given = memory.argument_size_in_bytes
    # The rest is the batch: int32 and float32 columns of a row.
    assert 0 < given - planned.weights - planned.optimizer < 64 * 1024
