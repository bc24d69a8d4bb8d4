import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import definition, train_batches
from support.train_batches import keep_gradient, make_documents

from longctx_jax import testing
from longctx_jax.model import parameters, sharding
from longctx_jax.paper.windows import Windows
from longctx_jax.scoring import scorer as scorer_lib
from longctx_jax.training import context, optimizer, program
from longctx_jax.training import state as state_lib
from longctx_jax.training import step as step_lib
from longctx_jax.training.losses import LossConfig

K, D = 8, 3
LIVE = LossConfig(weights="live", short_len=K, stride=D, chunk=5)
CE = dataclasses.replace(LIVE, weights="none")
STORED = dataclasses.replace(LIVE, weights="stored")
# A program of a test runs for milliseconds: it should compile fast.
FAST = {"xla_backend_optimization_level": 0}
# Sharded over tensor = 2, too.
CONFIG = testing.tiny_config(vocab_size=264)


make_batch = functools.partial(train_batches.make_batch, short_len=K, stride=D)


@functools.cache
def tiny(config=CONFIG, mesh_sizes=(("data", 1),)):
  count = np.prod([size for _, size in mesh_sizes])
  mesh = sharding.make_mesh(dict(mesh_sizes), jax.devices()[:count])
  return testing.tiny_model(config, mesh=mesh)


@functools.cache
def make_step(model, loss, **options):
  """(initial state, compiled step)."""
  step = step_lib.make_train_step(
    model, keep_gradient(), loss, compute_dtype=jnp.float32, **options
  )
  state = state_lib.create(model, keep_gradient())
  return state, jax.jit(step, compiler_options=FAST)


def run(model, loss, batch, *, backend="plain", **options):
  """(mean loss, gradients by name, sums) of one step."""
  state, step = make_step(model, loss, backend=backend, **options)
  with jax.set_mesh(model.mesh):
    batch = program.place_batch(batch, model.mesh)
    state, sums = step(state, batch)
  grads = {
    name: np.asarray(value[...])
    for name, value in parameters.flatten(state.opt_state).items()
  }
  sums = {name: float(value) for name, value in sums.items()}
  return sums["weighted_nll"] / max(sums["targets"], 1), grads, sums


def check_equal(got, expected, tolerance=1e-5):
  """Loss, gradients and counts."""
  np.testing.assert_allclose(got[0], expected[0], rtol=tolerance)
  for name, value in expected[1].items():
    np.testing.assert_allclose(
      got[1][name],
      value,
      rtol=0,
      atol=tolerance * np.abs(value).max(),
      err_msg=name,
    )
  for name in ("targets", "scored", "clipped", "key", "nonfinite"):
    assert got[2][name] == expected[2][name], name


def definition_of_longce(model, document, *, gamma=5.0, floor=0.0):
  """(sum of w * nll, weights) over a document, one window per target block."""
  long = definition.log_probs(model, document)
  short = definition.short_log_probs(model, document, short_len=K, stride=D)
  gain = np.where(np.isnan(short), 0.0, long - short)
  weights = np.minimum(np.exp(gain), gamma)
  weights = np.where(np.isnan(short), 1.0, np.maximum(weights, floor))
  return -(weights * long).sum(), weights


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_the_loss_is_that_of_the_definition(rng, floor):
  # cases I9: both rows count, by their targets
  model = tiny()
  documents = make_documents(rng, 33, 21)
  loss = dataclasses.replace(LIVE, weight_floor=floor)
  batch = make_batch([[one] for one in documents], seq_len=32)
  mean, _, sums = run(model, loss, batch)
  parts = [
    definition_of_longce(model, document, floor=floor) for document in documents
  ]
  weights = np.concatenate([part[1] for part in parts])
  assert (weights > 1.2).sum() > 3 and (weights == 5).sum()
  assert ((weights < 0.8).sum() > 3) == (floor == 0)
  count = sum(len(document) - 1 for document in documents)
  assert sums["targets"] == count
  np.testing.assert_allclose(
    mean, sum(part[0] for part in parts) / count, rtol=1e-5
  )
  np.testing.assert_allclose(sums["weight"], weights.sum(), rtol=1e-4)
  assert sums["scored"] == sum(len(one) - K - D for one in documents)
  assert sums["clipped"] == (weights == 5).sum()


