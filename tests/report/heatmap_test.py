"""The heat map's markup: nothing lost, nothing executed, everything counted."""

import json
import re
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import manifests

from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.key_tokens.record import make_key_tokens
from longctx_jax.report import heatmap
from longctx_jax.text import corpus


class Reader(HTMLParser):
  """Collects text, and the tag and class of every token element."""

  def __init__(self, markup):
    super().__init__()
    self.text, self.tokens, self.tags = "", [], set()
    self.feed(markup)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.tags.add(tag)
    if tag in "ib":
      self.tokens.append((tag, dict(attrs).get("class", "")))

  def handle_data(self, data):
    self.text += data


def make_document(text, n_unscored=4, n_first=3, seed=0):
  """One token for each character but the first."""
  n = len(text) - 1
  rng = np.random.default_rng(seed)
  long = -rng.exponential(1, n)
  short = long - rng.normal(1, 2, n)
  short[n_unscored : n_unscored + n_first] = long[
    n_unscored : n_unscored + n_first
  ]
  short[:n_unscored] = np.nan
  start = np.arange(1, n + 1)
  return {
    "doc_id": "d", "text": text, "offsets": np.stack([start, start + 1], 1),
    "long_log_probs": long, "short_log_probs": short,
    "key_mask": (long - short > 2) & (long > -2),
  }  # fmt: skip


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=9, max_size=60))
def test_the_text_survives_and_every_target_is_one_element(text):
  document = make_document(text)
  page = heatmap.build_heatmap(document)
  markup = page.unscored + page.first_window + page.scored
  reader = Reader(markup)
  shown = "".join(
    chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else c for c in text
  )
  assert unescape(re.sub("<[^>]*>", "", markup)) == shown
  assert len(reader.tokens) == len(text) - 1 == page.n_targets
  assert reader.tags <= {"i", "b", "u"}
  keys = [tag == "b" for tag, _ in reader.tokens]
  assert keys == document["key_mask"].tolist()


def test_a_script_in_a_document_stays_text():
  document = make_document('x<script>alert("1")</script>&amp; y')
  markup = heatmap.build_heatmap(document).scored
  assert Reader(markup).tags <= {"i", "b", "u"}
  assert "&lt;" in markup and "&amp;" in markup


def test_levels_follow_the_edges_and_unscored_is_its_own():
  text = "abcdefghijklmn"
  lsd = np.array([np.nan, -9, -3, -1.5, -0.7, -0.3, 0, 0.3, 0.7, 1.5, 3, 9, 2])
  offsets = np.stack([np.arange(1, 14), np.arange(2, 15)], 1)
  spans = heatmap.token_spans(text, offsets, lsd, np.arange(13) == 11)
  found = Reader("".join(spans)).tokens
  classes = ["u", *"abcde", "", *"ghijk", "j"]
  assert [name for _, name in found] == classes
  assert [tag for tag, _ in found] == ["i"] * 11 + ["b", "i"]


def test_tokens_that_share_a_character_show_it_once():
  """Cases A5: four byte tokens of one character, a special, a gap."""
  offsets = np.array([[1, 2], [1, 2], [1, 2], [0, 0], [3, 4]])
  spans = heatmap.token_spans("a🙂 b!", offsets, np.zeros(5), np.ones(5, bool))
  assert spans == [
    "a<b>🙂</b>", "<b></b>", "<b></b>", "<b></b>", " <b>b</b>!",
  ]  # fmt: skip


def test_a_coloured_line_break_carries_a_mark():
  offsets = np.array([[0, 1], [1, 2]])
  spans = heatmap.token_spans(
    "\n\n", offsets, np.array([3.0, 0.0]), np.zeros(2, bool)
  )
  assert spans == ["<i class=j><u></u>\n</i>", "<i>\n</i>"]


def test_the_first_window_is_apart_and_not_eligible():
  """Cases C9: what is 0 by construction is neither key nor counted."""
  document = make_document("abcdefghijklmnopqrst", n_unscored=4, n_first=3)
  page = heatmap.build_heatmap(document)
  assert (page.n_unscored, page.n_first_window) == (4, 3)
  assert [
    len(Reader(m).tokens) for m in (page.unscored, page.first_window)
  ] == [
    4,
    3,
  ]
  assert len(page.lsd) == 12 and (page.lsd != 0).all()
  document["short_log_probs"][7] = document["long_log_probs"][7]
  assert heatmap.build_heatmap(document).n_first_window == 4
  assert heatmap.build_heatmap(document, stride=3).n_first_window == 3


@pytest.mark.parametrize("n_unscored", [0, 13])
def test_all_or_nothing_scored(n_unscored):
  page = heatmap.build_heatmap(
    make_document("abcdefghijklmn", n_unscored=n_unscored, n_first=0)
  )
  assert page.n_unscored == n_unscored
  assert len(page.lsd) == 13 - n_unscored


def test_an_empty_document_has_no_targets():
  document = make_document("a", 0, 0)
  page = heatmap.build_heatmap(document)
  assert (page.n_targets, page.scored, page.data) == (0, "", "[[], []]")


