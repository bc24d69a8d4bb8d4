"""A plan as a whole, with what a compiler would say put in its place."""

import pytest
from support.checks import refuses

from longctx_jax.experiments.plan import compiler, run, table, workloads
from longctx_jax.experiments.plan.collectives import Traffic
from longctx_jax.experiments.plan.compiler import Compiled
from longctx_jax.runtime import chips

GIB = 2**30


@pytest.fixture
def compiles(monkeypatch):
  """What is compiled, as (program, ids, slice); all of it fits by default."""
  asked = []
  answer = Compiled(20 * GIB, 8 * GIB, True, {"all-gather": Traffic(7, GIB)})

  def compile_program(workload, name, place):
    asked.append((name, workload.length, place.name))
    return answers.get(asked[-1], answer)

  answers = {}
  monkeypatch.setattr(compiler, "is_here", lambda: True)
  monkeypatch.setattr(compiler, "compile_program", compile_program)
  return asked, answers


def plan(config, place, **options):
  return run.make(
    workloads.read(config), chips.parse(place), mfu=0.5, **options
  )


def test_all_that_is_found_is_compiled_once(load_config, compiles):
  asked, _ = compiles
  found = plan(load_config("llama2_7b"), "v5p:2x2x2")
  assert (
    asked
    == [
      ("train step", 32768, "v5p:2x2x2"),
      ("train step", found.longest, "v5p:2x2x2"),
      ("train step", 32768, found.smallest.name),
    ][: len(asked)]
  )
  assert len(set(asked)) == len(asked) >= 2 and found.fits
  text = table.text(found)
  assert "7 x all-gather, 1.00 GiB in a train step" in text
  assert "compiled: 20.00 GiB" in text
  assert table.row(found, "c").endswith("| 20.00 |")


def test_both_passes_of_a_scoring_are_compiled(load_config, compiles):
  asked, _ = compiles
  plan(load_config("govreport_llama31_8b"), "v5p:2x2x1")
  assert asked[:2] == [
    ("long pass", 32768, "v5p:2x2x1"),
    ("short pass", 32768, "v5p:2x2x1"),
  ]


def test_time_is_operations_over_what_all_chips_can(load_config):
  found = plan(load_config("llama2_7b"), "v5p:2x2x2", compiles=False)
  rate = 8 * 459e12 * 0.5
  assert found.seconds == found.workload.operations().total / rate


def test_without_a_compiler_a_plan_says_so(load_config, monkeypatch, warnings):
  monkeypatch.setattr(compiler, "is_here", lambda: False)
  found = plan(load_config("llama2_7b"), "v5p:2x2x2")
  assert not found.compiled and "no TPU compiler here" in warnings[0]
  assert "not compiled" in table.text(found)
  assert table.row(found, "c").endswith("| not compiled |")


def test_what_the_compiler_refuses_is_refused_with_its_number(
  load_config, compiles
):
  _, answers = compiles
  config = load_config("llama2_7b")
  answers["train step", 32768, "v5p:2x2x2"] = Compiled(
    int(123.5 * GIB), 0, False, {}
  )
  found = plan(config, "v5p:2x2x2")
  assert not found.fits
  assert "refused: 123.50 GiB" in table.text(found)
  with refuses(r"takes 123.5 GiB of the 95.74 GiB of each chip of v5p:2x2x2"):
    run.require_fit(found)


def test_the_analytic_model_refuses_too_and_says_what_would_do(load_config):
  found = plan(load_config("llama2_7b"), "v5e:2x4", compiles=False)
  assert not found.fits
  with refuses("15.75 GiB of each chip of v5e:2x4, for a step .*: take --topo"):
    run.require_fit(found)
  assert {place.chip.name for place in found.elsewhere} <= {"v4", "v5p", "v6e"}
  parts = load_config("llama2_7b", **{"optimizer.accumulate": 2})
  with refuses("more of optimizer.accumulate"):
    run.require_fit(plan(parts, "v5e:2x4", compiles=False))
  other = plan(load_config("govreport_llama31_8b"), "v5e:1x1", compiles=False)
  with refuses(f"take --topology {other.smallest.name}"):
    run.require_fit(other)


@pytest.mark.parametrize("mfu", [0.0, 1.5, float("nan")])
def test_an_impossible_share_of_the_peak_is_refused(load_config, mfu):
  workload = workloads.read(load_config("llama2_7b"))
  with refuses("mfu=.* must be above 0 and at most 1"):
    run.make(workload, chips.parse("v5p:2x2x2"), mfu=mfu, compiles=False)


@pytest.mark.parametrize(
  ("message", "expected"),
  [
    (
      "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 26.65G "
      "of 15.75G hbm. Exceeded hbm capacity by 10.90G.",
      26.65,
    ),
    (
      "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required "
      "for HLO temporaries (28.96G) exceeds available HBM (15.75G).",
      28.96 + 9,
    ),
    ("RESOURCE_EXHAUSTED: something else", 0),
  ],
)
def test_the_compilers_own_number_is_read_from_its_error(message, expected):
  found = compiler.needed(message, 9 * GIB)
  assert found == pytest.approx(expected * GIB, rel=1e-9)
