"""Loading, correlating and rendering: from a workdir to one HTML file."""

from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

from longctx_jax.evaluation import files
from longctx_jax.evaluation.documents import DocumentResult
from longctx_jax.evaluation.results import ModelResult
from longctx_jax.report import correlation
from longctx_jax.report import page as page_lib
from longctx_jax.report.alike import NotComparable

KEYS = {"evaluator": "E", "short_len": 64, "stride": 16}


def make_result(name, longppl, ppl, **fields):
  interval = None if longppl is None else (longppl / 1.1, longppl * 1.1)
  return ModelResult(
    **dict(
      name=name, protocol="paper", n_documents=9, keys=KEYS, longppl=longppl,
      longppl_ci95=interval, ppl=ppl, n_key_tokens=310, n_key_regions=45,
      key_coverage=0.95, top5_documents_share=0.6,
    )
    | fields
  )  # fmt: skip


def make_document(n=4000, doc_id="d", extra=""):
  """n targets of about four characters; 1024 unscored, 256 by construction."""
  rng = np.random.default_rng(0)
  words = rng.choice([" the", " a", " model", "ling", "\n", " é"], n + 1)
  ends = np.cumsum([len(word) for word in words])
  long = -rng.exponential(0.8, n)
  short = long - rng.normal(0, 0.3, n) - (rng.random(n) < 0.02) * 4
  short[:1024] = np.nan
  short[1024:1280] = long[1024:1280]
  return {
    "doc_id": doc_id, "text": "".join(words) + extra,
    "offsets": np.stack([ends[:-1], ends[1:]], 1), "long_log_probs": long,
    "short_log_probs": short, "key_mask": (long - short > 2) & (long > -2),
  }  # fmt: skip


class Page(HTMLParser):
  """Tags, attributes and the text outside scripts and styles."""

  def __init__(self, path):
    super().__init__()
    self.source = path.read_text(encoding="utf-8")
    self.tags, self.attributes, self.text, self.inside = [], [], "", ""
    self.feed(self.source)
    self.close()

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.attributes += attrs
    if tag in ("script", "style"):
      self.inside = tag

  def handle_endtag(self, tag):
    if tag == self.inside:
      self.inside = ""

  def handle_data(self, data):
    if not self.inside:
      self.text += data


def test_load_results_reads_numbers_and_documents(tmp_path):
  document = DocumentResult("x", 0, "", 3, 1.5)
  second = make_result("org--b", 2.0, 4.0, documents=(document,))
  first = make_result("a", 2.0, 4.0)
  for result in (second, first):
    files.write_result(tmp_path, result)
  assert files.load_results(tmp_path) == [first, second]