def test_data_are_thousandths_of_a_nat():
  document = make_document("abcdefghijkl")
  long, short = json.loads(heatmap.build_heatmap(document).data)
  np.testing.assert_allclose(
    np.array(long) / 1000, document["long_log_probs"], atol=5.01e-4
  )
  assert short[:4] == [None] * 4 and None not in short[4:]


def test_arrays_must_agree():
  document = make_document("abcdefghijkl") | {"key_mask": np.zeros(3, bool)}
  with pytest.raises(ValueError, match=r"'d'.*\[3, 11\]"):
    heatmap.build_heatmap(document)


def test_the_excerpt_holds_the_dense_passage():
  offsets = np.stack([np.arange(0, 5000, 5), np.arange(5, 5005, 5)], 1)
  key = np.zeros(1000, bool)
  key[[10, 400, 500, 502, 504, 506, 900]] = True
  begin, end = heatmap.densest_excerpt(offsets, key, n_chars=200)
  assert begin == 495 and end == 535
  begin, end = heatmap.densest_excerpt(offsets, key & False, n_chars=200)
  assert (begin, end) == (0, 40)


def test_excerpt_markup_is_a_part():
  document = make_document("abcdefghijkl")
  markup = heatmap.excerpt_markup(document, 2, 5)
  assert Reader(markup).text == "… def"
  assert len(Reader(markup).tokens) == 3


def write_store(folder, texts, *, detail="tokens", n_chars=None):
  """A store in which every k-th character of text k is key, from the 2nd on."""
  manifest = manifests.make(detail=detail, short_len=1, stride=1)
  writer = writer_lib.open_writer(folder / "key_tokens", manifest)
  rows = []
  for k, text in enumerate(texts):
    read = text[:n_chars]
    t = np.arange(1, len(read))
    short = np.where(t % (k + 2), -1.0, -9.0)
    short[:1] = np.nan
    scored = dict(
      offsets=np.stack([t, t + 1], 1),
      long_log_probs=np.where(t % (2 * k + 4), -1.0, -1.5),
      short_log_probs=short,
    )
    rows.append(
      make_key_tokens(
        doc_id=f"d{k}", doc_index=k, text_sha256=corpus.text_sha256(text),
        n_chars=len(read), n_tokens=len(t), n_tokens_full=len(text) - 1,
        n_eligible=max(len(t) - 2, 0), manifest=manifest,
        reason="" if text else "empty",
        **(scored if text else dict.fromkeys(scored)),
      )
    )  # fmt: skip
  writer.write(rows)
  lines = [json.dumps({"id": f"d{k}", "text": x}) for k, x in enumerate(texts)]
  path = folder / "corpus.jsonl"
  path.write_text("\n".join(lines) + "\n")
  return str(path)


def test_documents_come_with_most_key_tokens_first(tmp_path):
  """Matched by id and hash; one that was not scored has no map."""
  texts = ["x" * 20, "é" * 90, "", "🙂" * 60]
  path = write_store(tmp_path, texts, n_chars=50)
  found = heatmap.heatmap_documents(tmp_path, [path], "text", 9)
  assert [d["doc_id"] for d in found] == ["d1", "d0", "d3"]
  assert [int(d["key_mask"].sum()) for d in found] == [16, 9, 9]
  # What was cut off before scoring is not shown.
  assert [d["text"] for d in found] == ["é" * 50, "x" * 20, "🙂" * 50]
  assert heatmap.build_heatmap(found[0]).n_key == 16
  nested = tmp_path / "key_tokens"
  (first,) = heatmap.heatmap_documents(
    nested, [path], "text", 1, thresholds=(2.0, -1.25)
  )
  # Every second key token has a long log-prob of -1.5.
  assert (first["doc_id"], int(first["key_mask"].sum())) == ("d1", 8)


def test_other_texts_have_no_map(tmp_path):
  path = write_store(tmp_path, ["x" * 20, "y" * 20])
  lines = (tmp_path / "corpus.jsonl").read_text()
  (tmp_path / "corpus.jsonl").write_text(lines.replace("yy", "zz"))
  with pytest.raises(ValueError, match=r"\('d1'\) with another text"):
    heatmap.heatmap_documents(tmp_path, [path], "text", 1)


def test_without_texts_or_log_probs_the_log_says_what_to_give(tmp_path, caplog):
  path = write_store(tmp_path, ["x" * 20], detail="keys")
  with caplog.at_level("INFO"):
    assert heatmap.heatmap_documents(tmp_path, [], "text", 3) == []
    assert heatmap.heatmap_documents(tmp_path / "w", [path], "text", 3) == []
    assert heatmap.heatmap_documents(tmp_path, [path], "text", 3) == []
  said = [record.getMessage() for record in caplog.records]
  assert len(said) == 3 and "with --data" in said[0]
  assert "name one with --keys" in said[1]
  assert "score with --detail tokens" in said[2]