def test_cross_entropy_is_longce_with_weight_one(rng):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  clipped = dataclasses.replace(LIVE, weight_floor=1.0, gamma=1.0)
  a, b = (run(tiny(), loss, batch) for loss in (CE, clipped))
  np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
  assert a[2]["nll"] == pytest.approx(a[2]["weighted_nll"], rel=1e-6)
  assert a[2]["weight"] == a[2]["targets"] and a[2]["key"] == 0


def test_weights_of_one_from_a_store_are_cross_entropy(rng):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  ones = batch | {"weights": np.ones((2, 32), np.float32)}
  check_equal(run(tiny(), STORED, ones), run(tiny(), CE, batch), 1e-6)


def test_stored_weights_multiply_each_targets_gradient(rng):
  # cases I8: sum of w_i * gradient of l_i, over n
  batch = make_batch([[one] for one in make_documents(rng, 12)], seq_len=11)
  weights = np.array([[0, 0.3, 1, 5, 0, 2.5, 1, 0.1, 5, 1, 0]], np.float32)
  mean, grads, sums = run(tiny(), STORED, batch | {"weights": weights})
  assert (sums["weight"], sums["key"]) == (pytest.approx(weights.sum()), 2)
  expected, total = 0.0, {name: 0.0 for name in grads}
  for t in np.flatnonzero(weights[0]):
    alone = batch | {"loss_mask": np.eye(11, dtype=np.float32)[[t]]}
    loss, gradient, _ = run(tiny(), CE, alone)
    expected += weights[0, t] * loss / 11
    for name, value in gradient.items():
      total[name] += weights[0, t] * value / 11
  check_equal((mean, grads, sums), (expected, total, sums))


def pack(documents, **changes):
  """One row of documents of 25, 19 and 6 ids: the last is shorter than K."""
  return make_batch(
    [documents], seq_len=53, packed=True, num_windows=12, **changes
  )


@pytest.mark.parametrize(
  ("loss", "dynamic"),
  [(LIVE, False), (LIVE, True), (CE, False)],
  ids=["longce", "longce, rope by length", "ce"],
)
def test_packed_documents_train_as_separate_ones(rng, loss, dynamic):
  # cases I4, I5, I6
  config = CONFIG
  if dynamic:
    config = context.rope_override(
      config, rope_type="dynamic", factor=2.0, max_position=16
    )
  model = tiny(config)
  documents = make_documents(rng, 25, 19, 6)
  apart = make_batch([[one] for one in documents], seq_len=24)
  packed = pack(documents)
  assert packed["loss_mask"].sum() == 24 + 18 + 5
  check_equal(run(model, loss, packed), run(model, loss, apart), 2e-5)


def test_a_document_does_not_feel_another_in_its_row(rng):
  # cases I4, I6
  first, other, second, third = make_documents(rng, 25, 25, 19, 6)
  results = []
  for before in (first, other):
    batch = pack([before, second, third])
    batch["loss_mask"] = batch["loss_mask"] * (np.arange(53) >= 25)
    results.append(run(tiny(), LIVE, batch))
  assert results[0][0] == results[1][0]
  assert results[0][2]["scored"] == 19 - K - D


@pytest.mark.parametrize("packed", [False, True])
def test_what_stands_in_the_padding_changes_nothing(rng, packed):
  # cases I1, I3
  documents = make_documents(rng, 25, 19, 6)
  if packed:
    zeros, others = (pack(documents, pad=pad) for pad in (0, 77))
  else:
    rows = [[one] for one in documents]
    zeros, others = (make_batch(rows, seq_len=24, pad=p) for p in (0, 77))
  assert (zeros["inputs"] != others["inputs"]).sum() > 2
  a, b = (run(tiny(), LIVE, batch) for batch in (zeros, others))
  assert a[2] == b[2]
  jax.tree.map(np.testing.assert_array_equal, a[1], b[1])


