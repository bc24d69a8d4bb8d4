"""Results for readers; no JAX.

Doors, for other rooms:
  comparison: models side by side: the table
  correlation: scores against benchmarks
  heatmap: a document as a heat map of LSD
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
  "figures",
  "page",
  "tables",
]
