import numpy as np
import pytest

from longctx_jax.scoring import look_ahead


def test_each_look_ahead_is_sorted_and_holds_all(monkeypatch):
  monkeypatch.setattr(look_ahead, "_MOST", 10)
  items = np.random.default_rng(0).integers(0, 50, 95).tolist()
  found = list(look_ahead.longest_first(items, size=lambda n: n))
  for start in range(0, 95, 10):
    part = slice(start, start + 10)
    assert found[part] == sorted(items[part], reverse=True)


def test_equal_ones_keep_their_order():
  items = [("a", 1), ("b", 2), ("c", 1), ("d", 2)]
  found = look_ahead.longest_first(items, size=lambda item: item[1])
  assert "".join(name for name, _ in found) == "bdac"


@pytest.mark.parametrize(("most", "chars"), [(4, 10**6), (10**6, 40)])
def test_no_more_is_held_than_is_allowed(monkeypatch, most, chars):
  monkeypatch.setattr(look_ahead, "_MOST", most)
  monkeypatch.setattr(look_ahead, "_MOST_CHARS", chars)
  read = 0

  def items():
    nonlocal read
    while read < 100:
      read += 1
      yield 10

  for done, _ in enumerate(
    look_ahead.longest_first(items(), size=lambda n: n), start=1
  ):
    assert read - done < 4
  assert read == 100


def test_an_error_comes_after_what_was_read():
  def items():
    yield from (1, 3, 2)
    raise ValueError("line 4 is damaged")

  found = []
  with pytest.raises(ValueError, match="line 4"):
    for item in look_ahead.longest_first(items(), size=lambda n: n):
      found.append(item)
  assert found == [3, 2, 1]
