"""Results for readers; no JAX.

Doors, for other rooms:
  comparison: models side by side: what may be compared, the table
  correlation: scores against benchmarks
  heatmap: a document as a heat map of LSD
  figures: figures as inline SVG
  page: one HTML page
  tables: tables as text, Markdown, CSV or LaTeX
"""

__all__ = ["comparison", "correlation", "heatmap", "figures", "page", "tables"]
