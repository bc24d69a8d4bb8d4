"""Results for readers; no JAX.

Doors, for other rooms:
  comparison: models side by side: the table
  correlation: scores against benchmarks
  heatmap: a document as a heat map of LSD
  cell: a heat map in a notebook
  figures: figures as inline SVG
  page: one HTML page
  run_page: the page of a workdir, with what is found there
  sweep_plot: LongPPL at other thresholds: the table and its picture
  tables: tables as text, Markdown, CSV or LaTeX

Inside:
  difference: two models on the key spans of a document
  positions: PPL and LSD along the documents
  sweep: LongPPL at other thresholds and windows, without a model
  alike: which results may stand side by side
"""

__all__ = [
  "comparison",
  "correlation",
  "heatmap",
  "cell",
  "figures",
  "page",
  "run_page",
  "sweep_plot",
  "tables",
]