def test_accumulation_pools_what_parts_of_unequal_size_sum_to(rng):
  # cases I7, H6
  documents = make_documents(rng, 33, 5, 29, 12)
  batch = make_batch([[one] for one in documents], seq_len=32)
  expected = run(tiny(), LIVE, batch)
  got = run(tiny(), LIVE, batch, accumulate=4)
  check_equal(got, expected, 3e-6)
  np.testing.assert_allclose(
    got[2]["grad_norm"], expected[2]["grad_norm"], rtol=1e-5
  )
  apart = []
  for row in np.eye(4, dtype=np.float32):
    alone = batch["loss_mask"] * row[:, None]
    apart.append(run(tiny(), LIVE, batch | {"loss_mask": alone})[0])
  assert abs(np.mean(apart) / expected[0] - 1) > 1e-2


@pytest.mark.parametrize(
  "sizes",
  [
    (("data", 8),),
    (("fsdp", 8),),
    (("data", 2), ("fsdp", 2), ("tensor", 2)),
  ],
  ids=str,
)
def test_every_mesh_has_the_loss_and_gradients_of_one_device(rng, sizes):
  # cases H3, H7, I7
  assert jax.device_count() == 8
  lengths = (33, 5, 29, 12, 32, 20, 9, 25) * 2
  batch = make_batch(
    [[one] for one in make_documents(rng, *lengths)], seq_len=32
  )
  options = dict(accumulate=2, backend="blockwise")
  expected = run(tiny(), LIVE, batch, **options)
  check_equal(run(tiny(CONFIG, sizes), LIVE, batch, **options), expected)


@pytest.mark.parametrize(
  ("loss", "sizes", "packed"),
  [
    (LIVE, (("context", 2),), False),
    (LIVE, (("context", 4),), True),
    (LIVE, (("data", 2), ("fsdp", 2), ("context", 2)), True),
    (CE, (("fsdp", 2), ("tensor", 2), ("context", 2)), False),
  ],
  ids=str,
)
def test_split_rows_have_the_loss_and_gradients_of_one_device(
  rng, loss, sizes, packed
):
  # cases H3, H8, I8
  documents = make_documents(rng, 19, 14, 33, 30, 20, 13, 5)
  rows = [[one] for one in documents[:4]]
  if packed:
    rows = [documents[:2], documents[2:3], documents[3:4], documents[4:6]]
  batch = make_batch(rows, seq_len=32, packed=packed)
  loss = dataclasses.replace(loss, window_batch=2)
  options = dict(backend="blockwise")
  expected = run(tiny(), loss, batch, **options)
  check_equal(run(tiny(CONFIG, sizes), loss, batch, **options), expected)


@pytest.mark.parametrize("window_batch", [5, 100])
def test_windows_pool_in_any_number(rng, window_batch):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  loss = dataclasses.replace(LIVE, window_batch=window_batch)
  check_equal(run(tiny(), loss, batch), run(tiny(), LIVE, batch), 3e-6)


def test_the_short_pass_has_the_scorers_values(rng):
  """Also where RoPE tables depend on the length of the window."""
  config = context.rope_override(
    CONFIG, rope_type="dynamic", factor=4.0, max_position=4
  )
  model = tiny(config)
  documents = make_documents(rng, 33, 21)
  batch = make_batch([[one] for one in documents], seq_len=32)
  short, mask = jax.jit(
    functools.partial(
      step_lib.short_pass, model=model, loss=LIVE, backend="plain"
    ),
    compiler_options=FAST,
  )(model.params, batch)
  scorer = scorer_lib.make_scorer(model, Windows(K, D))
  jobs = [scorer_lib.Job(i, document) for i, document in enumerate(documents)]
  for scores in scorer.score(jobs):
    row, count = scores.job.key, len(scores.short)
    scored = np.arange(count) >= K + D - 1
    np.testing.assert_array_equal(mask[row, :count], scored)
    np.testing.assert_allclose(
      short[row, :count][scored], scores.short[scored], atol=2e-5
    )
    assert not mask[row, count:].any()


