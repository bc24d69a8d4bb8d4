"""Models on key tokens.

Doors, for other rooms:
  passes: one model over documents: sums per document
  results: sums per document, pooled per model
  foreign: log-probs that another engine computed
  files: what an evaluation writes and reads
  run: many models on one store
"""

__all__ = ["passes", "results", "foreign", "files", "run"]
