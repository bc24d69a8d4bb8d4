"""The table of the columns says what is written, no more and no less."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import manifests, stores
from support.command_line import ROOT

from longctx_jax.key_tokens import columns
from longctx_jax.paper import document_scores
from longctx_jax.paper.contrast import Thresholds
from longctx_jax.paper.windows import Windows


def written(folder):
  """Schema of a store whose documents have all scores."""
  rng = np.random.default_rng(0)
  long, short = -rng.exponential(1.0, (2, 40)).astype(np.float32)
  scores = document_scores.document_scores(
    np.arange(41),
    long,
    short,
    long - short > 1.0,
    prefix_len=0,
    windows=Windows(4, 2),
    thresholds=Thresholds(1.0, -9.0),
  )
  row = stores.record(
    0, long_log_probs=long, short_log_probs=short, scores=scores, columns={}
  )
  stores.write(folder, [row])
  (path,) = folder.glob("*.parquet")
  return pq.read_schema(path)


def spelled(type_):
  return f"list<{type_.value_type}>" if pa.types.is_list(type_) else str(type_)


def test_the_table_is_the_schema(tmp_path):
  schema = written(tmp_path / "key_tokens")
  # What is a field of the record is no score once more.
  said = list(dict.fromkeys((c.name, c.type) for c in columns.ALL))
  assert [(f.name, spelled(f.type)) for f in schema] == said


def test_the_page_shows_the_table_with_a_meaning_for_each():
  page = (ROOT / "docs" / "store.md").read_text()
  assert columns.markdown() in page
  assert all(len(column.meaning) > 10 for column in columns.ALL)
  assert "|" not in "".join(column.meaning for column in columns.ALL)


def test_the_formulas_of_the_table_hold(tmp_path):
  """b_t = L_t - S_t, from the lists alone."""
  written(tmp_path / "key_tokens")
  (row,) = pq.read_table(tmp_path / "key_tokens").to_pylist()
  long, short = (np.array(row[f"{n}_log_probs"]) for n in ("long", "short"))
  b = (long - short)[~np.isnan(short)]
  near, mid, far = (part.mean() for part in np.array_split(b, 3))
  expected = dict(
    mean_context_benefit=b.mean(),
    median_context_benefit=np.median(b),
    std_context_benefit=b.std(),
    p75_context_benefit=np.percentile(b, 75),
    p90_context_benefit=np.percentile(b, 90),
    p95_context_benefit=np.percentile(b, 95),
    frac_positive_benefit=(b > 0).mean(),
    context_benefit_near=near,
    context_benefit_mid=mid,
    context_benefit_far=far,
    n_mirror=((short - long > 1.0) & (short > -9.0)).sum(),
  )
  for name, value in expected.items():
    np.testing.assert_allclose(row[name], value, rtol=1e-5, err_msg=name)
  eligible = np.arange(1, 41) >= 6
  n_keys = ((long - short > 1.0) & (long > -9.0) & eligible).sum()
  assert row["n_key_tokens"] == n_keys
  assert row["key_token_ratio"] == n_keys / (41 - 6)
  assert manifests.make().windows == Windows(4, 2)