def test_without_windows_every_weight_is_one(rng):
  batch = make_batch(
    [[one] for one in make_documents(rng, K, K)], seq_len=K - 1
  )
  none = {
    name: batch[name][:, :0]
    for name in ("window_start", "score_start", "score_end")
  }
  expected = run(tiny(), CE, batch)
  check_equal(run(tiny(), LIVE, batch | none), expected, 1e-6)
  # Windows of padding score nothing, not even the first target.
  check_equal(run(tiny(), LIVE, batch), expected, 1e-6)


@pytest.mark.parametrize(
  ("change", "same"),
  [
    ({"gamma": 2.0}, False),
    ({"weight_floor": 1.0}, False),
    ({"chunk": 2, "alpha": 0.5, "beta": -9.0}, True),
  ],
  ids=str,
)
def test_each_field_does_what_it_says(rng, change, same):
  # cases I9; short_len and stride are the batch's windows
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  a, b = (
    run(tiny(), loss, batch)
    for loss in (LIVE, dataclasses.replace(LIVE, **change))
  )
  assert (abs(a[0] / b[0] - 1) < 1e-6) == same
  if "alpha" in change:
    assert a[2]["key"] < b[2]["key"] and b[2]["key_nll"] > 0


def test_short_len_and_stride_decide_what_is_seen(rng):
  # cases I9: the same windows in the batch, read with other sizes
  (document,) = make_documents(rng, 33)
  batch = make_batch([[document]], seq_len=32)
  base = run(tiny(), LIVE, batch)
  longer = dataclasses.replace(LIVE, short_len=K + 4)
  early = {"window_start": np.maximum(batch["window_start"] - 4, 0)}
  assert abs(run(tiny(), longer, batch | early)[0] / base[0] - 1) > 1e-4


@pytest.mark.parametrize(
  ("backend", "remat"),
  [("plain", "none"), ("blockwise", "attention"), ("blockwise", "block")],
)
def test_backend_and_remat_change_no_gradient(rng, backend, remat):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  got = run(tiny(), LIVE, batch, backend=backend, remat=remat)
  check_equal(got, run(tiny(), LIVE, batch))


def test_bfloat16_is_for_the_passes_only(rng):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  model = tiny()
  config = optimizer.OptimizerConfig(learning_rate=1e-5, warmup_steps=0)
  adam = optimizer.make_optimizer(config, 3)
  step = step_lib.make_train_step(
    model, adam, LIVE, compute_dtype=jnp.bfloat16, accumulate=2
  )
  before = state_lib.create(model, adam)
  after, sums = jax.jit(step, compiler_options=FAST)(before, batch)
  assert {x.dtype for x in jax.tree.leaves(after)} == {
    jnp.dtype("float32"), jnp.dtype("int32")
  }  # fmt: skip
  assert {x.dtype for x in sums.values()} == {jnp.dtype("float32")}
  # A step of 1e-5 would vanish in bfloat16.
  moved = jax.tree.map(
    lambda a, b: float((a != b).mean()), before.params, after.params
  )
  assert min(jax.tree.leaves(moved)) > 0.9
  wide = run(model, LIVE, batch)
  narrow = float(sums["weighted_nll"] / sums["targets"])
  assert 1e-6 < abs(narrow / wide[0] - 1) < 2e-2
  assert int(after.step) == 1


def test_clipping_clips(rng):
  # cases I9
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  model = tiny()
  _, grads, sums = run(model, CE, batch)
  norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
  np.testing.assert_allclose(sums["grad_norm"], norm, rtol=1e-5)
  limit = float(norm) / 10
  for clip_norm, kept in ((limit, limit), (0.0, norm)):
    config = optimizer.OptimizerConfig(
      learning_rate=1.0, b1=0.0, warmup_steps=0, clip_norm=clip_norm
    )
    adam = optimizer.make_optimizer(config, 10)
    step = step_lib.make_train_step(model, adam, CE, compute_dtype=jnp.float32)
    state = state_lib.create(model, adam)
    after, sums = jax.jit(step, compiler_options=FAST)(state, batch)
    np.testing.assert_allclose(sums["grad_norm"], norm, rtol=1e-5)
    # Without memory, Adam's mean is the gradient that it was given.
    mean = optax.tree.get(after.opt_state, "mu")
    np.testing.assert_allclose(optax.tree.norm(mean), kept, rtol=1e-5)


