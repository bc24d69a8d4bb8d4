import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from longctx_jax.paper import spans as spans_lib

# Small coordinates, so that touching, nested and repeated spans are common;
# (a, a) is a token without characters.
PAIRS = st.lists(
  st.tuples(st.integers(0, 12), st.integers(0, 5)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
  ),
  max_size=8,
)
LAW = hypothesis.settings(deadline=None, max_examples=200)


def _characters(pairs):
  return {c for start, end in pairs for c in range(start, end)}


def _project_by_loops(spans, offsets, policy):
  marks = []
  for start, end in offsets:
    key = False
    for span_start, span_end in spans:
      if policy == "contained":
        key |= start < end and span_start <= start and end <= span_end
      else:
        touched = range(start, end) if start < end else [start]
        key |= any(span_start <= c < span_end for c in touched)
    marks.append(key)
  return marks


@pytest.mark.parametrize("policy", ["contained", "overlap"])
@LAW
@hypothesis.given(spans=PAIRS, offsets=PAIRS)
def test_projection_equals_the_double_loop(policy, spans, offsets):
  """Unsorted and overlapping spans lose no token (cases A5, A7)."""
  marks = spans_lib.project(spans, offsets, policy=policy)
  assert marks.dtype == bool
  assert marks.tolist() == _project_by_loops(spans, offsets, policy)


@LAW
@hypothesis.given(spans=PAIRS, offsets=PAIRS, data=st.data())
def test_covered_share_counts_characters(spans, offsets, data):
  mask = data.draw(
    st.lists(st.booleans(), min_size=len(offsets), max_size=len(offsets))
  )
  chosen = [pair for pair, keep in zip(offsets, mask, strict=True) if keep]
  key = _characters(spans)
  share = spans_lib.covered_share(spans, offsets, mask)
  if key:
    assert share == len(key & _characters(chosen)) / len(key)
  else:
    assert share is None


@LAW
@hypothesis.given(spans=PAIRS)
def test_merged_spans_hold_the_same_characters_and_never_touch(spans):
  merged = spans_lib.merge_adjacent(spans)
  assert merged.dtype == np.int64
  assert _characters(merged.tolist()) == _characters(spans)
  assert np.all(merged[:, 0] < merged[:, 1])
  assert np.all(merged[1:, 0] > merged[:-1, 1])


def test_straddling_token_is_key_only_under_overlap():
  """Cases A7."""
  offsets, spans = [(0, 4), (4, 8), (8, 10)], [(3, 5), (8, 10)]
  contained = spans_lib.project(spans, offsets, policy="contained")
  overlap = spans_lib.project(spans, offsets, policy="overlap")
  assert contained.tolist() == [False, False, True]
  assert overlap.tolist() == [True, True, True]


def test_touching_spans_merge_and_a_space_keeps_them_apart():
  """Paper 1.6, item 1."""
  merged = spans_lib.merge_adjacent([(0, 3), (3, 5), (6, 8)])
  assert merged.tolist() == [[0, 5], [6, 8]]


def test_repeated_spans_of_one_character_collapse():
  """Cases A5: the byte-level tokens of one character share its span."""
  merged = spans_lib.merge_adjacent([(1, 2), (1, 2), (2, 3)])
  assert merged.tolist() == [[1, 3]]


def test_all_byte_tokens_of_a_key_character_are_key():
  """Cases A5."""
  offsets = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3)]
  marks = spans_lib.project([(1, 2)], offsets, policy="contained")
  assert marks.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize(
  ("spans", "offsets", "expected"),
  [
    # A token that begins before the span, or ends after it, is dropped.
    ([(2, 6)], [(1, 3), (3, 6)], [False, True]),
    ([(2, 6)], [(2, 4), (4, 7)], [True, False]),
    # It must lie inside one span, not inside two that touch.
    ([(0, 3), (3, 6)], [(0, 3), (2, 4)], [True, False]),
    # A span without the leading space drops the token that includes it.
    ([(5, 10)], [(4, 10)], [False]),
    # The first token can be key: index 0, never -1 (cases A8).
    ([(0, 4)], [(0, 4), (4, 8)], [True, False]),
    # A token without characters at the start of a span is not key.
    ([(4, 8)], [(4, 4), (4, 8)], [False, True]),
    # Unsorted spans lose nothing.
    ([(8, 10), (0, 4)], [(0, 4), (8, 10)], [True, True]),
  ],
)
def test_reference_toy_cases(spans, offsets, expected):
  """Paper 1.6, items 2 to 6."""
  marks = spans_lib.project(spans, offsets, policy="contained")
  assert marks.tolist() == expected


