"""Documents in shared rows, by their lengths alone; no model."""

import numpy as np
import pytest

from longctx_jax.scoring import rows as rows_lib

ALIGN = 128


def random_lengths(seed, *, count=60, most=3000):
  rng = np.random.default_rng(seed)
  return np.clip(rng.lognormal(5.5, 1.2, count), 2, most).astype(int).tolist()


def log_normal_mix(count=973):
  """Ids of documents as long as GovReport's, whose test split has 973."""
  lengths = np.random.default_rng(0).lognormal(np.log(7500), 0.8, count)
  return np.maximum(lengths, 2).astype(int).tolist()


@pytest.mark.parametrize("align", [ALIGN, 1, 0])
@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize("seed", range(3))
def test_every_document_gets_a_place_of_its_own(seed, rows, align):
  lengths = random_lengths(seed)
  taken = []
  for batch, placed in rows_lib.batches(lengths, rows=rows, align=align):
    taken += placed
    assert batch.length >= max(placed) - 1
    assert {place.row for place in batch.places} <= set(range(rows))
  assert sorted(taken) == sorted(lengths)

  batch = rows_lib.plan(lengths, rows=rows, align=align)
  assert max(lengths) in [lengths[place.index] for place in batch.places]
  held = np.zeros((rows, batch.length + 1), int)
  for place in batch.places:
    end = place.start + lengths[place.index]
    assert end <= batch.length + 1 and place.start % max(align, 1) == 0
    held[place.row, place.start : end] += 1
    assert align or place.start == 0
  assert held.max() == 1


def test_the_order_of_documents_decides_between_equals_alone():
  lengths = random_lengths(0)
  batch = rows_lib.plan(lengths, rows=4, align=ALIGN)
  assert batch == rows_lib.plan(list(lengths), rows=4, align=ALIGN)
  turned = rows_lib.plan(lengths[::-1], rows=4, align=ALIGN)
  assert turned.length == batch.length
  sizes = sorted((lengths[p.index], p.row, p.start) for p in batch.places)
  assert sizes == sorted(
    (lengths[::-1][p.index], p.row, p.start) for p in turned.places
  )


@pytest.mark.parametrize(("ways", "most"), [(8, 0.10), (32, 0.15)])
@pytest.mark.parametrize("align", [128, 256, 512, 1024])
def test_padding_of_a_log_normal_mix_is_small(ways, most, align):
  """Also the compilations: a few lengths of rows."""
  fed, shapes = 0, set()
  lengths = log_normal_mix()
  for batch, _ in rows_lib.batches(lengths, rows=ways, align=align):
    fed += ways * batch.length
    shapes.add(batch.length)
  padding = 1 - (sum(lengths) - len(lengths)) / fed
  assert 0 < padding <= most
  assert len(shapes) <= 7


def test_many_short_documents_fill_longer_rows():
  """Few passes; and the last ones take no longer row than they need."""
  found = list(rows_lib.batches([200] * 980, rows=8, align=ALIGN))
  lengths = [batch.length for batch, _ in found]
  assert lengths == [2048] * 15 + [1024]
  assert [len(placed) for _, placed in found] == [64] * 15 + [20]


def test_rows_are_powers_of_two():
  found = {rows_lib.row_length(n) for n in range(2, 5000)}
  assert found == {128, 256, 512, 1024, 2048, 4096, 8192}
  for n in (2, 129, 130, 257, 258, 4097, 4098):
    assert rows_lib.row_length(n) == min(r for r in found if r >= n - 1)


def test_a_layout_is_that_of_the_documents_alone():
  """300 and 100 ids in row 0, 200 in row 1; the rest is nobody's."""
  lengths = [100, 300, 200]
  places = (
    rows_lib.Place(1, 0, 0),
    rows_lib.Place(0, 0, 384),
    rows_lib.Place(2, 1, 0),
  )
  batch = rows_lib.Batch(512, places)
  layout = rows_lib.lay_out(batch, lengths, rows=3)
  for place in places:
    n = lengths[place.index]
    own = np.s_[place.row, place.start : place.start + n]
    np.testing.assert_array_equal(layout.positions[own], np.arange(n))
    assert (layout.lengths[own] == n).all()
    assert len(set(layout.segment_ids[own].tolist())) == 1
  own = [layout.segment_ids[p.row, p.start] for p in places]
  assert own == [0, 1, 0]
  # What lies behind the last document belongs to none, in no row.
  assert (layout.segment_ids[0, 484:] == 2).all()
  assert (layout.segment_ids[1, 200:] == 1).all()
  assert (layout.segment_ids[2] == 0).all() and (layout.lengths[2] == 1).all()
  assert (layout.positions >= 0).all() and (layout.segment_ids >= 0).all()
