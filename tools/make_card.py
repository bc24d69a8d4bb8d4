r"""Makes the page that docs/heatmap.png is a photograph of.

  make demo
  .venv/bin/python tools/make_card.py --workdir runs/demo --output card.html
  chromium --headless --hide-scrollbars --window-size=1200,700 \
    --screenshot=docs/heatmap.png card.html
"""

from absl import app, flags

from longctx_jax.evaluation import files
from longctx_jax.report import heatmap, page

_WORKDIR = flags.DEFINE_string("workdir", "runs/demo", "of the demo")
_OUTPUT = flags.DEFINE_string("output", "card.html", "the page")


def main(argv):
  """Writes the page: the document with most key tokens, and the models."""
  del argv
  chapters = f"{_WORKDIR.value}/data/python_reference.jsonl"
  documents = heatmap.heatmap_documents(_WORKDIR.value, [chapters], "text", 1)
  page.render_card(
    files.load_results(_WORKDIR.value),
    documents[0],
    _OUTPUT.value,
    subtitle="SmolLM2-135M reads the Python language reference",
    caption=(
      "The same weights, with attention limited to the first 4 and the last "
      "N tokens. Perplexity barely moves; LongPPL does."
    ),
  )


if __name__ == "__main__":
  app.run(main)