def test_a_workdir_without_results_says_what_to_run(tmp_path):
  with pytest.raises(ValueError, match=r"no results in .*scripts/eval\.py"):
    files.load_results(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_broken_result_file_is_named(tmp_path, content):
  (tmp_path / "results").mkdir()
  (tmp_path / "results" / "m.json").write_text(content)
  with pytest.raises(ValueError, match=r"results/m\.json"):
    files.load_results(tmp_path)


@pytest.fixture
def benchmarks(tmp_path):
  path = tmp_path / "benchmarks.csv"
  path.write_text(
    "model,LongBench,RULER\nA,49.1,90\nB,43.3,\nC,38.9,70\nD,30.1,60\n"
    "E,28.0,50\nF,45.0,40\nnowhere,1,2\njudge,50,95\n"
  )
  return path


def make_results():
  return [
    make_result("A", 1.99, 3.59), make_result("B", 2.48, 4.14),
    make_result("C", 2.66, 4.82), make_result("D", 3.28, 4.04),
    make_result("E", 3.3, 4.4), make_result("F", 2.4, 4.2),
    make_result("unknown", 2.0, 3.0),
    make_result("judge", 1.2, 3.0, self_evaluated=True),
    make_result("none", None, 3.0, reason="too_short"),
  ]  # fmt: skip


def test_correlate_matches_scipy_and_lists_who_is_missing(benchmarks):
  correlations = correlation.correlate(make_results(), benchmarks)
  names = [(b, score, r.n) for b, score, r, _ in correlations.rows]
  assert names == [
    ("LongBench", "LongPPL", 6), ("LongBench", "PPL", 6),
    ("RULER", "LongPPL", 5), ("RULER", "PPL", 5),
  ]  # fmt: skip
  _, _, pearson, spearman = correlations.rows[0]
  x = [1.99, 2.48, 2.66, 3.28, 3.3, 2.4]
  y = [49.1, 43.3, 38.9, 30.1, 28.0, 45.0]
  assert pearson.value == pytest.approx(stats.pearsonr(x, y).statistic)
  assert spearman.value == pytest.approx(-1.0)
  assert correlations.left_out == {
    "unknown": "not in the benchmark table", "judge": "self-evaluated",
    "none": "not in the benchmark table", "nowhere": "no result",
  }  # fmt: skip
  for fmt in ("text", "markdown", "csv", "latex"):
    table = correlation.correlation_table(correlations, fmt=fmt)
    assert ("nowhere" in table) == (fmt != "csv")
    assert ("fewer than 6 models" in table) == (fmt != "csv")
    assert "LongBench" in table


@pytest.mark.parametrize(
  "content, message",
  [
    ("name,LongBench\nA,1\n", "'model'"),
    ("model\nA\n", "at least one benchmark"),
    ("model,X\nA,1\nA,2\n", "line 3.*'A' stands there twice"),
    ("model,X\nA,good\n", "line 2, column 'X': 'good'"),
    ("model,X\nA,nan\n", "'nan' is no finite number"),
  ],
)
def test_a_bad_benchmark_table_is_refused(tmp_path, content, message):
  path = tmp_path / "b.csv"
  path.write_text(content)
  with pytest.raises(ValueError, match=message):
    correlation.correlate(make_results(), path)


def test_the_report_is_one_small_file_that_asks_for_nothing(tmp_path):
  output = tmp_path / "report.html"
  page_lib.render_report(make_results(), [make_document()], output)
  page = Page(output)
  assert len(page.source.encode()) < 1_000_000
  for forbidden in ("http:", "https:", "//cdn", "url(", "@import"):
    assert forbidden not in page.source
  names = {name for name, _ in page.attributes}
  assert not names & {"src", "href", "srcset", "xlink:href", "onerror"}
  assert "prefers-color-scheme: dark" in page.source
  assert 'name="viewport"' in page.source
  for heading in ("Models", "Distribution of LSD", "Notes"):
    assert heading in page.text
  # The track, and two figures for screens of two widths.
  assert page.tags.count("svg") == 5


def test_the_report_shows_the_document_and_what_holds_by_construction(tmp_path):
  """Cases C9."""
  output = tmp_path / "report.html"
  document = make_document()
  page_lib.render_report([], [document], output)
  page = Page(output)
  n_key = page.tags.count("b") - 1  # the legend shows one key token
  assert n_key == document["key_mask"].sum()
  assert page.tags.count("i") + n_key == 4000
  assert "256 targets of the first window: LSD 0 by construction" in page.text
  assert "1,024 targets unscored" in page.text
  assert "2,720 eligible" in page.text
  assert document["text"][-40:] in page.text


def test_text_and_names_cannot_become_markup(tmp_path):
  output = tmp_path / "report.html"
  attack = "<script>alert(1)</script><img src=x onerror=alert(2)>"
  document = make_document(50, doc_id=attack, extra=attack + "\ud800")
  results = [
    make_result(attack, 2.0, 3.0, warnings=(attack,)),
    make_result(
      "m", 2.0, 3.0, self_evaluated=True, model={"attention": attack}
    ),
  ]
  page_lib.render_report(results, [document], output, title=attack)
  page = Page(output)
  assert page.tags.count("script") == 2 and "img" not in page.tags
  assert page.text.count(attack) >= 6
  page_lib.render_card(results, document, output, title=attack, caption=attack)
  page = Page(output)
  assert "script" not in page.tags and "img" not in page.tags


def test_self_evaluated_models_come_with_a_note(tmp_path):
  output = tmp_path / "report.html"
  page_lib.render_report(make_results(), [], output, beta=-1.0)
  text = Page(output).text
  assert "Self-evaluated (not ranked)" in text
  assert "below exp(1) = 2.72" in text
  assert "none: too_short" in text


def test_unlike_results_are_refused_unless_forced(tmp_path):
  """Cases J2."""
  results = [make_result("A", 2.0, 3.0), make_result("B", 2.0, 3.0, keys={})]
  output = tmp_path / "report.html"
  with pytest.raises(NotComparable, match=r"keys\.evaluator: 'E' and not "):
    page_lib.render_report(results, [], output)
  assert not output.exists()
  page_lib.render_report(results, [], output, force=True)


def test_the_card_is_still_and_has_its_size(tmp_path):
  output = tmp_path / "card.html"
  page_lib.render_card(make_results()[:4], make_document(), output)
  page = Page(output)
  assert "width: 1200px; height: 700px" in page.source
  assert "script" not in page.tags and "http" not in page.source
  assert "prefers-color-scheme" not in page.source
  assert 0 < page.tags.count("b") < 200
  page_lib.render_card([], make_document(), output, excerpt=(1300, 1340))
  page = Page(output)
  tokens = page.tags.count("b") + page.tags.count("i")
  assert tokens - 1 == 40  # the legend shows one key token


def test_a_card_needs_a_document_with_targets(tmp_path):
  document = {
    "doc_id": "e", "text": "", "offsets": np.zeros((0, 2)), "key_mask": [],
    "long_log_probs": [], "short_log_probs": [],
  }  # fmt: skip
  with pytest.raises(ValueError, match="'e' has no targets"):
    page_lib.render_card([], document, tmp_path / "card.html")
  page_lib.render_report([], [document], tmp_path / "report.html")
