"""Two models on key spans: by characters, whatever their tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longctx_jax.evaluation.log_probs import Targets
from longctx_jax.report import difference, heatmap

TEXT = "the quick brown fox jumps over it"


def targets(cuts, log_probs):
  edges = [0, *cuts, len(TEXT)]
  offsets = np.stack([edges[:-1], edges[1:]], axis=1)
  return Targets("d", "", offsets, np.array(log_probs, float))


def slow(spans, one):
  """Character by character."""
  found = []
  for start, end in spans:
    total, known = 0.0, 0
    for (a, b), log_prob in zip(one.offsets, one.log_probs, strict=True):
      shared = max(0, min(b, end) - max(a, start))
      total += log_prob * shared / (b - a)
      known += shared
    found.append(total if known == end - start else np.nan)
  return found


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_span_gets_its_share_of_each_token(data):
  places = st.integers(1, len(TEXT) - 1)
  cuts = sorted(data.draw(st.sets(places, max_size=8)))
  values = data.draw(
    st.lists(st.floats(-9, 0), min_size=len(cuts) + 1, max_size=len(cuts) + 1)
  )
  one = targets(cuts, values)
  spans = [sorted(data.draw(st.tuples(places, places))) for _ in range(3)]
  spans = [(a, b + 1) for a, b in spans]
  found = difference.span_log_probs(np.array(spans), one, len(TEXT))
  assert found == pytest.approx(slow(spans, one), nan_ok=True, abs=1e-9)


def test_the_same_model_under_two_tokenizers_differs_nowhere():
  """-0.5 nats a character, in tokens of any size."""
  one, other = (
    targets(cuts, -0.5 * np.diff([0, *cuts, len(TEXT)]))
    for cuts in ([3, 9], [1, 2, 4, 20, 21])
  )
  spans = np.array([[0, 3], [4, 9], [10, 30]])
  shown = {"doc_id": "d", "text": TEXT}
  found = difference.document(shown, spans, one, other)
  gaps = found["long_log_probs"] - found["short_log_probs"]
  assert gaps == pytest.approx(np.zeros(3), abs=1e-9)


def test_what_a_model_did_not_read_is_left_out_and_the_map_is_signed():
  first = targets([3, 9], [-1.0, -6.0, -2.0])
  second = Targets("d", "", first.offsets[:2], np.array([-4.0, -3.0]))
  shown = {"doc_id": "d", "text": TEXT}
  spans = np.array([[0, 3], [3, 9], [10, 12]])
  found = difference.document(shown, spans, first, second)
  assert found["offsets"].tolist() == [[0, 3], [3, 9]]
  assert difference.summary([found]) == {"spans": 2, "better": 1, "mean": 0.0}
  drawn = heatmap.build_heatmap(found)
  markup = drawn.unscored + drawn.first_window + drawn.scored
  # +3 nats is warm, -3 cold; the text around them is whole.
  assert "<b class=j>the</b>" in markup and "<b class=b> quick</b>" in markup
  assert markup.endswith("brown fox jumps over it")


def test_without_spans_there_is_nothing_to_draw():
  one = targets([3], [-1.0, -1.0])
  shown = {"doc_id": "d", "text": TEXT}
  found = difference.document(shown, np.zeros((0, 2), int), one, one)
  assert difference.summary([found])["spans"] == 0
  assert difference.summary([]) == {"spans": 0, "better": 0, "mean": 0.0}
