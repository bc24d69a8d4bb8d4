"""Sums on the devices: those of the host, on long rows and any mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.checks import one_device_mesh

from longctx_jax import testing
from longctx_jax.model import parameters, sharding
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import eval_step, scorer

# A vocabulary that two devices divide.
CONFIG = testing.tiny_config(vocab_size=264)


def make_job(n, *, seed=0, key_share=0.2, key="d"):
  rng = np.random.default_rng(seed)
  # Regions of any length, also one that a gap of just 16 targets holds.
  mask = rng.random(n - 1) < key_share
  mask[n // 3 : n // 2] = False
  if n > 400:
    mask[[n // 3 + 40, n // 3 + 56]] = True
  expected = rng.normal(-5, 2, n - 1).astype(np.float32)
  expected[rng.random(n - 1) < 0.3] = np.nan
  ids = rng.integers(0, 256, n).astype(np.int32)
  return eval_step.SumJob(key, ids, mask, expected)


def on_host(model, jobs):
  """By the scorer and float64."""
  made = scorer.make_scorer(model, Windows(64, 32))
  found = {
    scores.job.key: scores.long
    for scores in made.score_long(
      scorer.Job(i, job.ids) for i, job in enumerate(jobs)
    )
  }
  return [
    eval_step.sum_on_host(found[i], job.key_mask, job.expected)
    for i, job in enumerate(jobs)
  ]


def require_close(found, expected):
  assert len(found.region_nll_sums) == len(expected.region_nll_sums)
  for name in ("nll_sum", "gap_sum", "region_nll_sums"):
    np.testing.assert_allclose(
      getattr(found, name), getattr(expected, name), rtol=1e-6, err_msg=name
    )


@pytest.fixture(scope="module")
def small():
  return testing.tiny_model(CONFIG, mesh=one_device_mesh())


def test_rows_of_32k_targets_are_summed_to_1e_6(small):
  """Where float32 alone would be off by more."""
  # Attention alone takes long here.
  small = small.with_attention(window=64, sink_len=0)
  job = make_job(32_769, key_share=0.9)
  (found,) = (one.sums for one in eval_step.make_summer(small).sum([job]))
  (expected,) = on_host(small, [job])
  assert expected.nll_sum > 1e5 and len(expected.region_nll_sums) == 3
  require_close(found, expected)
  # Far closer than asked: float32 alone gives 1e-6 on a lucky day.
  assert found.nll_sum == pytest.approx(expected.nll_sum, rel=1e-7)


def test_the_error_does_not_grow_with_the_row():
  """What rounding loses is kept; float32 alone, by halves, is off by 6e-8."""
  x = np.random.default_rng(0).exponential(3, (1, 1 << 14)).astype(np.float32)
  exact = np.cumsum(x[0].astype(np.float64))
  sums = np.asarray(jax.jit(eval_step._sums)(x)).astype(np.float64).sum(0)
  assert sums[0] == pytest.approx(exact[-1], rel=1e-13)
  running = sum(
    np.asarray(part[0], np.float64)
    for part in jax.jit(eval_step._running_sums)(x)
  )
  np.testing.assert_allclose(running, exact, rtol=1e-13)


@pytest.mark.parametrize(
  "sizes", [{"fsdp": 4}, {"data": 2, "tensor": 2}, {"data": 2, "context": 2}]
)
def test_sums_are_the_same_on_any_mesh(small, sizes):
  # case H3
  count = int(np.prod(list(sizes.values())))
  mesh = sharding.make_mesh(sizes, jax.devices()[:count])
  jobs = [make_job(n, seed=n, key=n) for n in (100, 128, 2, 40, 129)]
  expected = dict(
    zip((job.key for job in jobs), on_host(small, jobs), strict=True)
  )
  summer = eval_step.make_summer(testing.tiny_model(CONFIG, mesh=mesh))
  found = list(summer.sum([*jobs, "passes through"]))
  assert found.count("passes through") == 1 and len(found) == 6
  for one in found:
    if one == "passes through":
      continue
    job, sums = one.job, one.sums
    assert len(sums.region_nll_sums) == len(expected[job.key].region_nll_sums)
    for name in ("nll_sum", "gap_sum", "region_nll_sums"):
      np.testing.assert_allclose(
        getattr(sums, name), getattr(expected[job.key], name), rtol=1e-5
      )
  assert summer.usage.tokens == sum(len(job.ids) - 1 for job in jobs)


def test_counts_and_key_sum_are_of_the_row_alone(small):
  job = make_job(100)
  batch = eval_step._batch_of([job], 128, 2)
  batch["key"][0, 99:] = True  # Behind the document.
  with jax.set_mesh(small.mesh):
    out = jax.jit(eval_step.make_eval_step(small))(small.params, batch)
  assert out["tokens"].tolist() == [99, 0]
  assert out["key_tokens"].tolist() == [job.key_mask.sum(), 0]
  (expected,) = on_host(small, [job])
  assert out["key_nll"].sum(0)[0] == pytest.approx(
    sum(expected.region_nll_sums), rel=1e-6
  )


def test_no_output_has_an_entry_for_each_target(small):
  length = 512
  batch = eval_step._batch_of([make_job(400)], length, 1)
  with jax.set_mesh(small.mesh):
    shapes = jax.eval_shape(
      eval_step.make_eval_step(small), small.params, batch
    )
  assert {x.shape for x in jax.tree.leaves(shapes)} == {
    (1,), (2, 1), (2, 1, -(-length // 17)),
  }  # fmt: skip


def test_the_first_log_prob_that_is_no_number_is_named(small):
  flat = dict(parameters.flatten(small.params))
  job = make_job(60)
  token = int(job.ids[20])
  params = jax.tree.map(lambda x: x, small.params)
  embedding = flat["embedding"]
  value = embedding[...].at[token].set(jnp.nan)
  params["embedding"] = embedding.replace(value)
  broken = dataclasses.replace(small, params=params)
  (found,) = (one.sums for one in eval_step.make_summer(broken).sum([job]))
  (expected,) = on_host(broken, [job])
  assert found.fault[0] == expected.fault[0] < 20
  assert np.isnan(found.fault[1])
