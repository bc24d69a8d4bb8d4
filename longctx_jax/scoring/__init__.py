"""From documents to key tokens.

Doors, for other rooms:
  scorer: the two compiled passes of a model
  protocol: what a model reads of a document
  finder: from scored documents to key tokens
  setup: from a config to corpus, model and scorer
  eval_step: sums of losses, taken on the devices
  shared: one model on several processes
  run: a corpus into a key-token store
  buckets: fixed shapes for documents of any length
  look_ahead: long documents first
  rows: which documents share the rows of a batch

Inside:
  paper_step: the definition as a program, to be read first
  outcome: what became of the documents, in the log
  jobs: documents as a scorer gets them, and as it gives them back
  stream: one stream of documents through the passes of a scorer
"""

__all__ = [
  "scorer", "protocol", "finder", "eval_step", "setup", "run", "buckets",
  "look_ahead", "rows",
]  # fmt: skip