def test_unknown_policy_is_refused():
  with pytest.raises(ValueError, match="'inside'.*contained, overlap"):
    spans_lib.project([(0, 1)], [(0, 1)], policy="inside")


def test_wrong_shape_is_refused():
  with pytest.raises(ValueError, match=r"\(3,\)"):
    spans_lib.merge_adjacent([1, 2, 3])


@LAW
@hypothesis.given(spans=PAIRS)
def test_slice_files_survive_a_round_trip(tmp_path_factory, spans):
  path = tmp_path_factory.getbasetemp() / "slice_0.txt"
  spans = [pair for pair in spans if pair[0] < pair[1]]
  spans_lib.write_slices(path, spans)
  read = spans_lib.read_slices(path)
  assert read.dtype == np.int64
  assert read.shape == (len(spans), 2)
  assert read.tolist() == [list(pair) for pair in spans]


def test_slice_file_has_the_reference_form(tmp_path):
  path = tmp_path / "slice_0.txt"
  spans_lib.write_slices(path, np.array([[40349, 40350], [40351, 40358]]))
  assert path.read_bytes() == b"[40349, 40350];[40351, 40358]"


def test_empty_slice_file_holds_no_spans(tmp_path):
  path = tmp_path / "slice_9.txt"
  path.write_bytes(b"")
  assert spans_lib.read_slices(path).shape == (0, 2)
  spans_lib.write_slices(path, [])
  assert path.read_bytes() == b""


@pytest.mark.parametrize(
  ("content", "position"),
  [
    (b"[1, 2];[3, 4]poetry new", 7),
    (b"[1, 2];poetry new;[3, 4]", 7),
    (b"[1, 2];", 7),
    (b"[1, 2];;[3, 4]", 7),
    (b"[1, 2];[4, 3]", 7),
    (b"[1, 2];[3, 3]", 7),
    (b"[-1, 2]", 0),
    (b"[1,2]", 0),
    (b"[1, 2]\n", 0),
    (b"(1, 2)", 0),
    (b"[1, 2.5]", 0),
    (b"[1, 99999999999999999999]", 0),
    ("[1, \u0662]".encode(), 0),
    (b"[1, 2]\xff", 0),
    (b"None", 0),
  ],
)
def test_junk_in_a_slice_file_is_named(tmp_path, content, position):
  """Cases J6."""
  path = tmp_path / "slice_2.txt"
  path.write_bytes(content)
  with pytest.raises(ValueError, match=rf"slice_2.txt, character {position}: "):
    spans_lib.read_slices(path)


def test_code_in_a_slice_file_is_never_run(tmp_path):
  """Cases J6: the reference reads these files with `eval`."""
  witness, path = tmp_path / "witness", tmp_path / "slice_0.txt"
  path.write_text(f"[open({str(witness)!r}, 'w').write('x'), 2]")
  with pytest.raises(ValueError, match="is no span"):
    spans_lib.read_slices(path)
  assert not witness.exists()


@pytest.mark.parametrize("span", [(-1, 2), (3, 3), (4, 3)])
def test_unreadable_spans_are_not_written(tmp_path, span):
  with pytest.raises(ValueError, match=rf"\[{span[0]}, {span[1]}\]"):
    spans_lib.write_slices(tmp_path / "slice_0.txt", [(0, 1), span])


@pytest.mark.golden
@pytest.mark.parametrize(
  ("evaluator", "n_spans", "n_characters"),
  [
    ("Qwen2-72B-Instruct", 2_705, 19_511),
    ("Mistral-Large-Instruct-2407", 2_411, 14_874),
    ("Meta-Llama-3.1-8B", 2_965, 21_575),
  ],
)
def test_published_slices_have_the_known_totals(
  golden_dir, evaluator, n_spans, n_characters
):
  """Paper.md 3.3: 50 files an evaluator, sorted, disjoint, never touching."""
  folder = golden_dir / "key_text" / evaluator
  slices = [spans_lib.read_slices(folder / f"slice_{i}.txt") for i in range(50)]
  pooled = np.concatenate(slices)
  assert len(pooled) == n_spans
  assert np.sum(pooled[:, 1] - pooled[:, 0]) == n_characters
  for spans in slices:
    np.testing.assert_array_equal(spans, spans_lib.merge_adjacent(spans))
