"""Models on key tokens.

Doors, for other rooms:
  passes: one model over documents: sums per document
  results: the result of a model: documents pooled, JSON
  foreign: log-probs that another engine computed
  foreign_keys: the same as key tokens
  log_probs: what a model gave to each target, kept in one file
  identity: what a number belongs to
  files: what an evaluation writes and reads
  run: many models on one store

Inside:
  documents: the sums of one document
  matched: documents beside their key tokens, checked once
  names: what models are called among results
  caveats: what a reader of a result must know
"""

__all__ = [
  "passes",
  "results",
  "foreign",
  "foreign_keys",
  "log_probs",
  "identity",
  "files",
  "run",
]
