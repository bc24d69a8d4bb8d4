"""How often the 95 % intervals hold the truth, over simulated corpora.

`pytest -s -m slow tests/paper/coverage_test.py` prints the tables of
docs/results.md.
"""

import numpy as np
import pytest
from scipy import stats

from longctx_jax.paper import intervals

CORPORA = 4000
DOCUMENTS = (4, 5, 6, 8, 12, 20, 40)
# Between documents, standard deviation of the mean loss, nats.
EFFECTS = (0.0, 0.2, 0.35)
TRUTH = 1.0

pytestmark = pytest.mark.slow


def simulate(n_documents, effect, *, models=1, seed=0):
  """(loss sums [models, N, D], key tokens [N, D], what regions are drawn for).

  Key tokens of a document are Poisson around a log-normal of mean 20 and
  log-sd 1, so that some have none. Every second key token opens a region. A
  loss is the effect of its document, plus a skewed one of its region, shared
  by all models, plus a skewed one of its own: correlation .5 in a region. The
  second model has an effect of its own on each document, half as large.
  """
  rng = np.random.default_rng(seed)
  shape = (CORPORA + CORPORA // 5, n_documents)
  counts = rng.poisson(rng.lognormal(np.log(20) - 0.5, 1, shape))
  enough = (counts > 0).sum(1) >= min(4, n_documents)
  counts = counts[enough][:CORPORA]
  assert len(counts) == CORPORA
  of_document = rng.normal(0, effect, counts.shape)
  document = np.repeat(np.arange(counts.size), counts.ravel())
  opens = rng.random(document.size) < 0.5
  opens |= np.diff(document, prepend=-1) > 0
  region = np.cumsum(opens) - 1
  of_region = rng.gamma(1, 0.5, region[-1] + 1)[region]
  sums = []
  for model in range(models):
    own = of_document + model * rng.normal(0, effect / 2, counts.shape)
    losses = rng.exponential(TRUTH - 0.5, document.size) + of_region
    by_region = np.bincount(region, weights=losses)
    by_document = np.bincount(document, weights=losses, minlength=counts.size)
    sums.append(by_document.reshape(counts.shape) + own * counts)
  regions = (by_region, np.bincount(region), document[opens], own)
  return np.array(sums), counts, regions


def others(sums, counts):
  """What else was tried: whether each interval holds, [N] by name."""
  n = (counts > 0).sum(1)
  total = counts.sum(1, keepdims=True)
  mean = sums.sum(1, keepdims=True) / total
  moved = (mean * counts - sums) / (total - counts)
  center = mean[:, 0] + moved.sum(1) / n
  error = mean[:, 0] - TRUTH
  t = stats.t.ppf(0.975, n - 1)
  around = (moved**2).sum(1) - n * (center - mean[:, 0]) ** 2
  residual = (sums - mean * counts) / total
  widths = {
    "jackknife": t * np.sqrt((n - 1) / n * (moved**2).sum(1)),
    "around its mean": t * np.sqrt((n - 1) / n * around),
    "normal quantile": 1.96 * np.sqrt((n - 1) / n * (moved**2).sum(1)),
    "ratio estimator": t * np.sqrt(n / (n - 1) * (residual**2).sum(1)),
  }
  found = {name: np.abs(error) <= width for name, width in widths.items()}
  corrected = error - (n - 1) * (center - mean[:, 0])
  found["bias corrected"] = np.abs(corrected) <= widths["around its mean"]
  return found


def bootstrap(sums, counts, *, corpora=1000, resamples=500):
  """Coverage of the percentile bootstrap over documents."""
  rng = np.random.default_rng(1)
  held = 0
  for of_sums, of_counts in zip(sums[:corpora], counts[:corpora], strict=True):
    kept = of_counts > 0
    drawn = rng.integers(kept.sum(), size=(resamples, kept.sum()))
    means = of_sums[kept][drawn].sum(1) / of_counts[kept][drawn].sum(1)
    low, high = np.percentile(means, [2.5, 97.5])
    held += low <= TRUTH <= high
  return held / corpora


def coverage(find, truth, *arrays):
  found = np.array([find(*row) for row in zip(*arrays, strict=True)])
  return np.mean((found[:, 0] <= truth) & (truth <= found[:, 1]))


@pytest.mark.parametrize("effect", EFFECTS)
def test_intervals_over_documents_hold_what_they_promise(effect):
  """At least .90 of the time from 4 documents, .92 from 8."""
  lines = []
  for n_documents in DOCUMENTS:
    (sums,), counts, _ = simulate(n_documents, effect)
    chosen = coverage(intervals.jackknife_ci95, np.exp(TRUTH), sums, counts)
    shares = {"chosen": chosen}
    shares |= {k: held.mean() for k, held in others(sums, counts).items()}
    shares["bootstrap"] = bootstrap(sums, counts)
    if not lines:
      lines = ["", f"| {effect:g} | " + " | ".join(shares) + " |"]
    cells = " | ".join(f"{share:.3f}" for share in shares.values())
    lines.append(f"| {n_documents} | {cells} |")
    assert chosen >= (0.92 if n_documents >= 8 else 0.90)
    assert chosen <= 0.97
  print("\n".join(lines))


@pytest.mark.parametrize("effect", EFFECTS)
def test_paired_intervals_hold_what_they_promise(effect):
  shares = []
  for n_documents in DOCUMENTS:
    (base, model), counts, _ = simulate(n_documents, effect, models=2)
    model = model + 0.1 * counts
    shares.append(
      coverage(
        intervals.paired_difference_ci95, 0.1, model, counts, base, counts
      )
    )
    assert 0.97 >= shares[-1] >= (0.92 if n_documents >= 8 else 0.90)
  print(f"\n| {effect:g} | " + " | ".join(f"{s:.3f}" for s in shares) + " |")


@pytest.mark.parametrize("n_documents", [1, 2, 3])
def test_region_intervals_hold_for_these_texts(n_documents):
  """Drawn anew are the regions, of the same texts with as many key tokens."""
  _, counts, (sums, sizes, document, effects) = simulate(n_documents, 0.35)
  owner = document // n_documents
  sums = sums + effects.ravel()[document] * sizes
  means = TRUTH + (effects * counts).sum(1) / np.maximum(counts.sum(1), 1)
  ends = np.searchsorted(owner, np.arange(CORPORA + 1))
  held = []
  for i, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
    part = [range(start, end)] if end > start else []
    interval, label = intervals.longppl_ci95(
      [sums[p] for p in part], [sizes[p] for p in part],
      np.arange(len(part)),
    )  # fmt: skip
    if interval is None:
      assert end - start < 10
      continue
    assert label == intervals.THESE_TEXTS_ONLY
    held.append(interval[0] <= np.exp(means[i]) <= interval[1])
  print(f"\n| {n_documents} | {len(held)} | {np.mean(held):.3f} |")
  assert np.mean(held) >= 0.90
