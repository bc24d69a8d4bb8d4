"""Results for readers; no JAX.

Doors, for other rooms:
  comparison: models side by side: the table
  correlation: scores against benchmarks
  heatmap: a document as a heat map of LSD
  cell: a heat map in a notebook
  figures: figures as inline SVG
  page: one HTML page
  tables: tables as text, Markdown, CSV or LaTeX

Inside:
  alike: which results may stand side by side
"""

__all__ = [
  "comparison",
  "correlation",
  "heatmap",
  "cell",
  "figures",
  "page",
  "tables",
]
