"""A heat map as the result of a cell in a notebook."""

from __future__ import annotations

import dataclasses
from html import escape

from longctx_jax.key_tokens.record import KeyTokens
from longctx_jax.report import heatmap as heatmap_lib
from longctx_jax.report import page

_HEIGHT = 560  # pixels


@dataclasses.dataclass(frozen=True, repr=False)
class Cell:
  """A page that a notebook shows below the cell that made it.

  Attributes:
    html: the page.
    name: what it shows.
  """

  html: str
  name: str

  def __repr__(self) -> str:
    return f"Cell({self.name})"

  def _repr_html_(self) -> str:
    # In a frame of its own, so that no style leaks in either direction.
    return (
      f'<iframe title="{escape(self.name)}" srcdoc="{escape(self.html)}" '
      f'style="width:100%;height:{_HEIGHT}px;border:0"></iframe>'
    )


def heatmap(keys: KeyTokens, text: str | None = None) -> Cell:
  """Where a document needs its long context, to look at in a notebook.

  Colour is LSD = log P(token | full context) - log P(token | last K tokens),
  nats; key tokens are bold. Hover over a token for both probabilities.

  Args:
    keys: of the document, with log-probs.
    text: the document; not needed where `find_key_tokens` made the keys.

  Raises:
    ValueError: no text, another one, or no log-probs of all tokens.

  >>> from longctx_jax import longppl, testing
  >>> keys = longppl.find_key_tokens(
  ...   testing.synthetic_document(0, num_words=40), testing.tiny_model(),
  ...   short_len=32, stride=16, alpha=0.5, beta=-20.0,
  ... )
  >>> heatmap(keys)._repr_html_().startswith("<iframe")
  True
  """
  text = keys.require_text(text)
  if keys.offsets is None or keys.manifest.detail != "tokens":
    why = keys.reason or f"detail={keys.manifest.detail}"
    raise ValueError(
      f"document {keys.doc_id!r} has no log-probs of all its tokens to draw "
      f"({why})"
    )
  document = {
    "doc_id": keys.doc_id,
    "text": text[: keys.n_chars],
    "offsets": keys.offsets,
    "long_log_probs": keys.long_log_probs,
    "short_log_probs": keys.short_log_probs,
    "key_mask": keys.key_mask,
  }
  stride = keys.manifest.windows.stride
  name = f"LSD of document {keys.doc_id}"
  html = page.render(
    "cell.html.j2",
    title=name,
    doc=heatmap_lib.build_heatmap(document, stride=stride),
    alpha=keys.manifest.thresholds.alpha,
    shown=None,
  )
  return Cell(html, name)