def test_a_nonfinite_step_says_so(rng):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  weights = np.ones((2, 32), np.float32)
  weights[1, 3] = np.inf
  assert run(tiny(), STORED, batch | {"weights": weights})[2]["nonfinite"] == 1
  weights[1, 3] = 2
  assert run(tiny(), STORED, batch | {"weights": weights})[2]["nonfinite"] == 0


def test_a_batch_without_targets_moves_nothing(rng):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  batch["loss_mask"] *= 0
  _, grads, sums = run(tiny(), LIVE, batch)
  assert sums["nonfinite"] == 0
  assert all((g == 0).all() for g in grads.values())


def test_a_step_at_32k_tokens_of_a_256k_vocabulary_fits_into_2_gib():
  # cases E1: all logits would be 33.5 GB
  config = testing.tiny_config(vocab_size=256_000)
  graphdef, params = parameters.abstract_model(config, jnp.dtype("float32"))
  model = dataclasses.replace(tiny(), graphdef=graphdef, config=config)
  loss = LossConfig(weights="live", short_len=4096, stride=1024)
  step = step_lib.make_train_step(
    model, keep_gradient(), loss, compute_dtype=jnp.float32
  )
  shapes = {"inputs": (1, 32768), "targets": (1, 32768)} | {
    name: (1, 27) for name in ("window_start", "score_start", "score_end")
  }
  batch = {
    name: jax.ShapeDtypeStruct(shape, jnp.int32)
    for name, shape in shapes.items()
  } | {"loss_mask": jax.ShapeDtypeStruct((1, 32768), jnp.float32)}
  state = state_lib.TrainState(
    jax.ShapeDtypeStruct((), jnp.int32), params, params
  )
  compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 2 * 2**30


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(weights="lively"), "weights='lively' is not one of none, live"),
    (dict(stride=9), "stride=9 and short_len=8"),
    (dict(gamma=0.0), "gamma=0.0"),
    (dict(weight_floor=6.0), "weight_floor=6.0: weights need"),
    (dict(weights="none", weight_floor=1.0), "only live weights"),
    (dict(chunk=0), "chunk=0"),
    (dict(window_batch=-1), "window_batch=-1"),
  ],
)
def test_a_wrong_loss_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(LIVE, **changes)


def trace(model, loss, batch, **options):
  step = step_lib.make_train_step(
    model, keep_gradient(), loss, compute_dtype=jnp.float32, **options
  )
  state = state_lib.create(model, keep_gradient())
  return jax.eval_shape(step, state, batch)


def test_a_wrong_batch_is_refused(rng):
  batch = make_batch([[one] for one in make_documents(rng, 33, 21)], seq_len=32)
  with pytest.raises(ValueError, match="2 rows .* accumulate=3"):
    trace(tiny(), CE, batch, accumulate=3)
  with pytest.raises(ValueError, match="2 rows .* 8 shards"):
    trace(tiny(CONFIG, (("fsdp", 8),)), CE, batch)
  long = make_batch([[one] for one in make_documents(rng, 33)], seq_len=36)
  with pytest.raises(ValueError, match="'context' .*=36 .* take 32 or 48"):
    trace(tiny(CONFIG, (("context", 8),)), CE, long)
  with pytest.raises(ValueError, match=r"\['weights'\]"):
    trace(tiny(), STORED, batch)
  del batch["window_start"]
  with pytest.raises(ValueError, match=r"\['window_start'\]"):
    trace(tiny(), LIVE, batch)
  with pytest.raises(ValueError, match="jax.set_mesh"):
    trace(tiny(CONFIG, (("tensor", 2),)), CE, batch)
