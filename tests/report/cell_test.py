"""A heat map in a notebook: whole, in a frame, of the right text."""

import dataclasses
import html
import re

import numpy as np
import pytest

import longctx_jax as lc
from longctx_jax import testing
from longctx_jax.report import cell

TEXT = testing.synthetic_document(0, num_words=40)
WINDOWS = dict(short_len=32, stride=16, alpha=0.5, beta=-20.0)


@pytest.fixture(scope="module")
def keys():
  return lc.find_key_tokens(TEXT, testing.tiny_model(), **WINDOWS)


def test_the_frame_holds_every_token_once(keys):
  shown = cell.heatmap(keys)
  match = re.fullmatch(
    r'<iframe title="LSD of document 0" srcdoc="(.*)" style="[^"]*"></iframe>',
    shown._repr_html_(),
    re.DOTALL,
  )
  page = html.unescape(match[1])
  assert page == shown.html and repr(shown) == "Cell(LSD of document 0)"
  # Each target is an element: the key ones bold.
  body = page[page.index('<article class="document"') :]
  body = body[: body.index("<script")]
  assert len(re.findall(r"<b[ >]", body)) == keys.key_mask.sum() > 0
  assert len(re.findall(r"<[bi][ >]", body)) == keys.n_tokens


def test_a_store_keeps_no_text_and_says_so(keys):
  bare = dataclasses.replace(keys, text=None)
  with pytest.raises(ValueError, match="come without its text: give it"):
    cell.heatmap(bare)
  with pytest.raises(ValueError, match="found in another text"):
    cell.heatmap(bare, TEXT + " ")
  assert cell.heatmap(bare, TEXT).html == cell.heatmap(keys).html


def test_scores_alone_can_not_be_drawn(keys):
  manifest = dataclasses.replace(keys.manifest, detail="keys")
  with pytest.raises(ValueError, match="no log-probs of all .*detail=keys"):
    cell.heatmap(dataclasses.replace(keys, manifest=manifest))


def test_key_tokens_are_listed_with_text_and_probabilities(keys):
  found = keys.tokens()
  assert [(one.start, one.end) for one in found] == [
    tuple(pair) for pair in keys.offsets[keys.key_mask].tolist()
  ]
  for one in found:
    assert one.text == TEXT[one.start : one.end]
    # The definition: LSD > alpha and LCL > beta.
    assert np.log(one.long_prob) - np.log(one.short_prob) > WINDOWS["alpha"]
    assert 0 < one.short_prob < one.long_prob <= 1
  assert keys.with_thresholds(1.0, -20.0).tokens()[0] in found


def test_what_a_notebook_prints_is_short(keys, tmp_path):
  model = testing.tiny_model()
  result = lc.compute_longppl(TEXT, model, keys)
  assert repr(keys) == (
    f"KeyTokens('0': {keys.key_mask.sum()} key tokens of {keys.n_tokens}, "
    "by tiny-0)"
  )
  assert re.fullmatch(
    r"LoadedModel\(tiny-0: 0\.0 M parameters, float32, \d devices\)",
    repr(model),
  )
  assert repr(result) == f"ModelResult({result})" and len(repr(result)) < 200
